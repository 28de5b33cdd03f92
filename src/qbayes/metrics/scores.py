"""``Scores``: what ``evaluate`` measured, as one value; ``METRICS``: how each number is shown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qbayes.errors import BadInput, unknown_name

Numbers = dict[str, float]
# the place of the scores of rows that are shifted elsewhere.
UNSHIFTED = "unshifted"
# what is behind these is no place where a score was taken.
_WHOLE = ("confusion/", "spread/", "deviation/", "row_error/")
# JSON has no such numbers: the NLL of a label that was given probability 0 is written as "inf".
# Null is what older stores hold for any of them: which one it was is lost.
NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan, None: math.nan}


@dataclass(frozen=True)
class Metric:
    """How tables show a score: ``better`` is "neither" where neither direction is a merit by itself."""

    label: str
    unit: str
    better: Literal["lower", "higher", "neither"]
    format: str = ".4f"

    def show(self, value: float) -> str:
        return format(value, self.format)


METRICS: dict[str, Metric] = {
    "error": Metric("error", "share", "lower", ".2%"),
    "nll": Metric("NLL", "nat", "lower"),
    "brier": Metric("Brier", "", "lower"),
    "ece": Metric("ECE", "share", "lower", ".2%"),
    "ece_adaptive": Metric("ECE, equal mass", "share", "lower", ".2%"),
    # Ferianc et al. (2021) report the first of most runs, the second of some quantised ones.
    "ece_per_batch": Metric("ECE, per batch (inflated)", "share", "lower", ".2%"),
    "ece_per_batch_1024": Metric("ECE, per batch of 1024 (inflated)", "share", "lower", ".2%"),
    "entropy": Metric("entropy", "nat", "neither"),
    "mutual_information": Metric("mutual information", "nat", "neither"),
    "rmse": Metric("RMSE", "target", "lower", ".4g"),
    "nll_moment_matched": Metric("NLL, moment-matched", "nat", "lower"),
    "crps": Metric("CRPS", "target", "lower", ".4g"),
    "coverage_90": Metric("90 % coverage", "share", "neither", ".1%"),
    "interval_width_90": Metric("90 % interval width", "target", "lower", ".4g"),
    "confusion/entropy": Metric("entropy, confusion", "nat", "higher"),
    "confusion/mutual_information": Metric("mutual information, confusion", "nat", "higher"),
    "confusion/auroc": Metric("AUROC", "", "higher"),
    "confusion/aupr": Metric("AUPR", "", "higher"),
    "confusion/fpr95": Metric("FPR95", "share", "lower", ".2%"),
    "confusion/auroc_mutual_information": Metric("AUROC, mutual information", "", "higher"),
}


def metric(name: str) -> Metric:
    """How to show a score of ``Scores.flat()``: ``error``, ``rotation/3/error``, ``confusion/auroc``."""
    if not is_score(name):
        raise unknown_name("metric", name, METRICS)
    return METRICS[_key(name)]


def is_score(name: str) -> bool:
    """Whether ``Scores.flat()`` may have a number of this name."""
    return _key(name) in METRICS


def _key(name: str) -> str:
    """What a number is of, without where: ``spread/nll`` is no score, but of a layer called so."""
    return name if name.startswith(_WHOLE) else name.rsplit("/", 1)[-1]


def to_json_numbers(numbers: Mapping[str, float]) -> dict[str, float | str]:
    """The numbers as JSON can hold them: "inf", "-inf" and "nan" stand for those that are not finite."""
    return {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()}


def with_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of results as it was written, with its scores as numbers again."""
    words = {name for name, value in row.items() if value is None or isinstance(value, str)}
    scores = {name: NOT_FINITE[row[name]] for name in words if is_score(name) and row[name] in NOT_FINITE}
    return {**row, **scores}


@dataclass(frozen=True)
class Scores:
    """Scores of one posterior on one task: shares from 0 to 1, nats, and the units of the targets.

    Example:
        >>> import qbayes as qb
        >>> scores = qb.Scores(clean={"error": 0.1}, shifted={"rotation": {1: {"error": 0.2}}})
        >>> scores.flat()
        {'error': 0.1, 'rotation/1/error': 0.2}

    Attributes:
        clean: Scores of the split as it is, by metric.
        shifted: Scores by shift, level (1 … 5) and metric; none by default.
        confusion: Scores of telling test from confusion data; none by default.
        meta: What was evaluated and how: task, split, rows, draws, seed, versions, …
        unshifted: Scores, without a shift, of those rows that were shifted. It is there where not all rows
            were.
    """

    clean: Numbers
    shifted: dict[str, dict[int, Numbers]] = field(default_factory=dict[str, dict[int, Numbers]])
    confusion: Numbers = field(default_factory=dict[str, float])
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    unshifted: Numbers = field(default_factory=dict[str, float])

    def flat(self) -> Numbers:
        """One name a number: ``error``, ``rotation/3/error``, ``unshifted/error``, ``confusion/auroc``."""
        shifted = {
            f"{shift}/{level}/{name}": value
            for shift, levels in self.shifted.items()
            for level, numbers in levels.items()
            for name, value in numbers.items()
        }
        confusion = {f"confusion/{name}": value for name, value in self.confusion.items()}
        unshifted = {f"{UNSHIFTED}/{name}": value for name, value in self.unshifted.items()}
        return self.clean | shifted | unshifted | confusion

    def to_json(self) -> dict[str, Any]:
        """Plain values; "inf", "-inf" and "nan" stand for numbers that are not finite."""
        return {
            "clean": to_json_numbers(self.clean),
            "shifted": {
                shift: {str(level): to_json_numbers(numbers) for level, numbers in levels.items()}
                for shift, levels in self.shifted.items()
            },
            "confusion": to_json_numbers(self.confusion),
            **({"unshifted": to_json_numbers(self.unshifted)} if self.unshifted else {}),
            "meta": self.meta,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Scores":
        """The scores that ``to_json`` described.

        Args:
            data: What ``to_json`` gave.

        Raises:
            BadInput: A part is missing or is no number.
        """
        try:
            return cls(
                clean=_read(data["clean"]),
                shifted={
                    str(shift): {int(level): _read(numbers) for level, numbers in levels.items()}
                    for shift, levels in data["shifted"].items()
                },
                confusion=_read(data["confusion"]),
                meta=dict(data["meta"]),
                unshifted=_read(data.get("unshifted", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as cause:
            raise BadInput(
                "scores must hold 'clean', 'shifted', 'confusion' and 'meta', with numbers by name",
                f"{type(cause).__name__}: {cause}",
                "give what Scores.to_json() wrote",
            ) from cause


def _read(numbers: Mapping[str, Any]) -> Numbers:
    return {str(name): float(value) for name, value in numbers.items()}
