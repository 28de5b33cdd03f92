"""The rows of the benchmarks of speed in one CSV: what was measured, and by which code on which processor."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from qbayes.posterior.storage.save import write_atomically
from qbayes.provenance import provenance

# what tells a row from others: a measurement of the same again takes its place.
WHICH = ("benchmark", "network", "method", "work")
# of seconds the least of many; ``ratio`` is to the work that the benchmark names as its own.
MEASURED = ("seconds", "ratio", "to")
ORIGIN = ("commit", "qbayes", "torch", "numpy", "python", "processor", "instructions", "device")
COLUMNS = (*WHICH, *MEASURED, *ORIGIN)
Row = Mapping[str, str]


def measured(benchmark: str, network: str, method: str, seconds: Mapping[str, float], to: str) -> list[Row]:
    """A row for each work, with its ratio to the work ``to`` of the same run."""
    made = provenance(torch.device("cpu"))
    return [
        {
            **dict(zip(WHICH, (benchmark, network, method, work), strict=True)),
            "seconds": f"{one:.6g}",
            "ratio": f"{one / seconds[to]:.4f}",
            "to": to,
            **{name: made[name] for name in ORIGIN},
        }
        for work, one in seconds.items()
    ]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Put the rows into the table; those of other measurements stay."""
    new = {_which(row): row for row in rows}
    kept = [row for row in read_rows(path) if _which(row) not in new]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([row[name] for name in COLUMNS] for row in (*kept, *new.values()))
    write_atomically(path, text.getvalue().encode())


def read_rows(path: Path) -> list[Row]:
    """The rows of a table that is there; else none."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise SystemExit(f"error: {path} must be a table of these benchmarks; give another --csv")
        return list(reader)


def _which(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in WHICH)
