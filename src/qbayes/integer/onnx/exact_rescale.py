"""Exact rescaling, ``round(Σ_i t_i m_i / 2^s)`` with ties to even, in the numbers that a runtime has.

ONNX has no rounding shift, and float32 is not enough: sums of codes hit exact halves often, and a multiplier
of 31 bits decides them. Two ways give the reference's integers:

- ``Float64Lanes`` for ONNX Runtime: whole numbers below 2^53 are exact in float64, so that sums and products
  of codes are. Accumulators of 31 bits times 31-bit multipliers keep 53 of 62 bits: a code can differ only
  where the exact value lies within 2^−36 of a rounding edge and not on it.
- ``LimbLanes`` for OpenVINO, whose CPU knows neither float64 nor int64: all factors in limbs of 10 bits, so
  that every product and sum is a whole number below 2^24, which float32 holds; carries by ``Floor``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qbayes.errors import BadInput
from qbayes.integer.onnx.graph import Graph

LIMB_BITS = 10
_BASE = 1 << LIMB_BITS
FLOAT32_EXACT = 1 << 24


@dataclass(frozen=True, eq=False)
class Part:
    """A tensor of whole numbers up to ±``largest`` in lanes, and what one of them is worth."""

    tensor: str
    largest: int
    worth: int = 1


@dataclass(frozen=True, eq=False)
class Term:
    """Whole numbers in lanes, ``Σ worth · part``, and their multipliers (integers of any size)."""

    parts: tuple[Part, ...]
    multiplier: np.ndarray


def integers(numbers: Any) -> np.ndarray:
    """Integers without a width: Python's own in an array of objects."""
    return np.asarray(numbers.tolist() if hasattr(numbers, "tolist") else numbers, dtype=object)


class Lanes(ABC):
    """The floating-point numbers that hold whole ones in a dialect."""

    dtype: type[np.floating[Any]]
    # functions of few codes are read from tables of up to so many entries, where that is less work.
    most_entries: int = 0

    @abstractmethod
    def term(self, g: Graph, parts: Sequence[Part], multiplier: np.ndarray) -> Term:
        """``m Σ worth · part``, with parts that ``round`` can multiply."""

    @abstractmethod
    def round(
        self, g: Graph, terms: Sequence[Term], shift: np.ndarray, offset: np.ndarray | None = None
    ) -> str:
        """``round((Σ m t + offset) / 2^s)`` as whole numbers in lanes."""

    def of(self, g: Graph, tensor: str) -> str:
        """Codes in lanes."""
        return g.cast(tensor, self.dtype)

    def index(self, g: Graph, tensor: str) -> str:
        """Codes as int32, to look up tables."""
        return g.cast(tensor, np.int32)

    def number(self, g: Graph, value: float) -> str:
        return g.constant(np.asarray(value, self.dtype))

    def codes(self, g: Graph, steps: str, zero: int, low: int, high: int, dtype: Any) -> str:
        """``clamp(steps + zero, low, high)`` in the type of the codes."""
        moved = g.node("Add", steps, self.number(g, zero)) if zero else steps
        return g.cast(self.clip(g, moved, low, high), dtype)

    def clip(self, g: Graph, tensor: str, low: int, high: int) -> str:
        return g.node("Clip", tensor, self.number(g, low), self.number(g, high))


class Float64Lanes(Lanes):
    """Whole numbers in float64."""

    dtype = np.float64

    def term(self, g: Graph, parts: Sequence[Part], multiplier: np.ndarray) -> Term:
        return Term(tuple(parts), multiplier)

    def round(
        self, g: Graph, terms: Sequence[Term], shift: np.ndarray, offset: np.ndarray | None = None
    ) -> str:
        scale = np.ldexp(1.0, -shift.astype(np.int64))
        total = add_up(g, [self._product(g, term, scale) for term in terms])
        if offset is not None and np.any(offset != 0):
            total = g.node("Add", total, g.constant(offset.astype(np.float64) * scale))
        return g.node("Round", total)

    def _product(self, g: Graph, term: Term, scale: np.ndarray) -> str:
        parts = [
            part.tensor if part.worth == 1 else g.node("Mul", part.tensor, self.number(g, part.worth))
            for part in term.parts
        ]
        factor = term.multiplier.astype(np.float64) * scale
        return g.node("Mul", add_up(g, parts), g.constant(factor))


class LimbLanes(Lanes):
    """Whole numbers in float32, products by limbs."""

    dtype = np.float32
    most_entries = 1 << 17

    def of(self, g: Graph, tensor: str) -> str:
        """Codes in lanes; the rounding keeps OpenVINO from moving scales of quantisers past it."""
        return g.node("Round", g.cast(tensor, self.dtype))

    def index(self, g: Graph, tensor: str) -> str:
        return g.cast(self.of(g, tensor), np.int32)

    def term(self, g: Graph, parts: Sequence[Part], multiplier: np.ndarray) -> Term:
        """The parts as limbs, each below 2^10 but for the highest."""
        columns: dict[int, list[Part]] = {}
        for part in parts:
            for at, digit in enumerate(self._digits(g, part)):
                columns.setdefault(at, []).append(digit)
        limbs: list[Part] = []
        carry: list[Part] = []
        at = 0
        while at in columns or carry:
            here = [*columns.get(at, []), *carry]
            largest = sum(digit.largest * digit.worth for digit in here)
            _require_exact(largest)
            total = Part(add_up(g, [self._worth(g, digit) for digit in here]), largest)
            last = at + 1 not in columns and largest <= 2 * _BASE
            upper, lower = (None, total) if last else self._split(g, total)
            limbs.append(Part(lower.tensor, lower.largest, _BASE**at))
            carry = [] if upper is None else [upper]
            at += 1
        return Term(tuple(limbs), multiplier)

    def round(
        self, g: Graph, terms: Sequence[Term], shift: np.ndarray, offset: np.ndarray | None = None
    ) -> str:
        places = -(-int(shift.max()) // LIMB_BITS)
        # one shift for all channels, at the edge of a limb.
        factor = integers(1) << (places * LIMB_BITS - shift)
        columns: dict[int, list[Part]] = {}
        for term in terms:
            for part in term.parts:
                for at, limb in _limbs(term.multiplier * factor * part.worth):
                    most = part.largest * int(np.abs(limb).max())
                    product = Part(g.node("Mul", part.tensor, g.constant(limb)), most)
                    columns.setdefault(at, []).append(product)
        fixed = {} if offset is None else dict(_limbs(offset * factor))
        if not columns:  # multipliers of 0: what is left has the shape of the tensor all the same
            columns[0] = [Part(g.node("Mul", terms[0].parts[0].tensor, self.number(g, 0)), 0)]
        sums: dict[int, str] = {}
        for at in {*columns, *fixed}:
            products = columns.get(at, [])
            largest = sum(part.largest for part in products)
            largest += int(np.abs(fixed[at]).max()) if at in fixed else 0
            # the carry that comes from below is less than 2^24 / 2^10 + 1.
            _require_exact(largest + FLOAT32_EXACT // _BASE + 1)
            # without a node between them OpenVINO makes (x + c / a) a of x a + c, which is not exact.
            parts = [g.node("Round", add_up(g, [part.tensor for part in products]))] if products else []
            sums[at] = add_up(g, [*parts, *([g.constant(fixed[at])] if at in fixed else [])])
        return self._carry(g, sums, places)

    def _digits(self, g: Graph, part: Part) -> list[Part]:
        found: list[Part] = []
        while part.largest > _BASE:
            upper, lower = self._split(g, part)
            found.append(Part(lower.tensor, lower.largest, part.worth))
            part = Part(upper.tensor, upper.largest, part.worth)
        return [*found, part]

    def _worth(self, g: Graph, part: Part) -> str:
        return part.tensor if part.worth == 1 else g.node("Mul", part.tensor, self.number(g, part.worth))

    def _split(self, g: Graph, part: Part) -> tuple[Part, Part]:
        """``(⌊t / 2^10⌋, t mod 2^10)``."""
        upper, lower = self._divide(g, part.tensor)
        return Part(upper, part.largest // _BASE + 1), Part(lower, _BASE - 1)

    def _divide(self, g: Graph, tensor: str) -> tuple[str, str]:
        upper = g.node("Floor", g.node("Mul", tensor, self.number(g, 1 / _BASE)))
        return upper, g.node("Sub", tensor, g.node("Mul", upper, self.number(g, _BASE)))

    def _carry(self, g: Graph, sums: dict[int, str], places: int) -> str:
        """The limbs from ``places`` on, rounded by those below."""
        carry: list[str] = []
        rests: list[str] = []
        for at in range(places):
            here = [*([sums[at]] if at in sums else []), *carry]
            if here:
                upper, rest = self._divide(g, add_up(g, here))
                carry = [upper]
                rests.append(rest)
        quotient = add_up(g, [*self._above(g, sums, places), *carry])
        return g.node("Add", quotient, self._up(g, quotient, rests)) if rests else quotient

    def _above(self, g: Graph, sums: dict[int, str], places: int) -> list[str]:
        """``Σ sums_at 2^(10 (at − places))``, from the highest limb down.

        Limbs of both signs cancel: one after the other they stay near the quotient, and worth 2^20 or 2^30
        each they would leave 2^24. The rounding keeps OpenVINO from doing that all the same.
        """
        highest = max(sums, default=0)
        total: str | None = None
        for at in range(highest, places - 1, -1):
            if total is not None:
                total = g.node("Mul", g.node("Round", total), self.number(g, _BASE))
            here = [*([] if total is None else [total]), *([sums[at]] if at in sums else [])]
            total = add_up(g, here) if here else None
        return [] if total is None else [total]

    def _up(self, g: Graph, quotient: str, rests: Sequence[str]) -> str:
        """1 where the rest is above a half, or is a half and the quotient is odd.

        ``top − 2^9`` is a whole number: a half for what lies beneath it, and a quarter for an odd quotient,
        decide only where it is 0.
        """
        top = g.node("Sub", rests[-1], self.number(g, _BASE // 2))
        even = g.node("Mul", g.node("Floor", g.node("Mul", quotient, self.number(g, 0.5))), self.number(g, 2))
        odd = g.node("Mul", g.node("Sub", quotient, even), self.number(g, 0.25))
        key = g.node("Add", top, odd)
        if len(rests) > 1:
            below = g.node("Min", add_up(g, rests[:-1]), self.number(g, 1))
            key = g.node("Add", key, g.node("Mul", below, self.number(g, 0.5)))
        return self.clip(g, g.node("Ceil", key), 0, 1)


def add_up(g: Graph, parts: Sequence[str]) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = g.node("Add", total, part)
    return total


def _require_exact(largest: int) -> None:
    if largest >= FLOAT32_EXACT:
        raise BadInput(
            "sums of limbs must stay below 2^24 for float32 to hold them",
            f"up to {largest}",
            "export in the dialect qoperator, or give the layer fewer inputs",
        )


def _limbs(numbers: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """``n = Σ limb_l 2^(10 l)``: the places and signed limbs that are not 0 everywhere."""
    rest, sign = np.abs(numbers), np.sign(numbers)
    found: list[tuple[int, np.ndarray]] = []
    at = 0
    while np.any(rest != 0):
        limb = np.asarray(sign * (rest % _BASE))
        if np.any(limb != 0):
            found.append((at, limb.astype(np.float32)))
        rest, at = rest // _BASE, at + 1
    return found
