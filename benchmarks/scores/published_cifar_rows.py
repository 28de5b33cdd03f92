"""The rows of CIFAR-10's two studies, apart by what was asked of them, and differences with intervals."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from published_numbers import METHODS, NONE, Lines, Missing, Rows, Studies, signed
from scipy.special import ndtri

from qbayes.lab.analysis.frame import Frame, Row
from qbayes.lab.analysis.intervals import LEVEL, Unit, estimate
from qbayes.lab.analysis.pairs import Pair, is_control, is_float, score
from qbayes.lab.analysis.run_groups import plain_scheme
from qbayes.lab.study.plan.result_row import identity
from qbayes.lab.study.spec.sections import CONTROL
from qbayes.lab.study.spec.study import Study
from qbayes.metrics.row_errors import ROW_ERROR

EXACT = "paper, mask=exact"
MIXED = "default, mixed=bytes"
# fewer seeds say less of their spread than the test rows say of theirs.
FEWEST_SEEDS = 3
NOT_RUN = "Not run yet."
# marks a row whose runs were calibrated because the study trains none there.
ONLY_CALIBRATED = "only_calibrated"


@dataclass(frozen=True)
class Network:
    """A study of the page: its network in words, and how the paper's rows in it are called."""

    study: str
    words: str

    @property
    def papers(self) -> str:
        return f"{self.study}-paper"


TINY = Network("cifar10-tiny", "ResNet-8")
SLIM = Network("cifar10", "slim ResNet-18")
NETWORKS = (TINY, SLIM)


class Held:
    """The rows of one study: ours, ours with what was only calibrated, the paper's scheme, the control.

    ``folder`` is where its table lies, with those of hours and speed.
    """

    def __init__(self, network: Network, held: Rows) -> None:
        self.network, self.all, self.frame = network, held, held.frame
        self.folder = Path()

    @classmethod
    def of(cls, studies: Studies, network: Network) -> "Held":
        """Of a study that is there and has begun; else ``Missing``."""
        found = cls(network, studies[network.study])
        if not found.frame.rows:
            raise Missing(f"no run of {network.study} is done")
        found.folder = studies.folder
        return found

    @cached_property
    def ours(self) -> Rows:
        """By our scheme and recipe, and the control."""
        return Rows(_chosen(self.frame, lambda row: not _is_papers(row)))

    @cached_property
    def best(self) -> Rows:
        """As ``ours``, fine-tuned; at bits where a method is only calibrated, that (and marked so)."""
        own = [row for row in self.ours.frame.rows if row["training"] != "labels" and not is_control(row)]
        trained = {_condition(row) for row in own if row["training"] == "trained"}
        rows = [
            {**row, "training": "trained", ONLY_CALIBRATED: True} if row["training"] == "calibrated" else row
            for row in own
            if row["training"] != "calibrated" or _condition(row) not in trained
        ]
        return Rows(replace(self.ours.frame, rows=tuple(rows)))

    @cached_property
    def papers(self) -> Rows:
        """By the paper's scheme; a scheme that says what it does anyway is called as if it did not."""
        found = _chosen(self.frame, lambda row: is_float(row) or _is_papers(row))
        rows, failed = (
            tuple({**row, "scheme": plain_scheme(str(row["scheme"]))} for row in some)
            for some in (found.rows, found.failed)
        )
        return Rows(replace(found, rows=rows, failed=failed))

    @property
    def methods(self) -> list[str]:
        return self.all.present("method", METHODS)

    def controls(self, **columns: object) -> list[Pair]:
        """The float networks with the fine-tuning of quantised ones, beside the float ones they come from."""
        floats = {str(row["float"]): row for row in self.all.floats()}
        rows = self.all.done(precision=CONTROL, **columns)
        return [Pair(row, floats[str(row["float"])]) for row in rows if str(row["float"]) in floats]

    def seeds(self, **columns: object) -> int:
        return len({row["seed"] for row in self.all.done(**columns)})

    def section(
        self, method: str, name: str, precision: str = "float", training: str = "float"
    ) -> Mapping[str, Any]:
        """A section of a run as the study's own file has it, by what a row says of the run."""
        found = self._sections.get((method, precision, training))
        if found is None or not isinstance(found[name], Mapping):
            raise Missing(f"{self.frame.name} plans no {method} at {precision}, {training}, with a {name}")
        return found[name]

    @cached_property
    def _sections(self) -> Mapping[tuple[str, str, str], Mapping[str, Any]]:
        study = Study.from_content(self.frame.header["spec"], self.frame.name)
        runs = ((identity(point.run), point.run) for point in study.points())
        return {(row["method"], row["precision"], row["training"]): run for row, run in runs}


def each(table: Callable[[Held], Lines], network: Network) -> Callable[[Studies], Lines]:
    """The table of one network; where its rows are not there yet, the page says so."""

    def made(studies: Studies) -> Lines:
        return or_not_run(lambda: table(Held.of(studies, network)))

    return made


def or_not_run(make: Callable[[], Lines], words: str = "") -> Lines:
    """What ``make`` gives; without its rows that they are not there yet, in a list of ``words``."""
    try:
        return make()
    except Missing:
        return [f"- **{words}**: not run yet." if words else NOT_RUN]


@dataclass(frozen=True)
class Change:
    """A mean difference; ``low`` and ``high`` end its 95 % interval over ``over``, if there is one."""

    value: float
    low: float | None
    high: float | None
    over: str

    def text(self, digits: int) -> str:
        if math.isnan(self.value):
            return NONE
        if self.low is None or self.high is None:
            return signed(self.value, digits)
        return f"{signed(self.value, digits)} [{signed(self.low, digits)}, {signed(self.high, digits)}]"


def change(pairs: Sequence[Pair], metric: str, factor: float = 1.0) -> Change:
    """Quantised less float: over the seeds where there are three, else over the test rows."""
    both = [pair for pair in pairs if pair.has(metric)]
    found = {pair.unit: factor * (score(pair.quantised, metric) - score(pair.float, metric)) for pair in both}
    if len(found) >= FEWEST_SEEDS:
        return over_seeds(found)
    # of a run that is not float it is that of the difference to its float run.
    errors = [pair.quantised.get(f"{ROW_ERROR}{metric}") for pair in both]
    known = [abs(factor) * float(error) for error in errors if error is not None]
    if not both or len(known) < len(both):
        return over_seeds(found)
    value = mean(found.values())
    if not math.isfinite(value):
        return Change(value, None, None, "")
    # the rows of all seeds are the same: their errors add up at most.
    half = float(ndtri((1 + LEVEL) / 2)) * mean(known)
    return Change(value, value - half, value + half, "rows")


def over_seeds(values: Mapping[Unit, float]) -> Change:
    """The mean of one number a seed, with Student's interval where there are two seeds."""
    found = estimate(values)
    return Change(found.value, found.low, found.high, "seeds" if found.low is not None else "")


def apart(one: Iterable[Pair], other: Iterable[Pair], metric: str, factor: float = 1.0) -> Change:
    """One way of quantising less another, paired by seed."""
    base = {pair.unit: score(pair.quantised, metric) for pair in other}
    return over_seeds(
        {
            pair.unit: factor * (score(pair.quantised, metric) - base[pair.unit])
            for pair in one
            if pair.unit in base
        }
    )


def named_once(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Rows whose first cell is left empty where it is that of the row above."""
    listed = list(rows)
    above = ["", *(row[0] for row in listed)]
    return [
        ["" if row[0] == before else row[0], *row[1:]] for row, before in zip(listed, above, strict=False)
    ]


def legend_of(changes: Iterable[Change]) -> str:
    """What the intervals of a table are over, in words."""
    kinds = {one.over for one in changes if not math.isnan(one.value)}
    words = {
        "seeds": "over the seeds (Student's t)",
        "rows": "over the test rows (one training: the luck of its seed is not in them)",
    }
    named = [words[kind] for kind in words if kind in kinds]
    said = f"Intervals are of 95 %, {' or '.join(named)}." if named else ""
    alone = "A difference without an interval is that of a single run." if "" in kinds else ""
    return " ".join(filter(None, (said, alone)))


def _is_papers(row: Row) -> bool:
    return str(row["scheme"]).partition(",")[0] == "paper"


def _condition(row: Row) -> tuple[object, ...]:
    # whatever the seed: a run that is still to come must not be stood in for by a calibrated one.
    return tuple(row.get(name) for name in ("method", "precision", "scheme"))


def _chosen(frame: Frame, wanted: Callable[[Row], bool]) -> Frame:
    rows, failed = (tuple(filter(wanted, some)) for some in (frame.rows, frame.failed))
    return replace(frame, rows=rows, failed=failed)
