"""Charts are values that check themselves; their numbers survive CSV, JSON and the files for papers."""

import csv
import dataclasses
import importlib.util
import io
import json
import math
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as MatplotlibFigure

from qbayes.cli.demo_figure import COLOURS
from qbayes.errors import BadInput
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import (
    STYLES,
    Beyond,
    Chart,
    Figure,
    Plate,
    Series,
    chart_name,
    csv_of,
    rounded,
    styles_of,
)
from qbayes.lab.report.charts.static import PAINTERS, paint, sheets, write_static
from qbayes.lab.report.page.data import script_safe, table
from qbayes.lab.report.page.text import duration, toml_text

LINE = Series(
    "MC dropout", "mcd", ("float", "8"), (1.25, 2.5), (1.0, 2.0), (1.5, 3.0), ("3 seeds", "2 seeds")
)


def chart(kind: Any = "lines", series: Series = LINE, **options: Any) -> Chart:
    given_categories = {"categories": ("float", "8")} if any(isinstance(x, str) for x in series.x) else {}
    return Chart("name", "A title", "bits", "error, %", kind, (series,), **{**given_categories, **options})


KINDS: dict[str, Chart] = {
    "lines": chart(log_y=True, level=2.0),
    "boxes": chart("boxes", Series("a", "bbb", ("8", "8", "8", "float"), (1.0, 2.0, 4.0, 1.0))),
    "bars": chart("bars", Series("a", "sghmc", ("8",), (0.5,), (0.4,), (0.6,))),
    "histogram": chart("histogram", Series("a", "", (0.0, 1.0, 2.0), (75.0, 25.0)), root_y=True),
    "scatter": chart("scatter", Series("a", "mcd", (10.0, 1000.0), (1.0, 2.0)), log_x=True, diagonal=True),
    "reliability": chart("reliability", Series("a", "mcd", (50.0, 90.0), (40.0, 91.0), weight=(0.1, 0.9))),
}


class Shown(Figure):
    """A figure for these tests."""

    name = "shown"
    title = "Shown"
    caption = "For tests."
    place = 0

    def draw(self, frame: Frame) -> list[Chart]:
        return list(KINDS.values())


def test_csv_holds_every_number_and_what_was_chosen() -> None:
    first = chart(choices={"task": 'a "quoted", task', "metric": "error"})
    second = chart(choices={"task": "b"})
    read = list(csv.DictReader(io.StringIO(csv_of([first, second]))))
    assert len(read) == 4
    assert [(line["task"], line["metric"], line["x"]) for line in read] == [
        ('a "quoted", task', "error", "float"),
        ('a "quoted", task', "error", "8"),
        ("b", "", "float"),
        ("b", "", "8"),
    ]
    assert [float(read[1][name]) for name in ("y", "low", "high")] == [2.5, 2.0, 3.0]
    assert read[1]["y_label"] == "error, %"


@pytest.mark.parametrize(
    "series",
    [
        Series("s", "mcd", ("8",), (1.0, 2.0)),
        Series("s", "mcd", ("8",), (1.0,), (0.5, 0.6), (1.5, 1.6)),
        Series("s", "mcd", ("9",), (1.0,)),
        Series("s", "mcd", ("8",), (float("nan"),)),
        Series("s", "mcd", ("8",), (1.0,), (float("-inf"),), (2.0,)),
        Series("s", "mcd", ("8",), (1.0,), labels=("one", "two")),
        Series("s", "mcd", ("8",), (1.0,), beyond=(Beyond("9", math.inf),)),
        Series("s", "mcd", ("8",), (1.0,), beyond=(Beyond("float", 2.0),)),
    ],
    ids=["lengths", "spread", "category", "nan", "infinite spread", "labels", "edge", "finite edge"],
)
def test_a_series_that_cannot_be_drawn_is_refused(series: Series) -> None:
    with pytest.raises(BadInput, match="a series of a chart must have") as caught:
        chart(series=series)
    assert "'s' of 'name'" in caught.value.got


ENDLESS = Series(
    "MC dropout", "mcd", ("float",), (1.5,), beyond=(Beyond("8", math.inf, "3 seeds, 1 not finite"),)
)


def test_what_is_not_finite_is_in_the_csv_the_json_and_the_note() -> None:
    made = chart(series=ENDLESS, note="Folds are missing.")
    assert made.notes == (
        "Folds are missing. Not finite, marked at the edge: MC dropout at 8 (∞, 3 seeds, 1 not finite)."
    )
    data = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert data["note"] == made.notes
    assert data["series"][0]["beyond"] == [{"x": "8", "y": "inf", "label": "3 seeds, 1 not finite"}]
    read = list(csv.DictReader(io.StringIO(csv_of([made]))))
    assert [(line["x"], float(line["y"])) for line in read] == [("float", 1.5), ("8", math.inf)]
    assert [Beyond(1.0, y).sign for y in (math.inf, -math.inf, math.nan)] == ["∞", "−∞", "NaN"]


@pytest.mark.parametrize("kind", ["lines", "boxes", "scatter"])
@pytest.mark.parametrize("y", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_drawn_at_its_place_on_the_edge(kind: str, y: float) -> None:
    place: float | str = 900.0 if kind == "scatter" else "8"
    start: float | str = 10.0 if kind == "scatter" else "float"
    axes = MatplotlibFigure().subplots()
    paint(axes, chart(kind, Series("a", "mcd", (start,), (1.5,), beyond=(Beyond(place, y),))), "title")
    (mark,) = axes.texts
    x, height = mark.get_position()
    assert mark.get_text() == Beyond(place, y).sign
    assert x == (900.0 if kind == "scatter" else 1)
    assert (height < 0.5) == (y == -math.inf)
    assert axes.get_xlim()[0] <= x <= axes.get_xlim()[1]
    assert mark.get_color() == STYLES["mcd"].light
    assert math.isfinite(axes.get_ylim()[1])


def test_a_line_does_not_run_across_what_is_not_finite() -> None:
    series = Series("a", "mcd", ("8", "6", "3"), (1.0, 2.0, 4.0), beyond=(Beyond("4", math.inf),))
    axes = MatplotlibFigure().subplots()
    paint(axes, chart(series=series, categories=("8", "6", "4", "3")), "title")
    (drawn,) = axes.lines
    x, y = drawn.get_data()
    assert list(x) == [0, 1, 2, 3]
    assert list(np.isnan(y)) == [False, False, True, False]


def test_a_histogram_has_one_edge_more_than_bins() -> None:
    with pytest.raises(BadInput):
        chart("histogram", Series("a", "", (0.0, 1.0), (75.0, 25.0)))
    assert len(KINDS["histogram"].series[0].x) == 3


def test_json_leaves_out_what_is_empty_and_keeps_the_rest() -> None:
    data = chart(level=0.0).to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["level"] == 0.0
    assert "log_y" not in data
    assert data["series"][0] == {
        "name": "MC dropout",
        "group": "mcd",
        "x": ["float", "8"],
        "y": [1.25, 2.5],
        "low": [1.0, 2.0],
        "high": [1.5, 3.0],
        "labels": ["3 seeds", "2 seeds"],
    }


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_rounding_keeps_six_digits(value: float) -> None:
    assert rounded(value) == pytest.approx(value, rel=5.0001e-6, abs=1e-307)
    assert len(Decimal(repr(rounded(value))).normalize().as_tuple().digits) <= 6


def test_methods_keep_the_colours_of_the_demo() -> None:
    assert {name: style.light for name, style in STYLES.items()} == COLOURS


def test_groups_are_told_apart_by_colour_and_by_marker() -> None:
    found = styles_of(["zeta", "sghmc", "alpha", "mcd", "", "bbb", "pointwise"])
    assert list(found) == ["pointwise", "mcd", "bbb", "sghmc", "alpha", "zeta"]
    for part in ("light", "dark", "marker", "dash"):
        assert len({getattr(style, part) for style in found.values()}) == 6
    assert found["alpha"].label == "alpha"


@given(st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.integers()))
def test_data_cannot_leave_their_script_element(data: object) -> None:
    text = script_safe(data)
    assert json.loads(text) == data
    assert not set("<>&\u2028\u2029") & set(text)


values = st.recursive(
    st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_a_spec_is_read_back_from_its_toml(spec: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(spec)) == spec


def test_the_table_keeps_numbers_and_codes_words_in_natural_order() -> None:
    rows = [
        {"run": "b", "task": "t", "precision": "W10A2", "seed": 0, "error": 0.5, "nll": None},
        {"run": "a", "task": "t", "precision": "W8A7", "seed": 1, "error": 0.123456789, "nll": 2},
        {"run": "c", "task": "t", "precision": "W8A7", "rotation/1/error": 0.1, "nll": float("inf")},
    ]
    made = table(rows)
    columns = {column["name"]: column for column in made["columns"]}
    assert made["rows"] == 3
    assert columns["error"]["values"] == [0.5, 0.123457, None]
    assert columns["nll"]["values"] == [None, 2, "inf"]
    assert columns["precision"]["words"] == ["W8A7", "W10A2"]
    assert columns["precision"]["values"] == [1, 0, 0]
    assert columns["error"]["percent"]
    assert "percent" not in columns["nll"]
    assert "rotation/1/error" not in columns


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (4.21, "4.2 s"), (42.4, "42 s"), (60, "1 min"), (200, "3 min 20 s"),
     (18420, "5 h 7 min"), (7200, "2 h"), (183600, "2 d 3 h")],
)  # fmt: skip
def test_durations_in_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_names_of_files_are_plain() -> None:
    assert chart_name("shifts", {"task": "uci/Größe <1>", "metric": "ECE, %"}) == "shifts-uci_groe_1-ece"


def test_static_files_of_every_kind_are_the_same_each_time(tmp_path: Path) -> None:
    assert set(KINDS) == set(PAINTERS)
    plates = [Plate(Shown(), (one,)) for one in KINDS.values()]
    first = write_static(plates, tmp_path / "one")
    second = write_static(plates, tmp_path / "two")
    assert len(first) == 2 * len(KINDS)
    assert [path.name for path in first] == [path.name for path in second]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
    for path in first:
        if path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF")
        else:
            words = {"".join(node.itertext()) for node in ElementTree.parse(path).iter() if node.text}
            assert {"error, %", "bits"} <= words


def test_panels_side_by_side_share_a_sheet_and_others_do_not() -> None:
    made = [
        chart(choices={"task": "a", "metric": "error"}),
        chart(choices={"task": "a", "metric": "ece"}),
        chart(choices={"task": "a", "metric": "brier"}, main=False),
        chart(choices={"task": "b", "metric": "error"}),
    ]
    found = sheets(Plate(Shown(), tuple(made)))
    assert [(name, len(charts)) for name, charts in found] == [("shown-a", 2), ("shown-b", 1)]


def test_a_name_with_dollar_signs_is_not_mathematics(tmp_path: Path) -> None:
    series = Series("$\\bad{$", "mcd", ("8",), (1.0,))
    made = dataclasses.replace(chart(series=series), x_label="$x_{", y_label="$\\no$")
    svg = next(path for path in write_static([Plate(Shown(), (made,))], tmp_path) if path.suffix == ".svg")
    text = svg.read_text(encoding="utf-8")
    assert "$x_{" in text
    assert "$\\no$" in text


def test_without_matplotlib_static_files_are_refused_before_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="need matplotlib") as caught:
        write_static([], tmp_path / "figures")
    assert "qbayes[report]" in caught.value.do
    assert not (tmp_path / "figures").exists()
