"""The measured cells as lines and as one JSON document.

Lines are a table for each cell with a line for each engine, and the aims in words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from qbayes.lab.bench.engines.base import ENGINES
from qbayes.lab.bench.measure import ALLOWED, LEAST_WEIGHTS, Size, Times
from qbayes.lab.bench.result import (
    AIM_BATCH,
    BASELINE,
    DRAW_AIMS,
    DRAW_NETWORKS,
    OURS,
    SHARE_AIM,
    SHARE_NETWORK,
    Cell,
    Row,
)

_ROW_HEAD = (
    f"  {'engine':22}{'numbers':>8}{'µs/draw':>11}{'prediction':>12}{'images/s':>11}"
    f"{'× loop':>8}{'roofline':>9}{'memory':>9}{'file':>9}"
)
_SIZE_HEAD = (
    f"{'network':18}{'method':10}{'bits':>5}{'weights':>12}{'file':>12}{'of bits/32':>11}  within 5 %"
)
# what records take as it is called.
_OF_A_CELL = (
    "name", "network", "method", "precision", "batch", "draws", "draws_asked", "members", "operations",
    "draw_over_pass", "aim", "notes",
)  # fmt: skip
_OF_A_SIZE = ("network", "method", "bits", "weights", "file_bytes", "ratio")


def speed_head(precision: str, threads: int, clock: str) -> list[str]:
    """What stands above the tables."""
    timed = "fastest of interleaved calls" + ("" if clock == "wall" else ", processor time")
    return [
        f"int8 of ours: {precision}; threads: {threads}; {timed}",
        "µs/draw: per draw and image; prediction: one call with all its draws; images/s: whole predictions",
        "roofline: share of a large matrix product in the same numbers; memory: peak without the libraries",
    ]


def cell_lines(cell: Cell) -> list[str]:
    """A heading with what is particular about the cell, then one line for each engine, then the passes."""
    drawn = [row for row in cell.rows if row.method == cell.method]
    passes = [row for row in cell.rows if row.method != cell.method]
    lines = ["", _heading(cell), _ROW_HEAD, *(_row_line(cell, row) for row in drawn)]
    if passes:
        lines += ["  a pointwise pass, for comparison:", *(_row_line(cell, row) for row in passes)]
    return lines


def _heading(cell: Cell) -> str:
    peak = cell.roofline.int8
    peaks = f"{cell.roofline.float32 / 1e12:.2f} TOP/s float" + (f", {peak / 1e12:.2f} int8" if peak else "")
    start = f"{cell.network}, {cell.method}, batch {cell.batch}, {cell.draws} draws; roofline {peaks}"
    return "; ".join([start, *cell.notes])


def _row_line(cell: Cell, row: Row) -> str:
    start = f"  {row.engine:22}{row.numbers:>8}"
    if row.times is None:
        return f"{start}  not run: {row.why}"
    memory = None if row.memory is None else row.memory.own / 1e6
    file = None if row.file_bytes is None else row.file_bytes / 1e6
    speed, share = _show(cell.speed(row), "{:.2f}"), _show(cell.share(row), "{:.0%}")
    return (
        f"{start}{_digits(1e6 * row.times.best):>11}{_duration(row.times.call):>12}"
        f"{_digits(cell.batch / row.times.call):>11}{speed:>8}{share:>9}"
        f"{_show(memory, '{:.1f} MB'):>9}{_show(file, '{:.1f} MB'):>9}"
    )


def size_head() -> list[str]:
    return ["", f"bytes of the file over bits/32 of the float32 weights (at most {ALLOWED})", _SIZE_HEAD]


def size_line(size: Size) -> str:
    verdict = {True: "yes", False: "NO", None: f"below {LEAST_WEIGHTS:,} weights"}[size.passes]
    start = f"{size.network:18}{size.method:10}{size.bits:>5}{size.weights:>12,}{size.file_bytes:>12,}"
    return f"{start}{size.ratio:>11.4f}  {verdict}"


def verdicts(cells: Sequence[Cell]) -> Iterator[str]:
    """Each aim with what was measured, in words."""
    for cell in cells:
        faster, aim = cell.ratio(BASELINE, OURS), cell.aim
        if faster is not None and aim is not None:
            measured = f"{cell.name} is {faster:.2f}× as fast as the float loop"
            yield f"{_word(faster >= aim)}: {measured} (aim {aim})"
        if cell.batch == AIM_BATCH:
            yield from _draw_verdict(cell)
            yield from _share_verdict(cell)


def _draw_verdict(cell: Cell) -> Iterator[str]:
    over, most, fastest = cell.draw_over_pass, DRAW_AIMS.get(cell.method), cell.fastest_pointwise()
    if over is not None and most is not None and fastest is not None and cell.network in DRAW_NETWORKS:
        yield (
            f"{_word(over <= most)}: a draw of {cell.name} takes {over:.2f} of the fastest pointwise "
            f"int8 pass, that of {fastest.engine} (at most {most})"
        )


def _share_verdict(cell: Cell) -> Iterator[str]:
    row = cell.row(OURS)
    share = None if row is None else cell.share(row)
    if share is not None and cell.network == SHARE_NETWORK:
        held = _word(share >= SHARE_AIM)
        yield f"{held}: {cell.name} reaches {share:.0%} of the roofline (aim {SHARE_AIM:.0%})"


def _digits(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"


def _show(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _word(held: bool) -> str:
    return "met" if held else "MISSED"


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
        **{name: getattr(cell, name) for name in _OF_A_CELL},
        "roofline": asdict(cell.roofline),
        "rows": [row_record(cell, row) for row in cell.rows],
        "ratios": {f"{slow}/{fast}": cell.ratio(slow, fast) for slow, fast in pairs},
        "fastest_pointwise": None if fastest is None else fastest.engine,
        "kernels": dict(cell.kernels),
    }


def row_record(cell: Cell, row: Row) -> dict[str, Any]:
    """One engine; times are in microseconds per draw and image, None where it was not run."""
    memory = row.memory
    return {
        **{name: getattr(row, name) for name in ("engine", "method", "numbers", "why", "file_bytes")},
        "title": ENGINES[row.engine].title,
        "times": None if row.times is None else _times_record(row.times),
        "speed": cell.speed(row),
        "share": cell.share(row),
        "memory": None if memory is None else {**asdict(memory), "own": memory.own},
    }


def size_record(size: Size) -> dict[str, Any]:
    return {
        **{name: getattr(size, name) for name in _OF_A_SIZE},
        "codes_per_weight": size.codes,
        "float32_bytes": size.float_bytes,
        "within_5_percent": size.passes,
    }


def _times_record(times: Times) -> dict[str, float]:
    return {
        "microseconds": 1e6 * times.best,
        "median_microseconds": 1e6 * times.median,
        "prediction_microseconds": 1e6 * times.call,
        "calls": len(times.seconds),
    }
