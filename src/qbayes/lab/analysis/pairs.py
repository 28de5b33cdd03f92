"""Quantised runs beside the float runs they came from, and their differences with intervals.

A quantised run is paired with the float run of the same ``float`` stage, draws and other options of the
evaluation: same weights before quantisation, same test rows, same noise. Only what bits changed is left.

Caveats say what a study cannot judge although it has numbers. A quantised network was also trained on.
Without a float network that was fine-tuned as long, what the bits did and what the training did are one
difference. Where the two rows of a pair were scored by other code or on another processor, so is what these
did.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from qbayes.lab.analysis.frame import Frame, Row, once_a_frame
from qbayes.lab.analysis.intervals import HELD_OUT, Estimate, Unit, estimate, several_folds
from qbayes.lab.study.spec.sections import CONTROL
from qbayes.lab.study.store.table import evaluation_options, float_key
from qbayes.metrics.row_errors import ROW_ERROR, row_error
from qbayes.metrics.scores import UNSHIFTED
from qbayes.metrics.scores import metric as metric_named
from qbayes.tasks.shifts import LEVELS

# what the two rows of a pair must share, and what it is called.
SHARED = {
    "commit": "commits",
    "processor": "processors",
    "instructions": "sets of instructions",
    "device": "devices",
}
CALIBRATED = "calibrated"


@dataclass(frozen=True)
class Pair:
    """A quantised run and the float run that it came from."""

    quantised: Row
    float: Row

    @cached_property
    def unit(self) -> Unit:
        """What tells the pair from others of its condition."""
        return unit(self.quantised)

    def has(self, metric: str) -> bool:
        """Whether both runs were scored by it, on the same rows."""
        rows = rows_of(metric)
        alike = rows is None or self.quantised.get(rows) == self.float.get(rows)
        return alike and metric in self.quantised and metric in self.float


def rows_of(metric: str) -> str | None:
    """The column with the number of rows that a score is of, where not all may have been scored.

    A choice of as many rows is the same choice. Rows of older studies have no such column: all were scored.
    """
    place, _, name = metric.rpartition("/")
    if not name or not place:
        return None
    if place == "confusion":
        return "ood_rows"
    return "shift_rows" if place == UNSHIFTED or place.partition("/")[0] in LEVELS else None


def is_float(row: Row) -> bool:
    return row.get("precision") == "float"


def is_control(row: Row) -> bool:
    """Whether a run is that of a float network with the fine-tuning of a quantised one."""
    return row.get("precision") == CONTROL


def is_quantised(row: Row) -> bool:
    return not (is_float(row) or is_control(row))


def unit(row: Row) -> Unit:
    """What tells the runs of one condition apart: fold, seed, and options of the evaluation."""
    return row.get("fold"), row.get("seed"), *evaluation_options(row)


@once_a_frame
def paired(frame: Frame) -> list[Pair]:
    """Every quantised row that has a float row, with it, in the order of the rows."""
    floats = {float_key(row): row for row in frame.rows if is_float(row)}
    found = ((row, floats.get(float_key(row))) for row in frame.rows if is_quantised(row))
    return [Pair(row, partner) for row, partner in found if partner is not None]


def difference(frame: Frame, pairs: Sequence[Pair], metric: str, *, relative: bool = False) -> Estimate:
    """Mean of ``quantised − float`` (``relative``: ``quantised / float − 1``) with its interval.

    Splits are corrected for their overlap; runs that share one test set have an error over its rows, see
    ``rows_term``.
    """
    values = differences(pairs, metric, relative=relative)
    rows = None if several_folds(values) else rows_term(frame, pairs, metric, relative=relative)
    return estimate(values, rows, overlap(pairs))


def rows_term(frame: Frame, pairs: Sequence[Pair], metric: str, *, relative: bool = False) -> float | None:
    """The standard error of the mean difference over test rows; None where nothing says it.

    In this order:

    - The same rows are resampled for both sides and all seeds, where details were kept for every run.
    - The rows of results say the error of each run. Seeds share their test rows, so that the mean of their
      errors is an upper bound.
    - An error is a share of the rows, which has a binomial error. Taking both sides for independent makes it
      too large rather than too small, as both err on much the same rows.

    A share of the rows never has an error below that of one row.
    """
    both = [pair for pair in pairs if pair.has(metric)]
    if not both:
        return None
    name = f"rows {metric} {relative} {' '.join(str(pair.quantised['run']) for pair in both)}"
    return frame.once(name, lambda: _rows_term(frame, both, metric, relative))


def _rows_term(frame: Frame, pairs: Sequence[Pair], metric: str, relative: bool) -> float | None:
    is_error = metric.rpartition("/")[2] == "error"
    found = _resample(frame, pairs, metric, relative)
    found = _read_errors(pairs, metric, relative) if found is None else found
    if not is_error:
        return found
    counts = [count for pair in pairs if (count := rows_scored(pair.quantised, metric))]
    if len(counts) < len(pairs):
        return found
    if found is None:
        both = ([binomial(row, metric) or 0.0 for row in (pair.float, pair.quantised)] for pair in pairs)
        found = plain_mean([math.hypot(*errors) for errors in both])
    return max(found, 1 / min(counts))


def _resample(frame: Frame, pairs: Sequence[Pair], metric: str, relative: bool) -> float | None:
    return resample_error(frame, [(pair.float, pair.quantised) for pair in pairs], metric, relative)


def resample_error(
    frame: Frame, runs: Sequence[tuple[Row, Row]], metric: str, relative: bool
) -> float | None:
    """By the same test rows for both runs of each pair; None where not all of them kept their details."""
    sides = [(frame.details(str(one["run"])), frame.details(str(other["run"]))) for one, other in runs]
    if any(one is None or other is None for one, other in sides):
        return None
    return row_error(sides, metric, relative) or None


def _read_errors(pairs: Sequence[Pair], metric: str, relative: bool) -> float | None:
    column = ROW_ERROR + metric
    if not all(column in pair.quantised for pair in pairs):
        return None
    scales = (abs(score(pair.float, metric)) if relative else 1.0 for pair in pairs)
    return plain_mean(
        [float(pair.quantised[column]) / scale for pair, scale in zip(pairs, scales, strict=True) if scale]
    )


def plain_mean(numbers: Sequence[float]) -> float:
    """0 without any numbers."""
    return sum(numbers) / len(numbers) if numbers else 0.0


def rows_scored(row: Row, metric: str) -> int | None:
    """How many test rows a score of a run is of; None where the row does not say it."""
    column = rows_of(metric)
    count = (row.get(column) if column is not None else None) or row.get("test_rows")
    return int(count) if count else None


def binomial(row: Row, metric: str) -> float | None:
    """The standard error over test rows of the error that stands beside a score: ``√(e (1 − e) / n)``."""
    place, name = metric.rpartition("/")[0], "error"
    column = f"{place}/{name}" if place else name
    count, value = rows_scored(row, column), row.get(column)
    if not count or value is None or not 0 <= float(value) <= 1:
        return None
    share = min(max(float(value), 1 / count), 1 - 1 / count)  # no error, or nothing else, is one row at least
    return math.sqrt(share * (1 - share) / count)


def overlap(pairs: Sequence[Pair]) -> float:
    """``n_test / n_train`` of the splits, which says how much their training rows overlap.

    Rows of older studies do not know their training rows: the splits that ship hold out a tenth.
    """
    known = [
        int(row["test_rows"]) / int(row["train_rows"])
        for row in (pair.quantised for pair in pairs)
        if row.get("test_rows") and row.get("train_rows")
    ]
    return plain_mean(known) if known else HELD_OUT


def differences(pairs: Iterable[Pair], metric: str, *, relative: bool = False) -> dict[Unit, float]:
    """``quantised − float`` of each run."""
    return {
        pair.unit: _change(score(pair.quantised, metric), score(pair.float, metric), relative)
        for pair in pairs
        if pair.has(metric)
    }


def score(row: Row, metric: str) -> float:
    """The score of a run. What is not a number is no better than infinite, where lower is better."""
    value = float(row[metric])
    return math.inf if math.isnan(value) and metric_named(metric).better == "lower" else value


def between(first: Mapping[Unit, float], second: Mapping[Unit, float]) -> dict[Unit, float]:
    """``first − second`` for the runs that both have."""
    return {which: first[which] - second[which] for which in first if which in second}


def _change(quantised: float, reference: float, relative: bool) -> float:
    if not relative:
        return quantised - reference
    return quantised / reference - 1 if reference else math.nan


@once_a_frame
def caveats(frame: Frame) -> tuple[str, ...]:
    """Sentences for whatever rests on small differences to float."""
    sentences: list[str] = []
    alone, trained = without_control(frame)
    if alone:
        many = f"{len(alone)} of {len(trained)} fine-tuned runs"
        sentences.append(
            f"No control: for {many} no float network was fine-tuned alike, so that what bits changed cannot "
            "be told from what training changed."
        )
    for column, words in SHARED.items():
        mixed = of_two(frame, column)
        if mixed:
            sentences.append(
                f"Two {words}: {len(mixed)} of {len(paired(frame))} quantised runs differ in them from their "
                "float runs, so that what bits changed cannot be told from what these changed."
            )
    return tuple(sentences)


def without_control(frame: Frame) -> tuple[Sequence[Pair], Sequence[Pair]]:
    """The pairs whose quantised network was fine-tuned and has no control, and all that were fine-tuned."""
    trained = [pair for pair in paired(frame) if pair.quantised.get("training") != CALIBRATED]
    held = {(float_key(row), row.get("training")) for row in frame.rows if is_control(row)}
    alone = [p for p in trained if (float_key(p.quantised), p.quantised.get("training")) not in held]
    return alone, trained


def of_two(frame: Frame, column: str) -> list[Pair]:
    """The pairs whose two rows say different things in a column; older rows do not say it."""
    told = ((pair, pair.quantised.get(column), pair.float.get(column)) for pair in paired(frame))
    return [pair for pair, one, other in told if None not in (one, other) and one != other]
