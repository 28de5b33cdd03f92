"""The interpreter: runs the kernels of a backend over rows and draws.

Ops that do not depend on noise run once for all draws of a member (the prefix). The others run on draws
folded into the batch, the draw being the outer part; what all draws share is repeated only where an op mixes
it with what they do not. Weights are drawn and packed once a draw and serve all rows. A value is let go after
its last use. Draw ``d`` uses member ``d mod M``; noise is keyed by (seed, draw, site, row), so that an answer
does not depend on how rows and draws are cut into pieces.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qbayes.integer.arithmetic.grid import MOST_BITS, quantize
from qbayes.integer.backends.base import Backend, Drawn
from qbayes.integer.ops.base import Noise, Op, type_of_codes
from qbayes.integer.program import Program
from qbayes.integer.proof.budget import row_cost
from qbayes.integer.structure.program_data import Member, Step, plan

# Packed weights of all draws that are held at once, in bytes.
_WEIGHTS_AT_ONCE = 1 << 28

# What most networks stay below: values held with the widest, and bytes of lanes for each of its codes.
_VALUES_AT_ONCE, _LANES_OF_A_CODE = 4, 128

# Called with (op, member, inputs, noise, output) after each op.
Watch = Callable[[Op, int, Sequence[Tensor], Noise, Tensor], None]
# Weights of one group of draws: op name → one packed draw each.
Weights = Mapping[str, Sequence[Drawn]]


@dataclass
class FrozenDraws:
    """Packed weights kept for later calls: up to ``limit`` draws, those of the latest seeds first."""

    limit: int
    _kept: dict[tuple[int, int], dict[str, Drawn]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, seed: int, draw: int, make: Callable[[], dict[str, Drawn]]) -> dict[str, Drawn]:
        with self._lock:
            found = self._kept.get((seed, draw))
        if found is None:
            found = make()
            self._keep((seed, draw), found)
        return found

    def _keep(self, key: tuple[int, int], weights: dict[str, Drawn]) -> None:
        with self._lock:
            # draws of another seed give way; those of this seed stay, or a longer cycle would keep none.
            other = next((kept for kept in self._kept if kept[0] != key[0]), None)
            if len(self._kept) >= self.limit and other is not None:
                del self._kept[other]
            if len(self._kept) < self.limit:
                self._kept[key] = weights

    def __len__(self) -> int:
        return len(self._kept)


class Interpreter:
    """A program with a backend's kernels. Safe to call from several threads."""

    def __init__(self, program: Program, backend: Backend, frozen_draws: int = 0) -> None:
        self.program = program
        self.backend = backend
        self.plan = plan(program)
        self.frozen = FrozenDraws(frozen_draws)
        self._rows_at_once = max(1, backend.codes_at_once[backend.device.type] // _widest(program))
        self._draw_bytes = _bytes_of_a_draw(program)
        self._byte_tables: dict[Member, Tensor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy draws its own weights again, the same ones."""
        return type(self), (self.program, self.backend, self.frozen.limit)

    @torch.no_grad()
    def outputs(
        self, x: Tensor, draws: int, seed: int, first_row: int = 0, batch_size: int | None = None
    ) -> dict[str, Tensor]:
        """Every head in network units, float32 ``(draws, rows, …)`` on the CPU; ``x`` in raw units."""
        members = self.program.members
        shapes = {head: self.program.values[value].shape for head, value in self.program.outputs.items()}
        heads = {head: torch.empty((draws, len(x), *shape)) for head, shape in shapes.items()}
        chunks = self._chunks(len(x), batch_size)
        whole = self._standardise(x) if len(chunks) == 1 and x.dtype != torch.uint8 else None
        for index, member in enumerate(members[:draws]):
            for group in self._groups(list(range(index, draws, len(members)))):
                weights = self._weights(index, group, seed)
                for start, stop in chunks:
                    some = self.input_codes(x[start:stop], member, whole)
                    self._fill(heads, index, some, group, seed, first_row, start, weights)
        return heads

    def input_codes(self, x: Tensor, member: Member, standardised: Tensor | None = None) -> Tensor:
        """``clamp(round(z / S) + Z)`` of the standardised input z, which may be given where it is known."""
        narrow = self.program.values[self.program.input].bits <= MOST_BITS
        if x.dtype == torch.uint8 and narrow:
            found = self.backend.codes_of_bytes(x, self._table_of_bytes(member))
            if found is not None:
                return found
        known = self._standardise(x) if standardised is None else standardised
        return self.backend.arrange(self._codes(known, member))

    def _standardise(self, x: Tensor) -> Tensor:
        return self.program.signature.transform.apply(x.to(self.backend.device))

    def _codes(self, standardised: Tensor, member: Member) -> Tensor:
        name, device = self.program.input, standardised.device
        scale = torch.tensor(member.scales[name], dtype=torch.float32, device=device)
        zero = torch.tensor(float(member.zeros[name]), device=device)
        bits = self.program.values[name].bits
        return quantize(standardised, scale, zero, 0, (1 << bits) - 1).to(type_of_codes(bits))

    def _table_of_bytes(self, member: Member) -> Tensor:
        """The code of each byte in each channel, ``(channels, 256)``: images need no float arithmetic."""
        if member not in self._byte_tables:
            shape = self.program.values[self.program.input].shape
            every = torch.arange(256, dtype=torch.uint8).view(-1, *(1 for _ in shape))
            wide = self._standardise(every.expand(256, shape[0], *(1 for _ in shape[1:])))
            self._byte_tables[member] = self._codes(wide, member).view(256, -1).t().contiguous()
        return self._byte_tables[member]

    def run(
        self,
        member: int,
        codes: Tensor,
        draws: Sequence[int],
        seed: int,
        first_row: int,
        weights: Weights,
        watch: Watch | None = None,
    ) -> dict[str, Tensor]:
        """Codes of each head's value: ``(rows, …)`` where no noise reaches it, else ``(draws · rows, …)``."""
        shared = self._prefix(member, codes, seed, first_row, watch)
        return self._suffix(member, shared, len(codes), draws, seed, first_row, weights, watch)

    def weights(self, member: int, draws: Sequence[int], seed: int) -> Weights:
        """The packed weights of these draws, by op."""
        return self._weights(member, list(draws), seed)

    def _fill(
        self,
        heads: Mapping[str, Tensor],
        member: int,
        codes: Tensor,
        draws: Sequence[int],
        seed: int,
        first_row: int,
        start: int,
        weights: Weights,
    ) -> None:
        """Write the heads of these rows and draws, as many draws at once as fit."""
        rows = len(codes)
        shared = self._prefix(member, codes, seed, first_row + start, None)
        size = max(1, self._rows_at_once // rows) if self.plan.suffix else len(draws)
        for at in range(0, len(draws), size):
            some = draws[at : at + size]
            drawn = {op: packed[at : at + size] for op, packed in weights.items()}
            found = self._suffix(member, shared, rows, some, seed, first_row + start, drawn, None)
            for head, tensor in heads.items():
                name = self.program.outputs[head]
                real = _real(found[name], self.program.members[member], name).view(
                    -1, rows, *tensor.shape[2:]
                )
                tensor[torch.tensor(some), start : start + rows] = real.expand(len(some), *real.shape[1:])

    def _prefix(
        self, member: int, codes: Tensor, seed: int, first_row: int, watch: Watch | None
    ) -> dict[str, Tensor]:
        values = {self.program.input: codes}
        noise = Noise(seed, torch.zeros(1, dtype=torch.int64), first_row, len(codes))
        self._steps(self.plan.prefix, member, values, noise, {}, watch)
        return values

    def _suffix(
        self,
        member: int,
        shared: Mapping[str, Tensor],
        rows: int,
        draws: Sequence[int],
        seed: int,
        first_row: int,
        weights: Weights,
        watch: Watch | None,
    ) -> dict[str, Tensor]:
        values = dict(shared)
        ids = torch.tensor(draws, dtype=torch.int64, device=self.backend.device)
        self._steps(self.plan.suffix, member, values, Noise(seed, ids, first_row, rows), weights, watch)
        return {name: values[name] for name in self.program.outputs.values()}

    def _steps(
        self,
        steps: Sequence[Step],
        member: int,
        values: dict[str, Tensor],
        noise: Noise,
        weights: Weights,
        watch: Watch | None,
    ) -> None:
        kernels = self.backend.kernels[member]
        batch = noise.draws.numel() * noise.rows
        for step in steps:
            op = step.op
            kernel = kernels[op.name]
            inputs = [values[name] for name in op.inputs]
            if step.mixes and not kernel.takes_shared:
                inputs = [x if x.shape[0] == batch else _repeat(x, noise) for x in inputs]
            values[op.output] = kernel(inputs, noise, weights.get(op.name, ()))
            if watch is not None:
                watch(op, member, inputs, noise, values[op.output])
            for name in step.done:
                del values[name]

    def _weights(self, member: int, draws: list[int], seed: int) -> Weights:
        kernels = [(name, k) for name, k in self.backend.kernels[member].items() if k.draws_weights]
        if not kernels:
            return {}

        def make(draw: int) -> dict[str, Drawn]:
            return {name: kernel.draw(seed, draw) for name, kernel in kernels}

        if self.frozen.limit:
            drawn = [self.frozen.find(seed, draw, lambda draw=draw: make(draw)) for draw in draws]
        else:
            drawn = [make(draw) for draw in draws]
        return {name: [one[name] for one in drawn] for name, _ in kernels}

    def _groups(self, draws: list[int]) -> list[list[int]]:
        """Draws whose weights are held together; almost always all of them."""
        size = len(draws) if self._draw_bytes == 0 else max(1, _WEIGHTS_AT_ONCE // self._draw_bytes)
        return [draws[at : at + size] for at in range(0, len(draws), size)]

    def _chunks(self, rows: int, batch_size: int | None) -> list[tuple[int, int]]:
        size = batch_size or self._rows_at_once
        return [(start, min(start + size, rows)) for start in range(0, rows, size)]


def _repeat(x: Tensor, noise: Noise) -> Tensor:
    """Shared rows once for each draw, in the same memory layout."""
    count = noise.draws.numel()
    return x if count == 1 else torch.cat([x] * count)


def _real(codes: Tensor, member: Member, name: str) -> Tensor:
    return (codes.float() - member.zeros[name]).mul_(member.scales[name]).cpu()


def _widest(program: Program) -> int:
    """Codes of the widest value of a row; more where a row holds many values, or pads and lists far more."""
    row = row_cost(program)
    widest = max(math.prod(value.shape) for value in program.values.values())
    return max(widest, row.held // _VALUES_AT_ONCE, row.working // _LANES_OF_A_CODE)


def _bytes_of_a_draw(program: Program) -> int:
    """Bytes of one draw of all Gaussian weights, before any padding."""
    total = 0
    for op in program.ops:
        if op.is_stochastic:
            total += sum(math.prod(c.shape) for c in op.constants(program.values) if c.name == "mean")
    return total
