"""What bits cost in regression, over several data sets: the mean, the median and the worst set together."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from published_numbers import METHODS, NONE, Rows, change, interval, number, ratio, signed

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.intervals import Estimate
from qbayes.lab.analysis.pairs import Pair
from qbayes.lab.study.spec.sections import CONTROL

Measure = Callable[[Sequence[Pair]], Estimate]
FIRST_LAYER = "overrides={'hidden.0': {'weight': 8}}"
RMSE, NLL, COVERAGE = "RMSE, %", "NLL, nat", "coverage, points"
# how a change of each score is measured, and its digits.
MEASURES: Mapping[str, tuple[int, Measure]] = {
    RMSE: (1, lambda pairs: ratio(pairs, "rmse")),
    NLL: (3, lambda pairs: change(pairs, "nll")),
    "CRPS, %": (1, lambda pairs: ratio(pairs, "crps")),
    COVERAGE: (1, lambda pairs: change(pairs, "coverage_90", 100)),
}
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Cost:
    """What something costs on each set, with intervals over its splits.

    ``either`` says that a change in either direction is a loss.
    """

    sets: Mapping[str, Estimate]
    either: bool = False

    @property
    def mean(self) -> Estimate:
        return mean_of(list(self.sets.values()))

    @property
    def median(self) -> float:
        return median(one.value for one in self.sets.values())

    @property
    def worst(self) -> tuple[float, str]:
        """The largest loss, and the set."""
        changes = [(one.value, task) for task, one in self.sets.items()]
        return max(changes, key=lambda one: abs(one[0]) if self.either else one[0])

    def text(self, digits: int) -> str:
        """``median / mean / worst``."""
        return " / ".join(signed(value, digits) for value in (self.median, self.mean.value, self.worst[0]))

    def cells(self, digits: int) -> list[str]:
        """The median, the mean with its interval, and the worst set by name."""
        value, task = self.worst
        return [
            signed(self.median, digits),
            interval(self.mean, digits),
            f"{signed(value, digits)} {short(task)}",
        ]


def cost_of(pairs: Mapping[str, Sequence[Pair]], measure: str) -> Cost:
    """What the pairs of each set lost."""
    _, measured = MEASURES[measure]
    sets = {task: measured(some) for task, some in pairs.items()}
    return Cost(sets, either=measure == COVERAGE)


def by_set(ours: Rows, **columns: object) -> dict[str, list[Pair]] | None:
    """The pairs of each set; None where a set has none."""
    found = {task: ours.pairs(task=task, **columns) for task in ours.tasks()}  # pyright: ignore[reportArgumentType]
    return found if found and all(found.values()) else None


def control_of(ours: Rows, bits: str, method: str) -> dict[str, list[Pair]] | None:
    """The float network with the fine-tuning of a width, beside the float network as it was trained."""
    floats = {(row["float"], row.get("draws")): row for row in ours.floats(method=method)}
    found: dict[str, list[Pair]] = {task: [] for task in ours.tasks()}
    for row in ours.done(precision=CONTROL, method=method):
        before = floats.get((row["float"], row.get("draws")))
        if before is not None and str(row["scheme"]).partition(",")[0] == f"as {bits}":
            found[row["task"]].append(Pair(row, before))
    return found if found and all(found.values()) else None


def has_controls(ours: Rows) -> bool:
    return bool(ours.done(precision=CONTROL))


def of_control(ours: Rows) -> str:
    """What a legend says of the control."""
    what = "Control: the float network with the same fine-tuning and no quantiser"
    return f"{what}." if has_controls(ours) else f"{what}; it has {NOT_RUN}."


def control_text(ours: Rows, bits: str, method: str, measure: str) -> str:
    """The control's ``median / mean / worst``; nothing where this width has none."""
    pairs = control_of(ours, bits, method)
    return NONE if pairs is None else cost_of(pairs, measure).text(MEASURES[measure][0])


def mean_of(found: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates: ``se² = Σ se_i² / n²``, with the fewest degrees of freedom."""
    count = len(found)
    error = math.sqrt(sum(one.se_runs**2 for one in found)) / count
    value = sum(one.value for one in found) / count
    return Estimate(value, error, min(one.freedom for one in found), sum(one.runs for one in found))


def bytes_of(pairs: Mapping[str, Sequence[Pair]]) -> dict[str, float]:
    """The mean size of the programs of each set."""
    return {task: _mean([float(pair.quantised["bytes"]) for pair in some]) for task, some in pairs.items()}


def bits_of_weights(ours: Rows, method: str, bits: str) -> float | None:
    """The mean bits of a weight where the first layer has eight: what the bytes say, set by set.

    Bytes that differ are weights alone: the size lies between those of W8 and of few bits as the bits do.
    """
    few, wide = by_set(ours, method=method, precision=bits), by_set(ours, method=method, precision="W8A8")
    mixed = by_set(ours, method=method, precision=bits, scheme=first_layer_schemes(ours))
    if few is None or wide is None or mixed is None:
        return None
    least = float(next(iter(few.values()))[0].quantised["weight"])
    narrow, broad, held = bytes_of(few), bytes_of(wide), bytes_of(mixed)
    shares = [(held[task] - narrow[task]) / (broad[task] - narrow[task]) for task in held]
    return least + (8 - least) * _mean(shares)


def first_layer_schemes(ours: Rows) -> tuple[str, ...]:
    """The schemes that differ from ours by eight-bit weights in the first layer."""
    return tuple(name for name in map(str, ours.frame.values("scheme")) if FIRST_LAYER in name)


def heads(ours: Rows) -> list[str]:
    return [short(task) for task in ours.tasks()]


def methods_of(ours: Rows) -> list[str]:
    return ours.present("method", METHODS)


def short(task: str) -> str:
    return task.partition("/")[2].capitalize()


def thousands(value: float) -> str:
    return number(value, 0) if not math.isfinite(value) else f"{value:,.0f}"


def chosen(rows: Sequence[Row]) -> bool:
    """Whether held-out rows chose the hyper-parameters of these runs, split by split."""
    return bool(rows) and all(row.get("chosen") is not None for row in rows)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
