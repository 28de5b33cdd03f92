"""Frames: reading stores, half-written ones too, and refusing what is none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from qbayes.errors import BadFile
from qbayes.lab.analysis.frame import Frame, axes, natural
from study_rows import row, study

HEADER = {"name": "tiny", "question": "why?", "runs": 4, "format": 1}


def write(store: Path, lines: list[Any], tail: str = "", header: Any = HEADER) -> Path:
    store.mkdir(parents=True, exist_ok=True)
    (store / "study.json").write_text(json.dumps(header), encoding="utf-8")
    text = "".join(json.dumps(line) + "\n" for line in lines) + tail
    (store / "results.jsonl").write_text(text, encoding="utf-8")
    return store


def test_reads_rows_sorted_by_run_and_failed_ones_apart(tmp_path: Path) -> None:
    lines = [
        {"run": "b", "status": "done", "error": 0.2},
        {"run": "c", "status": "failed", "reason": "NaN"},
        {"run": "a", "status": "done", "error": 0.1},
    ]
    frame = Frame.read(write(tmp_path / "ein Ort mit Umläuten", lines))
    assert [one["run"] for one in frame.rows] == ["a", "b"]
    assert [one["reason"] for one in frame.failed] == ["NaN"]
    assert (frame.name, frame.question, frame.planned) == ("tiny", "why?", 4)


def test_later_lines_of_a_run_win(tmp_path: Path) -> None:
    lines = [{"run": "a", "status": "failed"}, {"run": "a", "status": "done", "error": 0.1}]
    frame = Frame.read(write(tmp_path, lines))
    assert frame.failed == ()
    assert frame.rows[0]["error"] == 0.1


@pytest.mark.parametrize("tail", ['{"run": "b", "sta', '{"run": "b", "status": "done"}', "\x00\x00", "é"])
def test_torn_last_line_is_left_out(tmp_path: Path, tail: str) -> None:
    frame = Frame.read(write(tmp_path, [{"run": "a", "status": "done"}], tail))
    assert [one["run"] for one in frame.rows] == ["a"]


def test_rows_that_the_study_no_longer_plans_are_left_out(tmp_path: Path) -> None:
    store = write(tmp_path, [{"run": "a"}, {"run": "old"}])
    (store / "planned.json").write_text('["a", "b"]', encoding="utf-8")
    assert [one["run"] for one in Frame.read(store).rows] == ["a"]


def test_study_that_has_not_begun_has_no_rows(tmp_path: Path) -> None:
    store = write(tmp_path, [])
    (store / "results.jsonl").unlink()
    frame = Frame.read(store)
    assert (frame.rows, frame.metrics(), frame.values("method")) == ((), [], [])


def test_infinite_scores_are_numbers_again(tmp_path: Path) -> None:
    frame = Frame.read(write(tmp_path, [{"run": "a", "nll": "inf"}]))
    assert frame.rows[0]["nll"] == float("inf")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda store: (store / "study.json").unlink(), "no study.json"),
        (lambda store: (store / "study.json").write_text("{"), "readable JSON"),
        (lambda store: (store / "study.json").write_text("[1]"), "a JSON object"),
        (lambda store: (store / "study.json").write_text('{"format": 1}'), "without name and runs"),
        (lambda store: (store / "study.json").write_text('{"name": "a", "runs": 1, "format": 9}'), "format"),
        (lambda store: (store / "results.jsonl").write_text('{"run": "a"}\n{"ru\n'), "line 2"),
        (lambda store: (store / "results.jsonl").write_text('{"error": 1}\n'), "line 1"),
        (lambda store: (store / "planned.json").write_text("{}"), "JSON list"),
    ],
)
def test_what_is_not_a_store_is_refused(tmp_path: Path, damage: Any, said: str) -> None:
    store = write(tmp_path, [{"run": "a"}])
    damage(store)
    with pytest.raises(BadFile, match=said) as refusal:
        Frame.read(store)
    assert refusal.value.exit_code == 2


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such folder"):
        Frame.read(tmp_path / "nowhere")


def test_details_come_from_the_scores_folder_of_the_run(tmp_path: Path) -> None:
    store = write(tmp_path, [{"run": "a"}, {"run": "b"}])
    (store / "scores" / "a").mkdir(parents=True)
    save_file({"nll": np.arange(3, dtype=np.float32)}, store / "scores" / "a" / "rows.safetensors")
    frame = Frame.read(store)
    found = frame.details("a")
    assert found is not None
    assert found["nll"].tolist() == [0, 1, 2]
    assert frame.where(run="a").details("a") is found, "a narrower frame shares what was read"
    assert frame.details("b") is None


def test_damaged_details_are_refused(tmp_path: Path) -> None:
    store = write(tmp_path, [{"run": "a"}])
    (store / "scores" / "a").mkdir(parents=True)
    (store / "scores" / "a" / "rows.safetensors").write_bytes(b"\x08nonsense")
    with pytest.raises(BadFile, match="safetensors"):
        Frame.read(store).details("a")


def test_what_finished_stages_took_is_read(tmp_path: Path) -> None:
    store = write(tmp_path, [])
    for key, seconds in (("k1", 2.5), ("k2", 4)):
        (store / "float" / key).mkdir(parents=True)
        (store / "float" / key / "done.json").write_text(json.dumps({"seconds": seconds}))
    (store / "float" / "unfinished").mkdir()
    assert Frame.read(store).stages("float") == {"k1": {"seconds": 2.5}, "k2": {"seconds": 4}}


def test_where_takes_values_and_choices() -> None:
    frame = study([row("mcd", None), row("mcd", (8, 7)), row("bbb", (8, 7)), row("bbb", (4, 4))], planned=9)
    assert len(frame.where(precision="W8A7").rows) == 2
    assert len(frame.where(method="bbb", precision=("W8A7", "W4A4")).rows) == 2
    assert len(frame.where(method={"mcd", "bbb"}).rows) == 4
    assert len(frame.where(fold=None).rows) == 4, "a column that is absent or null is None"
    assert len(frame.where(**{"axis:method.rate": None}).rows) == 4
    assert frame.where(method="x").planned == 9


def test_values_are_distinct_and_in_natural_order() -> None:
    rows = [row(seed=seed, bits=bits) for seed, bits in ((10, (8, 7)), (2, (4, 4)), (1, (8, 7)), (1, None))]
    frame = study(rows)
    assert frame.values("seed") == [1, 2, 10]
    assert frame.values("precision") == ["W4A4", "W8A7", "float"]
    assert frame.values("nothing") == []


def test_metrics_are_clean_scores_that_rows_have() -> None:
    frame = study(
        [row(error=0.1, ece=None, **{"confusion/auroc": 0.9, "rotation/1/nll": 1.0}), row(seed=1, nll=0.3)]
    )
    assert frame.metrics() == ["error", "nll"]


def test_once_keeps_and_a_narrower_frame_begins_anew() -> None:
    frame = study([row()])
    made: list[int] = []
    assert frame.once("list", lambda: made) is frame.once("list", list)
    assert frame.where(seed=0).once("list", lambda: [1]) == [1]


def test_axes_are_the_columns_of_the_studys_axes() -> None:
    assert axes({"axis:seed": 1, "seed": 1, "axis:method.rate": 0.2}) == ("axis:method.rate", "axis:seed")


@given(st.lists(st.integers(0, 10**6) | st.text("aWA10", max_size=5)))
def test_natural_orders_numbers_by_size_inside_texts_too(values: list[int | str]) -> None:
    ordered = sorted(values, key=natural)
    numbers = [value for value in ordered if isinstance(value, int)]
    assert ordered[: len(numbers)] == sorted(numbers)
    assert [natural(one) for one in ordered] == sorted(map(natural, values))


def test_natural_reads_digits_as_numbers() -> None:
    assert sorted(["W10A2", "W2A10", "float", "W2A9"], key=natural) == ["W2A9", "W2A10", "W10A2", "float"]
