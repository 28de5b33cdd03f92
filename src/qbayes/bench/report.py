"""The measured cells as lines of a table, and as one JSON document."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qbayes.bench.size import ALLOWED, LEAST_WEIGHTS, Size
from qbayes.bench.speed import MCD_AIM, MCD_NETWORKS, Cell
from qbayes.bench.timing import Times

WAYS = ("loop", "predict", "onednn", "frozen", "pointwise")
_SPEED_HEAD = (
    f"{'network':18}{'method':10}{'batch':>6}{'draws':>6}"
    + "".join(f"{way:>11}" for way in WAYS)
    + f"{'loop/int':>10}{'aim':>6}{'pred/int':>9}{'mcd/point':>10}  notes"
)
_SIZE_HEAD = (
    f"{'network':18}{'method':10}{'bits':>5}{'weights':>12}{'file':>12}{'of bits/32':>11}  within 5 %"
)


def speed_head(precision: str, threads: int) -> list[str]:
    """What stands above the lines of cells."""
    return [
        f"{precision}, {threads} threads: microseconds per draw and image, fastest of interleaved calls",
        "loop, predict: float; onednn: integers; frozen: weight draws kept; pointwise: integers, no masks",
        _SPEED_HEAD,
    ]


def speed_line(cell: Cell) -> str:
    times = "".join(_microseconds(cell.times.get(way)) for way in WAYS)
    ratios = (
        f"{_number(cell.ratio('loop', 'onednn')):>10}{_number(cell.aim):>6}"
        f"{_number(cell.ratio('predict', 'onednn')):>9}{_number(cell.ratio('onednn', 'pointwise')):>10}"
    )
    start = f"{cell.network:18}{cell.method:10}{cell.batch:>6}{cell.draws:>6}"
    return f"{start}{times}{ratios}  {'; '.join(cell.notes)}".rstrip()


def size_head() -> list[str]:
    return ["", f"bytes of the file over bits/32 of the float32 weights (at most {ALLOWED})", _SIZE_HEAD]


def size_line(size: Size) -> str:
    verdict = {True: "yes", False: "NO", None: f"below {LEAST_WEIGHTS:,} weights"}[size.passes]
    start = f"{size.network:18}{size.method:10}{size.bits:>5}{size.weights:>12,}{size.file_bytes:>12,}"
    return f"{start}{size.ratio:>11.4f}  {verdict}"


def verdicts(cells: Sequence[Cell]) -> Iterator[str]:
    """Each aim with what was measured, in words."""
    for cell in cells:
        faster, aim = cell.ratio("loop", "onednn"), cell.aim
        if faster is not None and aim is not None:
            yield f"{_met(faster >= aim)}: {cell.name} is {faster:.2f}× as fast as the float loop (aim {aim})"
        share = cell.ratio("onednn", "pointwise")
        if share is not None and cell.network in MCD_NETWORKS:
            held = _met(share <= MCD_AIM)
            yield f"{held}: a draw of {cell.name} takes {share:.2f} pointwise passes (at most {MCD_AIM})"


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
    """A cell with its times in microseconds per draw and image; ratios are those of the fastest calls."""
    pairs = (("loop", "onednn"), ("predict", "onednn"), ("loop", "frozen"), ("onednn", "pointwise"))
    return {
        "name": cell.name,
        "network": cell.network,
        "method": cell.method,
        "precision": cell.precision,
        "batch": cell.batch,
        "draws": cell.draws,
        "draws_asked": cell.draws_asked,
        "members": cell.members,
        "ways": {way: _times_record(times) for way, times in cell.times.items()},
        "ratios": {f"{slow}/{fast}": cell.ratio(slow, fast) for slow, fast in pairs},
        "aim": cell.aim,
        "kernels": dict(cell.kernels),
        "notes": cell.notes,
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
        "calls": len(times.seconds),
    }


def _microseconds(times: Times | None) -> str:
    if times is None:
        return f"{'':>11}"
    value = 1e6 * times.best
    return f"{value:>11.2f}" if value < 1000 else f"{value:>11.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _met(held: bool) -> str:
    return "met" if held else "MISSED"
