"""Sweeps over bits: one width varies and the other is fixed, or both are equal; float stands on the left."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import FLOAT, Chart, Figure
from qbayes.lab.report.charts.groups import Group, groups_of
from qbayes.lab.report.charts.points import Unit, lines, needs_log, points_at, unit

# What the paper draws, in its order, and the mutual information; then what else was measured.
MAIN = (
    "error", "rmse", "ece", "nll", "crps", "coverage_90", "entropy", "confusion/entropy",
    "mutual_information",
)  # fmt: skip
MORE = (
    "brier", "ece_adaptive", "ece_per_batch", "confusion/mutual_information", "nll_moment_matched",
    "interval_width_90",
)  # fmt: skip
# On test data, what regression calls entropy is a density's: it may be negative and has no ceiling.
NAMES = {"entropy": "entropy, test data", "confusion/entropy": "entropy, confusion data"}


@dataclass(frozen=True)
class Sweep:
    """Precisions by the width that varies; ``fixed`` says in words what does not ("" for equal widths)."""

    x_label: str
    fixed: str
    precisions: Mapping[int, str]

    @property
    def about(self) -> str:
        return f"{self.x_label} ({self.fixed})" if self.fixed else self.x_label


def over_activations(group: Group) -> list[Sweep]:
    return _with_fixed(group, 1, "activation bits", "weights of {} bits")


def over_weights(group: Group) -> list[Sweep]:
    return _with_fixed(group, 0, "weight bits", "activations of {} bits")


def over_equal(group: Group) -> list[Sweep]:
    equal = {weight: name for name, (weight, activation) in group.bits.items() if weight == activation}
    return [Sweep("bits of weights and activations", "", equal)] if len(equal) > 1 else []


SWEEPS = {"activation bits": over_activations, "weight bits": over_weights, "equal bits": over_equal}


class SweepFigure(Figure):
    """Every score over one kind of sweep, one line a method."""

    caption = "Means over seeds and folds; whiskers: lowest and highest seed. Dotted: the level of float."
    kind: ClassVar[str]

    def draw(self, frame: Frame) -> list[Chart]:
        """Charts of every metric, for each comparable group of rows."""
        charts: list[Chart] = []
        for group in groups_of(frame):
            sweeps = SWEEPS[self.kind](group)
            for sweep in sweeps:
                fixed = {"fixed": sweep.fixed} if len(sweeps) > 1 else {}
                for metric in (*MAIN, *MORE):
                    choices = {**group.choices, **fixed, "metric": score_unit(metric).label}
                    charts += sweep_chart(self, group, sweep, metric, choices, main=metric in MAIN)
        return charts


def score_unit(metric: str) -> Unit:
    """A score on an axis; both entropies say whose they are."""
    name = NAMES.get(metric)
    return unit(metric) if name is None else Unit(name, f"{name}, nat", 1.0)


def sweep_chart(
    figure: Figure, group: Group, sweep: Sweep, metric: str, choices: Mapping[str, str], *, main: bool = True
) -> list[Chart]:
    """One metric over one sweep: a line a method with the spread over seeds. Empty without data."""
    widths = sorted(sweep.precisions, reverse=True)
    named = {FLOAT: FLOAT, **{str(width): sweep.precisions[width] for width in widths}}
    points = {
        method: points_at({x: found[name] for x, name in named.items() if name in found}, metric)
        for method, found in group.methods.items()
    }
    series, note = lines(points, keep=lambda made: bool(set(made.places) - {FLOAT}))
    shown = score_unit(metric)
    return figure.chart(
        choices,
        series,
        title=f"{shown.label} over {sweep.about}, {group.task}",
        x_label=sweep.about,
        y_label=shown.axis,
        kind="lines",
        log_y=needs_log(series),
        note=note,
        categories=tuple(named),
        main=main,
    )


def _with_fixed(group: Group, moving: int, x_label: str, words: str) -> list[Sweep]:
    """Sweeps of one width, for each value of the other that has three points; else the longest of them."""
    found: dict[int, dict[int, str]] = {}
    for name, widths in group.bits.items():
        found.setdefault(widths[1 - moving], {})[widths[moving]] = name
    most = max(map(len, found.values()), default=0)
    if most < 2:
        return []
    longest = {max(fixed for fixed, widths in found.items() if len(widths) == most)}
    kept = {fixed for fixed, widths in found.items() if len(widths) >= 3} or longest
    # the widest first: it is the paper's.
    return [Sweep(x_label, words.format(fixed), found[fixed]) for fixed in sorted(kept, reverse=True)]
