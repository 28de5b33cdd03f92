"""The plan of a program's memory: which values share storage, and where each lies in the arena.

Values live from the step that makes them to the last that reads them. Ops that change no shape may write over
an input that nobody reads later, and a reshaped value is the same memory. What no noise reaches is computed
first and, where a draw reads it, kept for all draws. The arena has a section for each type of element, as C
forbids to read one type as another: codes of a byte, wide codes, and patches of 32 bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.ops import Op
from qbayes.integer.program import Program

Section = Literal["codes", "wide", "patch"]
SECTIONS: Mapping[Section, tuple[str, int]] = {
    "codes": ("uint8_t", 1),
    "wide": ("uint16_t", 2),
    "patch": ("int32_t", 4),
}


@dataclass(frozen=True)
class Need:
    """Memory that is wanted from step ``first`` to step ``last``: ``size`` elements of a section."""

    name: str
    section: Section
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """Where each need lies (in elements of its section) and how large the sections are."""

    offsets: Mapping[str, int]
    sizes: Mapping[Section, int]

    @property
    def bytes(self) -> int:
        return sum(SECTIONS[section][1] * size for section, size in self.sizes.items())


def arrange(needs: Sequence[Need]) -> Arena:
    """Largest first, each at the lowest place where nothing lies that lives at the same time."""
    offsets: dict[str, int] = {}
    sizes: dict[Section, int] = dict.fromkeys(SECTIONS, 0)
    for section in SECTIONS:
        placed: list[Need] = []
        wanted = [need for need in needs if need.section == section]
        for need in sorted(wanted, key=lambda n: (-n.size, n.first, n.name)):
            beside = [n for n in placed if n.first <= need.last and need.first <= n.last]
            at = 0
            for other in sorted(beside, key=lambda n: offsets[n.name]):
                if at + need.size <= offsets[other.name]:
                    break
                at = max(at, offsets[other.name] + other.size)
            offsets[need.name] = at
            sizes[section] = max(sizes[section], at + need.size)
            placed.append(need)
    return Arena(offsets, sizes)


@dataclass
class Steps:
    """The ops in the order they run, what each value's storage is, and how long that lives."""

    program: Program
    shared: tuple[Op, ...]
    drawn: tuple[Op, ...]
    root: dict[str, str] = field(default_factory=dict[str, str])
    first: dict[str, int] = field(default_factory=dict[str, int])
    last: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def order(self) -> tuple[Op, ...]:
        return (*self.shared, *self.drawn)

    def needs(self) -> list[Need]:
        """The storage of every value but the input's, which the caller holds."""
        values = self.program.values
        return [
            Need(
                value_key(root),
                section(values[root].bits),
                size_of(values[root].shape),
                self.first[root],
                last,
            )
            for root, last in self.last.items()
            if root != self.program.input
        ]


def value_key(value: str) -> str:
    """The name of a value's storage among the needs."""
    return f"value {value}"


def scratch_key(op: str, what: str) -> str:
    """The name of memory that an op works in; no value can be called so."""
    return f"scratch {op}: {what}"


def section(bits: int) -> Section:
    return "codes" if bits <= MOST_BITS else "wide"


def size_of(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def steps_of(program: Program) -> Steps:
    """The order of the ops, and storage for every value."""
    noisy = program.noisy_values()
    shared = tuple(op for op in program.ops if op.output not in noisy)
    steps = Steps(program, shared, tuple(op for op in program.ops if op.output in noisy))
    readers = {name: at for at, op in enumerate(steps.order) for name in op.inputs}
    end = len(steps.order)
    kept = set(program.outputs.values())
    kept |= {name for op in steps.drawn for name in op.inputs if name not in noisy}
    until = {name: end if name in kept else readers.get(name, -1) for name in program.values}
    steps.root[program.input], steps.first[program.input], steps.last[program.input] = program.input, 0, end
    for at, op in enumerate(steps.order):
        _store(steps, op, at, until)
    return steps


def _store(steps: Steps, op: Op, at: int, until: Mapping[str, int]) -> None:
    source = _overwritten(steps, op, at)
    root = steps.root[source] if source is not None else op.output
    steps.root[op.output] = root
    steps.first.setdefault(root, at)
    # what lives in this storage already keeps it as long as it did.
    steps.last[root] = max(steps.last.get(root, at), until[op.output], at)
    if source is None:
        steps.last[root] = max(until[op.output], at)


def _overwritten(steps: Steps, op: Op, at: int) -> str | None:
    """The input whose storage becomes the output's."""
    if op.is_view:
        return op.inputs[0]
    if not op.in_place:
        return None
    values, out = steps.program.values, steps.program.values[op.output]
    for name in op.inputs:
        root = steps.root[name]
        free = root != steps.program.input and steps.last[root] == at
        if free and values[name].shape == out.shape and section(values[name].bits) == section(out.bits):
            return name
    return None


def live(needs: Sequence[Need], at: int) -> int:
    """The bytes that are wanted at a step."""
    return sum(SECTIONS[need.section][1] * need.size for need in needs if need.first <= at <= need.last)
