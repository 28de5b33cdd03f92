"""How the rows of a page were made: runs, seeds, machine and commit, from the tables themselves."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from published_numbers import METHODS, NONE, Lines, Missing, Rows, Studies, named, table

COLUMNS = ("device", "processor", "commit")
EPOCHS = "axis:quantize.epochs"


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
            _epochs(found),
            *(_values(found, one) for one in COLUMNS),
            _cost(found),
        ]
        for name, found in held.items()
    ]
    head = ["study", "runs", "seeds", "epochs of fine-tuning", *COLUMNS, "what its file says it costs"]
    missing = [f"`{name}`" for name in names if name not in studies]
    legend = f"Rows of {', '.join(missing)} are not there yet." if missing else "No planned study is missing."
    return [*table(head, rows), "", " ".join([legend, *_doubts(held)])]


def _doubts(held: Mapping[str, Rows]) -> Lines:
    """What rows cannot be judged for, because of how they were made."""
    said: Lines = []
    for name, found in held.items():
        if len(found.frame.values("seed")) == 1:
            said.append(f"`{name}` has one seed: no interval, and no verdict on it, can be given.")
        for column in COLUMNS:
            values = {row.get(column) for row in found.frame.rows}
            if len(values) > 1:
                said.append(
                    f"Rows of `{name}` come from {len(values)} values of {column}: a difference between two "
                    "of them may be that."
                )
    return said


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


def _epochs(found: Rows) -> str:
    """Epochs of fine-tuning by method, where the study varies them; of sghmc those of each member."""
    epochs = {
        method: sorted({int(row[EPOCHS]) for row in found.done(method=method) if row.get(EPOCHS)})
        for method in found.present("method", METHODS)
    }
    written = {method: ", ".join(map(str, some)) for method, some in epochs.items() if some}
    if len(written) == len(epochs) and len(set(written.values())) == 1:
        return next(iter(written.values()))
    return "; ".join(f"{named(method)} {some}" for method, some in written.items()) or "not varied"


def _cost(found: Rows) -> str:
    header = found.frame.header.get("header") or found.frame.header
    return str(header.get("cost", NONE))


def tables(*names: str) -> Mapping[str, Callable[[Studies], Lines]]:
    return {"made": partial(made, names=names)}
