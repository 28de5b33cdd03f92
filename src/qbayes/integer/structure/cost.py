"""What a program costs: bytes, multiply-accumulates and bit-operations, layer by layer.

A multiply-accumulate of a b-bit weight with an n-bit activation counts ``b · n`` bit-operations. A Gaussian
weight takes the bits of two codes, μ and σ, and where its noise has a sum of its own, two multiply-
accumulates. Ops that no noise reaches run once for all draws of a member, the others once a draw.
"""

import math
from dataclasses import dataclass

from qbayes.integer.ops import Op, Weighted
from qbayes.integer.structure.noise_variance import variance_ratio
from qbayes.integer.structure.op_record import bytes_packed
from qbayes.integer.structure.program_data import ProgramData


@dataclass(frozen=True)
class OpCost:
    """The cost of one op: bytes for one member, the rest for one row and one run.

    ``bits`` are those of the output's codes, ``weight_bits`` those of a weight (of μ and σ for a Gaussian);
    ``once``: it runs once for all draws of a member; ``variance_ratio``: see ``integer.variance``.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    bits: int
    weights: int
    weight_bits: tuple[int, ...]
    bytes: int
    macs: int
    bit_operations: int
    once: bool
    variance_ratio: float | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of a program; its sums are for one row."""

    ops: tuple[OpCost, ...]
    members: int

    @property
    def weights(self) -> int:
        """Weights of one member; a Gaussian one counts once."""
        return sum(op.weights for op in self.ops)

    @property
    def bytes(self) -> int:
        """Packed constants of all members."""
        return self.members * sum(op.bytes for op in self.ops)

    def macs(self, draws: int = 1) -> int:
        """Multiply-accumulates of ``draws`` draws: the noise-free part once for each member they use."""
        return sum(op.macs * self.runs(op, draws) for op in self.ops)

    def bit_operations(self, draws: int = 1) -> int:
        """Bit-operations of ``draws`` draws."""
        return sum(op.bit_operations * self.runs(op, draws) for op in self.ops)

    def runs(self, op: OpCost, draws: int) -> int:
        """How often ``op`` runs for a row: draw d uses member d mod M."""
        return min(draws, self.members) if op.once else draws


def cost(program: ProgramData, *, variance: bool = True) -> Cost:
    """The cost of a verified program; ``variance=False`` leaves the ratios out, which take the longest."""
    noisy = program.noisy_values()
    ops = [_op_cost(program, op, op.output not in noisy, variance) for op in program.ops]
    return Cost(tuple(ops), len(program.members))


def _op_cost(program: ProgramData, op: Op, once: bool, variance: bool) -> OpCost:
    output, macs = program.values[op.output], op.macs(program.values)
    constants = op.constants(program.values)
    weight_bits = op.weight_bits
    return OpCost(
        name=op.name,
        kind=op.kind,
        shape=output.shape,
        bits=output.bits,
        weights=op.weight_count,
        weight_bits=weight_bits,
        bytes=sum(bytes_packed(math.prod(c.shape), c.bits) for c in constants),
        macs=macs,
        bit_operations=macs * weight_bits[0] * program.values[op.inputs[0]].bits if weight_bits else 0,
        once=once,
        variance_ratio=_worst_ratio(program, op) if variance else None,
    )


def _worst_ratio(program: ProgramData, op: Op) -> float | None:
    """Over the members, the ratio that is furthest from 1."""
    if not isinstance(op, Weighted) or not op.weights.is_gaussian:
        return None
    found = [variance_ratio(program, member, op) for member in program.members]
    ratios = [ratio for ratio in found if ratio is not None]
    return max(ratios, key=lambda ratio: abs(math.log(ratio)) if ratio > 0 else math.inf, default=None)
