"""A program: the integer network, as a short list of operations on codes with integer constants.

Everything a method did is in it as one of three things: ops that draw masks, ops that draw weights, and
several members. Between the input's codes and the outputs' codes there is no float.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qbayes.integer.ops.base import Grids, Op, Value
from qbayes.posterior.copying import Carried, pack_tensors, unpack_tensors
from qbayes.posterior.signature import Signature


@dataclass(frozen=True, eq=False)
class Member:
    """One network of the posterior: what its codes mean, and its constants by op and name.

    ``zeros`` and ``scales`` say ``f = S (q − Z)`` for every value; ``deviations``, where known, the root mean
    square of σ over the weights of each Gaussian op. Scales serve the boundary, inspection and export only,
    deviations inspection only; both are kept as the float32 numbers that a file holds.
    """

    zeros: Mapping[str, int]
    scales: Mapping[str, float]
    constants: Mapping[str, Mapping[str, Tensor]]
    deviations: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", _float32(self.scales))
        object.__setattr__(self, "deviations", _float32(self.deviations))

    def __reduce__(self) -> tuple[Any, ...]:
        """Its codes in a copy or a pickle are its own: kernels hold the addresses of these."""
        constants = {op: pack_tensors(held) for op, held in self.constants.items()}
        return _member, (dict(self.zeros), dict(self.scales), constants, dict(self.deviations))


@dataclass(frozen=True, eq=False)
class ProgramData:
    """Values, ops in the order they run, members, and what is needed to take raw inputs and answer in units.

    ``outputs`` names the value of each head (a single tensor is the head ``""``); ``constant_heads`` are
    heads that do not depend on the input, such as the learned log-variance of a regression: in network units,
    one number a target, or as many for each member in turn. ``precision`` and ``provenance`` are JSON.
    ``sections`` are parts of a file that a later qbayes wrote and that this one need not know; they are kept.
    """

    values: Mapping[str, Value]
    ops: tuple[Op, ...]
    input: str
    outputs: Mapping[str, str]
    members: list[Member]
    signature: Signature
    constant_heads: Mapping[str, list[float]] = field(default_factory=dict[str, list[float]])
    precision: Mapping[str, Any] = field(default_factory=dict[str, Any])
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sections: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def grids(self, op: Op, member: Member) -> Grids:
        """Zero-points and widths around an op.

        Args:
            op: An op of the program.
            member: The member whose zero-points are meant.
        """
        return Grids(
            zeros=tuple(member.zeros[name] for name in op.inputs),
            zero=member.zeros[op.output],
            bits=tuple(self.values[name].bits for name in op.inputs),
            out_bits=self.values[op.output].bits,
        )

    def constant_head(self, head: str, member: int) -> list[float]:
        """The numbers of a constant head for one member, one a target.

        Args:
            head: The head's name.
            member: Index of the member.
        """
        numbers = self.constant_heads[head]
        count = math.prod(self.values[next(iter(self.outputs.values()))].shape)
        return numbers if len(numbers) == count else numbers[member * count : (member + 1) * count]

    def value_order(self) -> tuple[str, ...]:
        """The values in the order in which they come to be: the input, then each op's output."""
        return (self.input, *(op.output for op in self.ops))

    def noisy_values(self) -> frozenset[str]:
        """The values that differ between the draws of one member; all others need computing once."""
        noisy: set[str] = set()
        for op in self.ops:
            if op.is_stochastic or not noisy.isdisjoint(op.inputs):
                noisy.add(op.output)
        return frozenset(noisy)

    def equals(self, other: "ProgramData") -> bool:
        """Whether both have the same meaning: every op, code, scale and label is the same.

        Args:
            other: The program to compare with.
        """
        return (
            dict(self.values) == dict(other.values)
            and self.ops == other.ops
            and (self.input, dict(self.outputs)) == (other.input, dict(other.outputs))
            and dict(self.constant_heads) == dict(other.constant_heads)
            and self.signature.to_json() == other.signature.to_json()
            and _json(self.precision) == _json(other.precision)
            and _json(self.provenance) == _json(other.provenance)
            and _json(self.sections) == _json(other.sections)
            and len(self.members) == len(other.members)
            and all(_same(one, two) for one, two in zip(self.members, other.members, strict=True))
        )


def _member(
    zeros: dict[str, int],
    scales: dict[str, float],
    constants: Mapping[str, Mapping[str, Carried]],
    deviations: dict[str, float],
) -> Member:
    return Member(zeros, scales, {op: unpack_tensors(held) for op, held in constants.items()}, deviations)


def _json(data: Mapping[str, Any]) -> str:
    """What a file would hold: a tuple and a list are the same; what is no JSON stands as its repr."""
    return json.dumps(data, sort_keys=True, default=repr)


def _float32(numbers: Mapping[str, float]) -> dict[str, float]:
    with np.errstate(over="ignore"):  # what leaves float32 becomes infinite, which ``verify`` refuses
        narrow = np.array(list(numbers.values()), dtype=np.float64).astype(np.float32)
    return dict(zip(numbers, narrow.tolist(), strict=True))


def _same(one: Member, two: Member) -> bool:
    same_grids = dict(one.zeros) == dict(two.zeros) and dict(one.scales) == dict(two.scales)
    same_grids = same_grids and dict(one.deviations) == dict(two.deviations)
    names = [{(op, name) for op, held in m.constants.items() for name in held} for m in (one, two)]
    return (
        same_grids
        and names[0] == names[1]
        and all(_same_codes(one.constants[op][name], two.constants[op][name]) for op, name in names[0])
    )


def _same_codes(one: Tensor, two: Tensor) -> bool:
    """Equal shapes and integers, whatever their types."""
    return one.shape == two.shape and bool(torch.eq(one.to(torch.int64), two.to(torch.int64)).all())


@dataclass(frozen=True)
class Step:
    """An op in its place: what it reads, and which values nobody reads after it."""

    op: Op
    noisy: bool
    mixes: bool
    done: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The steps that run once for all draws, and those that run for each."""

    prefix: tuple[Step, ...]
    suffix: tuple[Step, ...]


def plan(program: ProgramData) -> Plan:
    """Which ops run once and which for each draw, and where each value is needed for the last time."""
    noisy = program.noisy_values()
    prefix = [op for op in program.ops if op.output not in noisy]
    suffix = [op for op in program.ops if op.output in noisy]
    order = [*prefix, *suffix]
    last = {name: at for at, op in enumerate(order) for name in op.inputs}
    kept = set(program.outputs.values())
    # a value that any draw reads stays for the next draws.
    kept_for_draws = {name for op in suffix for name in op.inputs if name not in noisy}
    steps: list[Step] = []
    for at, op in enumerate(order):
        names = dict.fromkeys((*op.inputs, op.output))
        done = tuple(name for name in names if last.get(name, at) == at and name not in kept | kept_for_draws)
        mixes = op.output in noisy and any(name not in noisy for name in op.inputs)
        steps.append(Step(op, op.output in noisy, mixes, done))
    return Plan(tuple(steps[: len(prefix)]), tuple(steps[len(prefix) :]))
