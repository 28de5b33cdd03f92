"""The measured cells as one JSON document."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from qbayes.lab.bench.engines.base import ENGINES
from qbayes.lab.bench.report import verdicts
from qbayes.lab.bench.result import BASELINE, OURS, Cell, Row
from qbayes.lab.bench.size import Size
from qbayes.lab.bench.timing import Times


def document(
    machine: Mapping[str, object],
    settings: Mapping[str, object],
    cells: Sequence[Cell],
    sizes: Sequence[Size],
) -> dict[str, Any]:
    """Everything, for JSON."""
    return {
        "machine": dict(machine),
        "settings": dict(settings),
        "cells": [cell_record(cell) for cell in cells],
        "verdicts": list(verdicts(cells)),
        "sizes": [size_record(size) for size in sizes],
    }


def cell_record(cell: Cell) -> dict[str, Any]:
    """A cell with a record for each engine; ratios are those of the fastest calls."""
    pairs = ((BASELINE, OURS), ("predict", OURS), (BASELINE, "frozen"))
    fastest = cell.fastest_pointwise()
    return {
        "name": cell.name,
        "network": cell.network,
        "method": cell.method,
        "precision": cell.precision,
        "batch": cell.batch,
        "draws": cell.draws,
        "draws_asked": cell.draws_asked,
        "members": cell.members,
        "operations": cell.operations,
        "roofline": asdict(cell.roofline),
        "rows": [row_record(cell, row) for row in cell.rows],
        "ratios": {f"{slow}/{fast}": cell.ratio(slow, fast) for slow, fast in pairs},
        "fastest_pointwise": None if fastest is None else fastest.engine,
        "draw_over_pass": cell.draw_over_pass,
        "aim": cell.aim,
        "kernels": dict(cell.kernels),
        "notes": cell.notes,
    }


def row_record(cell: Cell, row: Row) -> dict[str, Any]:
    """One engine; times are in microseconds per draw and image, None where it was not run."""
    memory = row.memory
    return {
        "engine": row.engine,
        "title": ENGINES[row.engine].title,
        "method": row.method,
        "numbers": row.numbers,
        "times": None if row.times is None else _times_record(row.times),
        "why": row.why,
        "speed": cell.speed(row),
        "share": cell.share(row),
        "file_bytes": row.file_bytes,
        "memory": None if memory is None else {**asdict(memory), "own": memory.own},
    }


def size_record(size: Size) -> dict[str, Any]:
    return {
        "network": size.network,
        "method": size.method,
        "bits": size.bits,
        "weights": size.weights,
        "codes_per_weight": size.codes,
        "float32_bytes": size.float_bytes,
        "file_bytes": size.file_bytes,
        "ratio": size.ratio,
        "within_5_percent": size.passes,
    }


def _times_record(times: Times) -> dict[str, float]:
    return {
        "microseconds": 1e6 * times.best,
        "median_microseconds": 1e6 * times.median,
        "prediction_microseconds": 1e6 * times.call,
        "calls": len(times.seconds),
    }
