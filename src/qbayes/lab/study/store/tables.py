"""Rows of results as tables: CSV, and Parquet where pandas can write it."""

import csv
import importlib.util
import io
from collections.abc import Iterable
from typing import Any

from qbayes.lab.study.store.table import KNOWN_BEFORE, ORIGIN
from qbayes.metrics.scores import with_numbers

Row = dict[str, Any]


def columns(rows: Iterable[Row]) -> list[str]:
    """The columns in the order of the table: what a run is, where it lies, what was found, and by what."""
    names = {name for row in rows for name in row}
    axes = sorted(name for name in names if name.startswith("axis:"))
    first = [name for name in KNOWN_BEFORE if name in names]
    last = [name for name in ORIGIN if name in names]
    return [*first, *axes, *sorted(names - {*first, *axes, *last}), *last]


def as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
    return text.getvalue()


def as_parquet(rows: list[Row]) -> bytes | None:
    """None where pandas or pyarrow is not installed (the extra ``report`` brings them)."""
    if any(importlib.util.find_spec(name) is None for name in ("pandas", "pyarrow")):
        return None
    import pandas as pd

    frame = pd.DataFrame([with_numbers(row) for row in rows], columns=columns(rows))
    # an axis may hold words and numbers: Parquet wants one kind a column.
    for name in frame.columns:
        if frame[name].dtype == object:
            frame[name] = frame[name].map(lambda value: None if value is None else str(value))
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()
