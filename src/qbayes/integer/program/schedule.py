"""The order in which a program's ops run: once for all draws of a member, or for each draw; and how long a
value is needed."""

from dataclasses import dataclass

from qbayes.integer.ops.base import Op
from qbayes.integer.program.program import Program


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


def plan(program: Program) -> Plan:
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
