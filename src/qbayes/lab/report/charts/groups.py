"""Which rows may be averaged and drawn together, and which must be kept apart.

Seeds and folds are repeats. Everything else that varies (task, network, recipe, scheme, draws, an axis of the
study) makes another chart, so that no average mixes what is not comparable.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from qbayes.lab.analysis.frame import AXIS, Frame, Row, natural, once_a_frame
from qbayes.lab.analysis.pairs import is_quantised, unit
from qbayes.lab.report.charts.chart import FLOAT, STYLES
from qbayes.lab.report.charts.points import Repeats

# What tells comparable rows from others, in the order of the page's switches.
COLUMNS = ("task", "network", "recipe", "scheme", "training", "draws", "backend")
REPEATS = ("method", "precision", "seed", "fold")
# Axes that other figures show already, or that are repeats.
SHOWN_ELSEWHERE = {
    "seed", "task", "method", "precision", "weight", "activation", "fold", "split", "finetuned",
}  # fmt: skip
# For each width the precisions that show it, best first: equal bits, then the paper's sweeps.
WANTED = (("W8A8", "W8A7"), ("W4A4", "W8A4", "W4A7"), ("W3A3", "W8A3", "W3A7"))


@dataclass(frozen=True)
class Group:
    """Rows that differ by method, precision, seed and fold alone; ``floats`` are their unquantised partners.

    ``choices`` names the group by what varies in the study, the task first; ``partner`` gives the float row
    of a run.
    """

    choices: Mapping[str, str]
    rows: tuple[Row, ...]
    floats: tuple[Row, ...]
    partner: Mapping[str, Row] = field(default_factory=dict[str, Row])

    @property
    def task(self) -> str:
        return str((self.rows or self.floats)[0].get("task"))

    @cached_property
    def methods(self) -> dict[str, dict[str, Repeats]]:
        """By method, the repeats of float and of each precision."""
        rows = by_method((*self.floats, *self.rows))
        return {method: repeats(some, precision_of) for method, some in rows.items()}

    @cached_property
    def bits(self) -> dict[str, tuple[int, int]]:
        """Bits of weights and activations of each precision."""
        return {precision_of(row): bits(row) for row in self.rows}


def groups_of(frame: Frame, *, apart: Sequence[str] = ()) -> list[Group]:
    """The comparable rows of a study. Columns in ``apart`` do not split: their figure lays them out.

    Float rows without a quantised partner form groups of their own.
    """
    return frame.once(f"groups, {', '.join(apart)} apart", lambda: _make_groups(frame, apart))


def _make_groups(frame: Frame, apart: Sequence[str]) -> list[Group]:
    columns = [column for column in (*COLUMNS, *free_axes(frame)) if column not in apart]
    quantised = [row for row in frame.rows if is_quantised(row)]
    partners = {_partner_key(row): row for row in frame.rows if row.get("precision") == FLOAT}
    named = naming(quantised, columns)
    found: dict[Hashable, list[Row]] = defaultdict(list)
    for row in quantised:
        found[tuple(str(row.get(column)) for column in columns)].append(row)
    groups = []
    for rows in found.values():
        choices = {choice_name(column): str(rows[0].get(column)) for column in named}
        pairs = {str(row["run"]): partners.get(_partner_key(row)) for row in rows}
        partner = {run: row for run, row in pairs.items() if row is not None}
        floats = {id(row): row for row in partner.values()}
        groups.append(Group(choices, tuple(rows), tuple(floats.values()), partner))
    return sorted(
        [*groups, *_orphans(frame, groups)], key=lambda group: tuple(map(natural, group.choices.values()))
    )


@once_a_frame
def free_axes(frame: Frame) -> list[str]:
    """Axes of the study that the named columns do not determine: their values split the rows further."""
    return [axis for axis in _axes(frame) if _splits(frame, axis)]


def other_axes(frame: Frame) -> list[str]:
    """Axes with two values or more that no figure over bits shows: the ``axes`` figure does."""
    return [axis for axis in _axes(frame) if not _is_shown_elsewhere(axis) and _varies(frame.rows, axis)]


def naming(rows: Iterable[Row], columns: Iterable[str]) -> list[str]:
    """The task, and the columns that tell rows of one task apart."""
    tasks = by(rows, lambda row: str(row.get("task"))).values()
    return [column for column in columns if column == "task" or any(_varies(some, column) for some in tasks)]


def split_by(
    rows: Sequence[Row], columns: Sequence[str], hidden: Collection[str] = ()
) -> list[tuple[dict[str, str], list[Row]]]:
    """The rows that agree in all columns, each with the choices that name them but for ``hidden`` ones."""
    named = [column for column in naming(rows, columns) if column not in hidden]
    alike = by(rows, lambda row: tuple(str(row.get(column)) for column in columns)).values()
    return [({choice_name(name): str(some[0].get(name)) for name in named}, some) for some in alike]


def choice_name(column: str) -> str:
    return column.removeprefix("axis:")


def by(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Rows by a key, in natural order of the keys."""
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(sorted(found.items(), key=lambda item: natural(item[0])))


def by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by method, the known ones first and in the order of the paper."""
    found = by(rows, lambda row: str(row.get("method")))
    order = {name: place for place, name in enumerate(STYLES)}
    return dict(sorted(found.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))


def repeats(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, Repeats]:
    """Rows by a key that tells all but their repeats apart, in natural order of the keys."""
    return {value: Repeats(some) for value, some in by(rows, key).items()}


def precision_of(row: Row) -> str:
    return str(row.get("precision"))


def bits(row: Row) -> tuple[int, int]:
    """Bits of weights and activations; 32 and 32 for float."""
    return int(row.get("weight") or 32), int(row.get("activation") or 32)


def precision_order(widths: Mapping[str, tuple[int, int]]) -> list[str]:
    """Float, then precisions from many bits to few."""
    return sorted(widths, key=lambda name: (name != FLOAT, -sum(widths[name]), -widths[name][0], name))


def _partner_key(row: Row) -> Hashable:
    """Equal for a quantised row and its float row: the same training, evaluated in the same way."""
    return row.get("float"), row.get("draws"), *map(str, unit(row))


def _axes(frame: Frame) -> list[str]:
    return sorted(name for name in frame.columns() if name.startswith(AXIS))


def _orphans(frame: Frame, groups: Sequence[Group]) -> list[Group]:
    """Groups of the float rows that no quantised row has as its partner."""
    taken = {id(row) for group in groups for row in group.floats}
    alone = [row for row in frame.rows if row.get("precision") == FLOAT and id(row) not in taken]
    if groups:  # half-finished: their quantised partners are still to come, and bring the right group.
        tasks = {group.task for group in groups}
        alone = [row for row in alone if str(row.get("task")) not in tasks]
    apart = split_by(alone, ("task", "network", "recipe", "draws"))
    return [Group(choices, (), tuple(rows)) for choices, rows in apart]


def _varies(rows: Iterable[Row], column: str) -> bool:
    return len({str(row.get(column)) for row in rows if row.get(column) is not None}) > 1


def _is_shown_elsewhere(axis: str) -> bool:
    parts = [part.strip() for part in axis.removeprefix("axis:").split("+")]
    return any(part.rpartition(".")[2] in SHOWN_ELSEWHERE or part == "task.name" for part in parts)


def _splits(frame: Frame, axis: str) -> bool:
    seen: dict[Hashable, str] = {}
    for row in frame.rows:
        key = tuple(str(row.get(column)) for column in (*COLUMNS, *REPEATS))
        if seen.setdefault(key, str(row.get(axis))) != str(row.get(axis)):
            return True
    return False


def choose_runs(frame: Frame, group: Group) -> dict[str, dict[str, Row]]:
    """By precision and method, the run of the lowest seed and fold that kept its rows."""
    names = [next((name for name in names if name in group.bits), None) for names in WANTED]
    found = {
        precision: {
            method: row
            for method, precisions in group.methods.items()
            if precision in precisions and (row := _first(frame, precisions[precision].rows))
        }
        for precision in (FLOAT, *filter(None, names))
    }
    return {precision: runs for precision, runs in found.items() if runs}


def _first(frame: Frame, rows: Sequence[Row]) -> Row | None:
    ordered = sorted(rows, key=lambda row: (natural(row.get("seed")), natural(row.get("fold") or 0)))
    return next((row for row in ordered[:3] if frame.details(str(row["run"])) is not None), None)
