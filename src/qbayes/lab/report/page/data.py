"""What the page's script draws from: charts, styles and the table of runs, as compact JSON."""

import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from qbayes.lab.analysis.frame import Frame, Row, natural
from qbayes.lab.report.charts.chart import Plate, Style, rounded, styles_of
from qbayes.metrics.scores import METRICS

# Columns in the order of the table; those of the first list are shown at once, if they say anything.
FIRST = (
    "task", "network", "method", "recipe", "precision", "scheme", "training", "backend", "draws", "seed",
    "fold",
)  # fmt: skip
SCORES = ("error", "ece", "nll", "entropy", "confusion/auroc", "rmse", "crps", "coverage_90", "bytes")
COSTS = (
    "bytes", "weights", "macs", "bit_operations", "test_rows", "train_rows", "classes", "target_deviation",
)  # fmt: skip
_OF_A_STYLE = ("label", "short", "marker", "dash")
_OF_A_FIGURE = ("name", "title", "caption", "beside", "same_y")
ALWAYS = ("task", "method", "precision", "seed")
LABELS = {
    "bit_operations": "bit operations",
    "test_rows": "test rows",
    "train_rows": "training rows",
    "target_deviation": "target deviation",
}


def styles(plates: Iterable[Plate]) -> dict[str, Style]:
    """The styles of all groups that are drawn."""
    return styles_of(series.group for plate in plates for chart in plate.charts for series in chart.series)


def payload(frame: Frame, plates: Sequence[Plate]) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or open a comment."""
    groups = {
        name: {**{key: getattr(style, key) for key in _OF_A_STYLE}, "index": place}
        for place, (name, style) in enumerate(styles(plates).items())
    }
    figures = [
        {
            **{key: getattr(plate.figure, key) for key in _OF_A_FIGURE},
            "charts": [chart.to_json() for chart in plate.charts],
        }
        for plate in plates
    ]
    return script_safe({"groups": groups, "figures": figures, "table": table(_in_order(frame.rows))})


def script_safe(data: object) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # in JSON these characters occur inside strings alone, where an escape means the same.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def table(rows: Sequence[Row]) -> dict[str, Any]:
    """The runs by columns: numbers as they are, texts as codes of a sorted list of words.

    Levels of shifts are left to their figure and to the CSV: they would be nine tenths of the page.
    """
    return {"rows": len(rows), "columns": [_column(rows, name) for name in _columns(rows)]}


def _in_order(rows: Iterable[Row]) -> list[Row]:
    """By task, method, bits (many first), seed and fold."""

    place = cache(natural)  # few values, many rows

    def order(row: Row) -> tuple[object, ...]:
        text = [place(str(row.get(name))) for name in ("task", "network", "recipe", "method")]
        width = -int(row.get("weight") or 32) - int(row.get("activation") or 32)
        rest = [place(str(row.get(name))) for name in ("precision", "scheme", "seed", "fold")]
        return *text, width, *rest, str(row.get("run"))

    return sorted(rows, key=order)


def _columns(rows: Sequence[Row]) -> list[str]:
    present = {name for row in rows for name, value in row.items() if value is not None}
    axes = sorted((name for name in present if name.startswith("axis:")), key=natural)
    other = sorted(name for name in present if name.startswith("agreement/"))
    known = [*FIRST, *dict.fromkeys([*SCORES, *METRICS]), *COSTS, *other, *axes, "run"]
    return [name for name in dict.fromkeys(known) if name in present]


def _column(rows: Sequence[Row], name: str) -> dict[str, Any]:
    values = [row.get(name) for row in rows]
    kinds = {type(value) for value in values} - {type(None)}
    shown = METRICS.get(name)
    column: dict[str, Any] = {"name": name, "label": _label(name)}
    if shown is not None and shown.unit == "share":
        column["percent"] = True
    if name in ALWAYS or name in SCORES or (name in FIRST and len(set(map(str, values))) > 1):
        column["main"] = True
    if all(issubclass(kind, int | float) and kind is not bool for kind in kinds):
        return {**column, "values": [_number(value) for value in values]}
    texts = [None if value is None else _text(value) for value in values]
    words = sorted({text for text in texts if text is not None}, key=natural)
    codes: dict[str | None, int | None] = {None: None, **{word: code for code, word in enumerate(words)}}
    return {**column, "words": words, "values": [codes[text] for text in texts]}


def _label(name: str) -> str:
    return METRICS[name].label if name in METRICS else LABELS.get(name, name.removeprefix("axis:"))


def _number(value: float | None) -> float | str | None:
    """As JSON can hold it: words stand for what is not finite."""
    if value is None or isinstance(value, int):
        return value
    return rounded(value) if math.isfinite(value) else str(value)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
