"""How the rows of a page were made: runs, seeds, machine and commit, from the tables themselves."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from published_numbers import NONE, Lines, Missing, Rows, Studies, table

COLUMNS = ("device", "processor", "commit")


def made(studies: Studies, names: Sequence[str]) -> Lines:
    """A line a study; what rows do not record is said."""
    held = {name: studies[name] for name in names if name in studies}
    if not held:
        raise Missing(f"no rows of {', '.join(names)}")
    rows = [
        [
            f"[{name}]({name}.csv)",
            _runs(found),
            _seeds(found),
            *(_values(found, one) for one in COLUMNS),
            _cost(found),
        ]
        for name, found in held.items()
    ]
    head = ["study", "runs", "seeds", *COLUMNS, "what its file says it costs"]
    missing = [f"`{name}`" for name in names if name not in studies]
    legend = f"Rows of {', '.join(missing)} are not there yet." if missing else "No planned study is missing."
    return [*table(head, rows), "", legend]


def _runs(found: Rows) -> str:
    frame = found.frame
    failed = f", {len(frame.failed)} failed" if frame.failed else ""
    left = frame.planned - len(frame.rows) - len(frame.failed)
    return f"{len(frame.rows)}{failed}" + (f", {left} left" if left else "")


def _seeds(found: Rows) -> str:
    return ", ".join(map(str, found.frame.values("seed")))


def _values(found: Rows, column: str) -> str:
    values = sorted({str(row[column]) for row in found.frame.rows if row.get(column)})
    short = [value[:7] if column == "commit" else value for value in values]
    return ", ".join(dict.fromkeys(short)) or "not recorded"


def _cost(found: Rows) -> str:
    header = found.frame.header.get("header") or found.frame.header
    return str(header.get("cost", NONE))


def tables(*names: str) -> Mapping[str, Callable[[Studies], Lines]]:
    return {"made": partial(made, names=names)}
