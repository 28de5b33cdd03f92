"""What the ops have in common as C: where things lie, and walks through outputs and inputs with strides."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qbayes.export.c.data import Data
from qbayes.export.c.layer import Layer
from qbayes.integer.program import Program


@dataclass(frozen=True)
class Context:
    """What emitting one op needs: where constants go, where values lie, and a name for the op in C."""

    program: Program
    data: Data
    place: Callable[[str], str]
    name: str
    # where memory lies that an op works in (``Need``), by the op's name and what it is; None: it has none.
    scratch: Callable[[str, str], int | None]
    # how a weighted op runs.
    layer: Layer | None = None

    def shape(self, value: str) -> tuple[int, ...]:
        return self.program.values[value].shape


@dataclass(frozen=True)
class Axis:
    """One axis of a walk: its length, and the step in the output and in each input."""

    length: int
    out: int
    steps: tuple[int, ...]


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements between neighbours along each axis."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def join_axes(axes: Sequence[Axis]) -> list[Axis]:
    """The same walk with as few axes as it needs: an axis that only continues its neighbour is merged."""
    found: list[Axis] = []
    for axis in (a for a in axes if a.length > 1):
        before = found[-1] if found else None
        steps_on = before is not None and all(
            one == two * axis.length
            for one, two in zip((before.out, *before.steps), (axis.out, *axis.steps), strict=True)
        )
        if before is not None and steps_on:
            found[-1] = Axis(before.length * axis.length, axis.out, axis.steps)
        else:
            found.append(axis)
    return found or [Axis(1, 1, (1,) * len(axes[0].steps) if axes else (1,))]


def emit_walk(context: Context, owner: str, name: str, axes: Sequence[Axis]) -> str:
    """The struct of a walk; its name."""
    data, merged = context.data, join_axes(axes)
    row = {
        "axes": len(merged),
        "inputs": len(merged[0].steps),
        "lengths": data.array(owner, "uint32_t", [axis.length for axis in merged]),
        "out": data.array(owner, "uint32_t", [axis.out for axis in merged]),
        "in": data.array(owner, "uint32_t", [step for axis in merged for step in axis.steps]),
    }
    data.structs(owner, "qb_walk", f"{name}_walk", [row])
    return f"{name}_walk"


def broadcast(out: Sequence[int], inputs: Sequence[Sequence[int]]) -> list[Axis]:
    """A walk through an output whose inputs are repeated along axes of length 1."""
    steps = [strides(shape) for shape in inputs]
    if not out:
        return [Axis(1, 1, (1,) * len(inputs))]
    return [
        Axis(
            length,
            along,
            tuple(0 if shape[axis] == 1 else step[axis] for shape, step in zip(inputs, steps, strict=True)),
        )
        for axis, (length, along) in enumerate(zip(out, strides(out), strict=True))
    ]
