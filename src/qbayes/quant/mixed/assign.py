"""``assign_bits``: a number of bits for every layer, within a budget of bytes or of bit-operations.

The sensitivity of every layer is measured (``quant.mixed.sensitivity``), its cost is counted on programs
(``quant.mixed.costs``), and the least sum of sensitivities that fits is found (``quant.mixed.allocate``).
Bytes depend on weights alone, so with a budget of bytes activations keep their bits; bit-operations are
weight × activation, and both are assigned.
"""

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from qbayes.device import choose_device
from qbayes.errors import BadInput
from qbayes.integer.arithmetic.grid import FEWEST_BITS, MOST_BITS
from qbayes.posterior.network import NetworkPosterior
from qbayes.quant.mixed.costs import KINDS
from qbayes.quant.mixed.measurement import Measurement
from qbayes.quant.mixed.places import ACTIVATION, WEIGHT, Part, Place
from qbayes.quant.mixed.sensitivity import Sensitivity
from qbayes.quant.precision import Precision
from qbayes.tasks import TaskLike, resolve_task

WIDTHS = (2, 3, 4, 5, 6, 7, 8)
ROWS = 512
DRAWS = 8


@dataclass(frozen=True)
class BitBudget:
    """The most bytes or bit-operations that a network may need, or both.

    Each is a number, or a ``Precision`` whose cost is meant.

    Example:
        >>> import qbayes as qb
        >>> budget = qb.BitBudget(bytes=qb.Precision(weight=4, activation=4))
        >>> list(budget.limits)
        ['bytes']

    Attributes:
        bytes: The limit of all packed constants of all members, in bytes; None, no limit, by default.
        bit_operations: The limit for one row and one draw, in bits of weights × bits of activations summed
            over multiplications; None, no limit, by default. At least one of the two must be given.
    """

    bytes: float | Precision | None = None
    bit_operations: float | Precision | None = None

    def __post_init__(self) -> None:
        if self.bytes is None and self.bit_operations is None:
            raise BadInput(
                "a budget of bits must limit something",
                "neither bytes nor bit_operations",
                "give one: qb.BitBudget(bytes=100_000), or bytes=qb.Precision(weight=4, activation=4)",
            )
        for kind in KINDS:
            limit = getattr(self, kind)
            number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if limit is not None and not isinstance(limit, Precision) and not (number and 0 < limit < 1e18):
                raise BadInput(
                    f"{kind} must be a number above 0, or a Precision whose cost is meant",
                    f"{limit!r:.200}",
                    f"try {kind}=qb.Precision(weight=4, activation=4)",
                )

    @property
    def limits(self) -> dict[str, float | Precision]:
        """What is limited, by kind."""
        return {kind: limit for kind in KINDS if (limit := getattr(self, kind)) is not None}


@dataclass(frozen=True)
class Assignment:
    """Bits by place, what they cost, and the measurements that they were chosen by; ``print`` shows a table.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> budget = qb.BitBudget(bytes=20_000)
        >>> assignment = qb.assign_bits(posterior, task, budget, widths=(2, 4, 8), rows=64, draws=2)
        >>> sorted({place.part for place in assignment.bits}), assignment.cost["bytes"] <= 20_000
        (['weight'], True)

    Attributes:
        precision: The precision with these bits as overrides: give it to ``quantize``.
        bits: Bits of each place: the weights of a layer, or the activation behind it.
        cost: What the network needs: ``bytes`` and ``bit_operations``.
        limits: What was allowed, as numbers.
        sensitivities: What rounding each place to each width does to the answers.
    """

    precision: Precision
    bits: Mapping[Place, int]
    cost: Mapping[str, float]
    limits: Mapping[str, float]
    sensitivities: Sequence[Sensitivity] = field(repr=False)

    def __str__(self) -> str:
        layers = dict.fromkeys(place.layer for place in self.bits)
        parts: list[Part] = [
            part for part in (WEIGHT, ACTIVATION) if any(place.part == part for place in self.bits)
        ]
        widest = max(map(len, layers))
        rows = [f"{'layer':{widest}}  {'  '.join(parts)}"]
        for layer in layers:
            bits = [f"{self.bits.get(Place(part, layer), ''):>{len(part)}}" for part in parts]
            rows.append(f"{layer:{widest}}  {'  '.join(bits)}".rstrip())
        spent = (f"{self.cost[kind]:,.0f} of {limit:,.0f} {kind}" for kind, limit in self.limits.items())
        return "\n".join([*rows, ", ".join(spent).replace("_", "-")])


def assign_bits(
    posterior: NetworkPosterior,
    task: TaskLike,
    budget: BitBudget,
    precision: Precision | None = None,
    *,
    widths: Sequence[int] = WIDTHS,
    rows: int = ROWS,
    draws: int = DRAWS,
    doubt: float = 1.0,
    seed: int = 0,
    device: str | torch.device = "auto",
) -> Assignment:
    """Bits for the layers of a float posterior within a budget; quantise with ``assignment.precision``.

    With a budget of bytes alone activations keep their bits. With one of bit-operations both are assigned.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> budget = qb.BitBudget(bytes=qb.Precision(weight=4, activation=4))
        >>> assignment = qb.assign_bits(posterior, task, budget, widths=(2, 4, 8), rows=64, draws=2)
        >>> assignment.cost["bytes"] <= assignment.limits["bytes"]
        True

    Args:
        posterior: A float posterior; it stays as it is.
        task: Its validation rows are measured on, or its training rows where there are none.
        budget: The most bytes, bit-operations or both.
        precision: Says all else: schemes, ranges, the bits of activations where only bytes count, and
            overrides, which stay as they are. By default it is the one that the budget names, or W8A8.
        widths: The numbers of bits to choose from; 2 … 8 by default.
        rows: Rows that are measured on.
        draws: Draws of each row; they are spread over the members.
        doubt: The weight of what becomes of the draws beside what becomes of their mean; 1 by default.
        seed: Key of the draws' noise, and of the choice among training rows.
        device: ``auto`` (CUDA where there is one), ``cpu``, ``cuda``, …

    Returns:
        The bits of every place with the least sensitivity in all that fit the budget.

    Raises:
        BadInput: The budget is below the fewest bits everywhere, or an argument is out of range.
    """
    _check(budget, widths, rows, draws, doubt)
    named = [limit for limit in budget.limits.values() if isinstance(limit, Precision)]
    base = precision or next(iter(named), Precision())
    place = choose_device(device)
    study = Measurement(
        posterior, resolve_task(task), base, tuple(sorted(widths)), "bit_operations" in budget.limits, place
    )
    study.measure(rows, draws, seed)
    limits = {kind: study.limit(kind, limit) for kind, limit in budget.limits.items()}
    bits = study.best(limits, doubt)
    return Assignment(
        with_bits(base, bits), bits, study.costs.total(bits), limits, tuple(study.sensitivities)
    )


def with_bits(precision: Precision, bits: Mapping[Place, int]) -> Precision:
    """The precision with these bits as overrides, after those it has."""
    by_layer: dict[str, dict[str, int | str | None]] = {}
    for place, width in bits.items():
        # a layer's name may hold what a pattern reads as its own signs.
        by_layer.setdefault(glob.escape(place.layer), {})[place.part] = width
    return precision.with_overrides(by_layer)


def _check(budget: BitBudget, widths: Sequence[int], rows: int, draws: int, doubt: float) -> None:
    if not isinstance(budget, BitBudget):
        raise BadInput(
            "the budget must be a BitBudget",
            f"{type(budget).__name__}",
            "write qb.BitBudget(bytes=100_000), or bytes=qb.Precision(weight=4, activation=4)",
        )
    whole = all(isinstance(width, int) and FEWEST_BITS <= width <= MOST_BITS for width in widths)
    if not widths or not whole or len(set(widths)) < len(widths):
        raise BadInput(
            f"widths must be different numbers of bits from {FEWEST_BITS} to {MOST_BITS}",
            f"{widths!r:.200}",
            f"try {WIDTHS}",
        )
    for name, value in (("rows", rows), ("draws", draws)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} must be a whole number of at least 1", f"{value!r}", f"leave {name} out")
    if isinstance(doubt, bool) or not isinstance(doubt, int | float) or not 0 <= doubt < 1e9:
        raise BadInput("doubt must be a weight of at least 0", f"{doubt!r}", "try 1.0")
