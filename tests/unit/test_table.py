"""Results as one CSV: what comes back is what the store said, and what is damaged is refused."""

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import needs
from qbayes.errors import BadFile, BadInput
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.pairs import difference, paired
from qbayes.lab.paper.section import register_claims
from qbayes.lab.report.export_csv import publish, published
from qbayes.lab.report.page.page import write_report
from qbayes.lab.study.run import results
from qbayes.lab.study.store.table import as_csv, read_table, value_of
from report_frames import draws_rows, frame_of, image_rows, uci_rows, write_store
from study_rows import Made, classified, row, study

register_claims()
Rows = list[dict[str, Any]]


def endless(rows: Rows) -> Rows:
    """With scores that are not finite, as a store writes them, and a run that failed."""
    words = iter(["inf", "-inf", "nan"] * len(rows))
    for one in rows[::7]:
        one["nll"] = next(words)
    kept = ("run", "float", "task", "fold", "network", "method", "recipe", "seed", "draws", "precision")
    more = ("weight", "activation", "scheme", "training", "backend")
    rows[-1] = {name: rows[-1][name] for name in (*kept, *more)} | {"status": "failed", "reason": 'a, "b"'}
    return rows


STUDIES: dict[str, Callable[[], Rows]] = {
    "images": lambda: endless(image_rows(methods=("pointwise", "mcd"))),
    "regression": lambda: endless(uci_rows(folds=2)),
    "draws": lambda: endless(draws_rows((1, 20))),
}


def same(one: Any, other: Any) -> bool:
    """Equal in value and type; NaN is NaN."""
    both_nan = isinstance(one, float) and math.isnan(one) and isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and (one == other or both_nan)


def assert_same_rows(found: Frame, wanted: Frame) -> None:
    assert (len(found.rows), len(found.failed)) == (len(wanted.rows), len(wanted.failed))
    pairs = zip((*found.rows, *found.failed), (*wanted.rows, *wanted.failed), strict=True)
    for one, other in pairs:
        assert one.keys() == other.keys()
        assert [name for name in other if not same(one[name], other[name])] == []


@pytest.mark.parametrize("name", STUDIES)
def test_the_stores_own_table_gives_the_rows_of_the_store(name: str, tmp_path: Path) -> None:
    rows = STUDIES[name]()
    store = write_store(tmp_path / "ein Lager", rows)
    (store / "results.csv").write_text(as_csv(rows), encoding="utf-8")
    table = Frame.read(store / "results.csv")
    assert_same_rows(table, Frame.read(store))
    assert (table.name, table.planned, table.folder) == ("results", len(rows), None)


@pytest.mark.parametrize("name", STUDIES)
def test_a_published_table_gives_all_but_the_tail_of_the_digits(name: str, tmp_path: Path) -> None:
    store = Frame.read(write_store(tmp_path / "store", STUDIES[name](), planned=999))
    table = Frame.read(publish(store, tmp_path / "new" / "small.csv", digits=17))
    by_run = {str(one["run"])[: len(str(table.rows[0]["run"]))]: one for one in (*store.rows, *store.failed)}
    for one in (*table.rows, *table.failed):
        wanted = by_run[one["run"]]
        assert wanted["float"].startswith(one["float"])
        assert one.keys() == wanted.keys()
        assert [n for n in one if n not in ("run", "float") and not same(one[n], wanted[n])] == []
    assert table.header == store.header
    assert (table.planned, table.question) == (999, store.question)


@pytest.mark.parametrize("name", STUDIES)
def test_what_was_published_is_published_again_unchanged(name: str, tmp_path: Path) -> None:
    first = published(Frame.read(write_store(tmp_path / "store", STUDIES[name]())))
    (tmp_path / "a.csv").write_text(first, encoding="utf-8")
    assert published(Frame.read(tmp_path / "a.csv")) == first


def test_what_is_said_once_makes_it_small(tmp_path: Path) -> None:
    rows = uci_rows(folds=4)
    frame = Frame.read(write_store(tmp_path / "store", rows))
    text = published(frame)
    assert len(text) < 0.45 * len(as_csv(rows))
    head = next(line for line in text.splitlines() if not line.startswith("#"))
    assert "network" not in head
    assert "weight" not in head
    assert "target_deviation" not in head


def test_axes_that_repeat_a_column_go_and_others_stay() -> None:
    place: Made = {"axis:seed": 0, "axis:method": "mcd", "axis:method.rate": 0.1, "axis:evaluate.draws": 20}
    text = published(study([row(**place), row("mcd", (8, 8), **place)]))
    assert "axis:method.rate" in text
    assert "axis:evaluate.draws" in text, "checks and figures ask for the axis of the draws"
    assert '"axis:seed"' not in text
    assert '"axis:method"' not in text


def test_columns_that_nobody_needs_may_go() -> None:
    frame = frame_of(image_rows(methods=("mcd",), seeds=[0]))
    assert "ece_per_batch" not in published(frame, leave_out=["ece_per_batch"]).replace("/ece_per_batch", "")
    with pytest.raises(BadInput, match="'ece'"):
        published(frame, leave_out=["ecee"])
    with pytest.raises(BadInput, match="must stay"):
        published(frame, leave_out=["seed"])


numbers = st.integers() | st.floats(allow_nan=True)
places = (
    numbers | st.booleans() | st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1)
)


@given(nll=numbers, place=places)
def test_any_value_comes_back(tmp_path_factory: pytest.TempPathFactory, nll: float, place: Any) -> None:
    path = tmp_path_factory.mktemp("table") / "t.csv"
    first, second = ({"nll": nll, "axis:x": place}, {"nll": 0.5, "axis:x": "other"})
    made = [row(seed=seed, **columns) for seed, columns in enumerate((first, second))]
    path.write_text(published(study(made), digits=17), encoding="utf-8", newline="")
    found = Frame.read(path).rows[0]
    assert same(found["nll"], nll)
    assert same(found["axis:x"], place)


def test_values_have_the_types_of_the_store() -> None:
    assert value_of("run", "12345678") == "12345678", "a key of digits is a text"
    assert [value_of("nll", text) for text in ("-inf", "1e-05", "3")] == [-math.inf, 1e-5, 3]
    assert [type(value_of("seed", text)) for text in ("3", "3.0")] == [int, float]
    assert [value_of("axis:x", text) for text in ("True", "W8A8", '"8"', "8")] == [True, "W8A8", "8", 8]
    for wrong in ("1_000", " 1", "infinity", "x", "١"):
        with pytest.raises(ValueError, match=wrong):
            value_of("nll", wrong)


def test_the_public_door_reads_a_table_too(tmp_path: Path) -> None:
    pd = needs.package("pandas")
    rows = STUDIES["images"]()
    store = write_store(tmp_path / "store", rows)
    (store / "results.csv").write_text(as_csv(rows), encoding="utf-8")
    pd.testing.assert_frame_equal(results(store / "results.csv"), results(store))


# ---- the report


def test_without_test_rows_the_interval_is_that_of_the_seeds(tmp_path: Path) -> None:
    """Differences 1, 2 and 3 points: 2 ± t(2) · 1 / √3 with t(2) = 4.30265."""
    before: list[Made] = classified("mcd", error=0.10)
    after = [{**one, "error": 0.11 + 0.01 * k} for k, one in enumerate(classified("mcd", (8, 7)))]
    path = tmp_path / "t.csv"
    path.write_text(published(study([*before, *after])), encoding="utf-8")
    frame = Frame.read(path)
    found = difference(frame, paired(frame), "error").scaled(100)
    assert (found.se_rows, found.covers) == (None, "runs")
    half = 4.30265 / math.sqrt(3)
    assert (found.low, found.value, found.high) == pytest.approx((2 - half, 2, 2 + half), rel=1e-5)


def test_a_table_gives_the_report_of_its_store_and_says_what_it_lacks(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", uci_rows(folds=3))
    whole = write_report(Frame.read(store), tmp_path / "whole", static=False)
    table = publish(Frame.read(store), tmp_path / "made up.csv", digits=17)
    page = write_report(Frame.read(table), tmp_path / "small", static=False)
    for name in ("claims.csv", "checks.csv", "regression_boxes.csv", "activation_bits.csv"):
        told = (page.parent / "tables" / name).read_text(encoding="utf-8")
        assert told == (whole.parent / "tables" / name).read_text(encoding="utf-8")
    said = "Read from made up.csv alone"
    assert said in page.read_text(encoding="utf-8")
    assert said not in whole.read_text(encoding="utf-8")


# ---- damage


GOOD = published(frame_of(uci_rows(folds=2)))
DAMAGE = {
    "not whole": (GOOD[:-3], "cut off"),
    "empty": ("", "empty"),
    "of somebody else": ("name,score\nada,3\n", "no column run"),
    "without rows, of somebody else": ("name,score\n", "no column run"),
    "text": ("To whom it may concern\n", "no column run"),
    "a word for a score": (GOOD.replace(GOOD.rsplit(",", 1)[1], "high\n"), "'high' under 'rmse' on line"),
    "a cell too few": (GOOD.rsplit(",", 1)[0] + "\n", "cells"),
    "a row twice": (GOOD + GOOD.splitlines()[-1] + "\n", "1 twice"),
    "another format": (GOOD.replace('"format": 1', '"format": 7'), "must be 1"),
    "no JSON": ("# {" + GOOD, "line 1"),
    "JSON of another kind": ("# [1]\n" + GOOD, "line 1"),
    "a study without its runs": (GOOD.replace('"runs"', '"ruins"'), "line 1"),
    "a broken line of what is said once": (GOOD.replace('"columns"', '"colons"', 1), "line 2"),
    "values without columns": (GOOD.replace('"columns": ["', '"columns": ["x", "', 1), "line 2"),
    "a place that nothing tells of": (GOOD.replace(",W8A7,", ",W9A9,"), "another precision"),
    "a column twice": (GOOD.replace("\nrun,", "\nrun,crps,"), "crps twice"),
    "an open quote": (GOOD + '"', "cut off"),
    "an open quote and a line": (GOOD + '"a\n', "CSV"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_or_foreign_is_refused(name: str, tmp_path: Path) -> None:
    text, said = DAMAGE[name]
    path = tmp_path / "tablé.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadFile) as refusal:
        Frame.read(path)
    assert said in str(refusal.value)
    assert str(path) in refusal.value.got


@pytest.mark.parametrize("content", [b"\xff\xfe\x00r\n", b"run\x00,float\n", bytes(range(256)) + b"\n"])
def test_bytes_that_are_no_text_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(BadFile):
        read_table(tmp_path / "t.csv")


@given(st.integers(0, len(GOOD)), st.integers(0, 60))
def test_a_table_with_a_hole_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int
) -> None:
    path = tmp_path_factory.mktemp("hole") / "t.csv"
    path.write_text(GOOD[:start] + GOOD[start + length :], encoding="utf-8")
    with contextlib.suppress(BadFile):
        assert Frame.read(path).planned


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="No such file"):
        Frame.read(tmp_path / "none.csv")


def test_a_table_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    with pytest.raises(BadFile, match="writable"):
        publish(frame_of([]), tmp_path / "taken" / "t.csv")


def test_a_study_without_runs_has_a_table(tmp_path: Path) -> None:
    path = publish(frame_of([], planned=3), tmp_path / "none yet.csv")
    found = Frame.read(path)
    assert (found.rows, found.planned) == ((), 3)
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0][1:])["name"] == "made up"


# words that look like numbers, as a commit or a version may.
WORDS = {
    "commit": "1234e5678",
    "qbayes": "0.1",
    "torch": "2.13",
    "numpy": "2",
    "python": "3.11",
    "processor": 'Xeon, "Gold"',
    "instructions": "AVX512: amx_int8 avx512_vnni",
    "device": "cpu (x86_64)",
}


def test_where_rows_come_from_stays_in_words_and_is_said_once_where_it_is_the_same(tmp_path: Path) -> None:
    rows = [{**one, **WORDS} for one in image_rows(methods=("pointwise", "mcd"))]
    frame = frame_of(rows)
    path = publish(frame, tmp_path / "small.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert_same_rows(Frame.read(path), Frame.read(publish(frame, tmp_path / "whole.csv")))
    assert all({name: row[name] for name in WORDS} == WORDS for row in read_table(path).rows)
    assert sum("1234e5678" in line for line in lines) == 1
    rows[0]["commit"] = "5" * 40
    mixed = publish(frame_of(rows), tmp_path / "mixed.csv")
    assert [row["commit"] for row in read_table(mixed).rows].count("5" * 40) == 1
    whole = as_csv([{**row, "zeta": 1.0} for row in rows])
    assert whole.splitlines()[0].endswith(",zeta," + ",".join(WORDS)), "behind all that was found"
    (tmp_path / "results.csv").write_text(whole, encoding="utf-8")
    assert {row["torch"] for row in read_table(tmp_path / "results.csv").rows} == {"2.13"}
