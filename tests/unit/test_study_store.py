"""The store: whole or refused, whatever happened to the process that wrote it."""

import contextlib
import csv
import errno
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import needs
from qbayes.errors import BadFile, BadInput
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.study import run as run_module
from qbayes.lab.study.plan import result_row
from qbayes.lab.study.run import results, run_study
from qbayes.lab.study.spec.study import Study
from qbayes.lab.study.store import lock
from qbayes.lab.study.store import store as store_module
from qbayes.lab.study.store.repair import mend
from qbayes.lab.study.store.store import Store, StoreFull
from qbayes.lab.study.store.table import ORIGIN, as_csv, as_parquet
from qbayes.metrics import Scores
from qbayes.provenance import provenance

STUDY = Study.from_content({"run": {"task": "digits", "network": "lenet", "method": "mcd"}}, "one")
OTHER = Study.from_content({"run": {"task": "digits", "network": "lenet", "method": "mcd"}}, "two")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "ein Lager für Läufe")
    made.prepare(STUDY)
    made.write_header(STUDY, ["b", "a"])
    return made


def test_a_stage_is_done_when_its_last_file_is_there(store: Store) -> None:
    folder = store.begin("float", "abc")
    (folder / "weights").write_bytes(b"half")
    (folder / "checkpoint").mkdir()
    assert not store.is_done("float", "abc")
    assert store.done_keys("float") == set()
    # begun again: the half-written file is gone, the checkpoint is not.
    assert {path.name for path in store.begin("float", "abc").iterdir()} == {"checkpoint"}
    store.finish("float", "abc", {"seconds": 1.0})
    assert store.done_keys("float") == {"abc"}
    assert not (folder / "checkpoint").exists()
    assert store.records("float") == {"abc": {"seconds": 1.0}}


LINKED = [
    "lock",
    "lock-ray",
    "results.jsonl",
    "results.csv",
    "planned.json",
    "study.json",
    "logs/worker-1.log",
]


@pytest.mark.parametrize("name", LINKED)
def test_a_link_does_not_lead_out_of_a_store(name: str, store: Store, tmp_path: Path) -> None:
    """In a copy of a stranger's it may lead anywhere, and files of a store are emptied and cut."""
    mine = tmp_path / "mine.txt"
    content = b'{"format": 1, "name": "one"}\nyears of work, without a line feed'
    mine.write_bytes(content)
    (store.folder / name).parent.mkdir(exist_ok=True)
    (store.folder / name).unlink(missing_ok=True)
    (store.folder / name).symlink_to(mine)
    with pytest.raises(BadFile) as caught:
        run_study(STUDY, store.folder, device="cpu")
    assert caught.value.do
    assert mine.read_bytes() == content


def test_a_stage_that_is_a_link_is_not_emptied(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    (store.folder / "float").mkdir()
    (store.folder / "float" / "abc").symlink_to(tmp_path / "mine")
    with pytest.raises(BadFile, match="no link"):
        store.begin("float", "abc")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_rows_are_appended_and_a_torn_line_is_cut_off(store: Store) -> None:
    store.append({"run": "a", "status": "failed"})
    store.append({"run": "b", "status": "done", "error": 0.1})
    store.append({"run": "a", "status": "done", "error": 0.2})
    path = store.folder / "results.jsonl"
    whole = path.read_bytes()
    for cut in range(1, 12):
        path.write_bytes(whole + b'{"run": "c", "stat'[:cut])
        assert store.rows() == {
            "a": {"run": "a", "status": "done", "error": 0.2},
            "b": {"run": "b", "status": "done", "error": 0.1},
        }
        assert mend(store) == []
        assert path.read_bytes() == whole


def test_a_damaged_table_is_refused(store: Store) -> None:
    (store.folder / "results.jsonl").write_text('{"run": 1}\nnonsense\n')
    with pytest.raises(BadFile, match="one JSON object a line"):
        store.rows()


def test_tables_are_sorted_and_say_what_the_rows_say(store: Store) -> None:
    store.append({"run": "b", "status": "done", "error": 0.1, "axis:seed": 1})
    store.append({"run": "a", "status": "done", "error": 1 / 3, "axis:seed": 0})
    store.append({"run": "gone", "status": "done"})
    store.write_tables({"a", "b"})
    lines = (store.folder / "results.csv").read_text().splitlines()
    assert lines == ["run,status,axis:seed,error", f"a,done,0,{1 / 3!r}", "b,done,1,0.1"]
    pd = needs.package("pandas")
    needs.package("pyarrow")
    table = pd.read_parquet(store.folder / "results.parquet")
    assert table["error"].tolist() == [1 / 3, 0.1]
    assert table["run"].tolist() == ["a", "b"]


ENDLESS = {"run": "a", "status": "done", "nll": "inf", "entropy": "-inf", "rotation/1/nll": "nan", "ece": 0.1}


def test_a_score_that_is_not_finite_is_measured_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("_size", "_agreement"):
        monkeypatch.setattr(result_row, part, lambda *given: {})
    run = {"task": "digits", "network": "lenet", "method": "mcd", "seed": 0, "precision": "float"}
    found = Scores({"error": 0.9, "nll": math.inf}, {"rotation": {1: {"nll": math.nan}}}, meta={"rows": 5})
    likelihood = SimpleNamespace(to_json=lambda: {"classes": 10})
    signature = SimpleNamespace(likelihood=likelihood)
    task: Any = SimpleNamespace(kind="classification", signature=signature, train_rows=7)
    deployed: Any = None
    place = torch.device("cpu")
    posterior: Any = SimpleNamespace(device=place)
    row = result_row.make_row({**run, "quantize": {}, "evaluate": {}}, found, task, deployed, posterior)
    kept = json.loads(json.dumps(row, allow_nan=False))
    assert {name: kept[name] for name in ORIGIN} == provenance(place)
    assert (kept["error"], kept["nll"], kept["rotation/1/nll"]) == (0.9, "inf", "nan")


def test_scores_that_are_not_finite_come_back_as_numbers(store: Store) -> None:
    store.append(ENDLESS)
    store.append({**ENDLESS, "run": "b", "nll": 0.5})
    assert store.rows()["a"] == ENDLESS, "as it was written, so that a study gone on with adds no line"
    store.write_tables({"a", "b"})
    columns, line, _ = list(csv.reader((store.folder / "results.csv").open(encoding="utf-8")))
    said = dict(zip(columns, line, strict=True))
    assert (said["nll"], said["entropy"], said["rotation/1/nll"]) == ("inf", "-inf", "nan")
    (first, second) = Frame.read(store.folder).rows
    assert (first["nll"], first["entropy"], second["nll"]) == (math.inf, -math.inf, 0.5)
    assert math.isnan(first["rotation/1/nll"])
    pd = needs.package("pandas")
    for table in (results(store.folder), pd.read_parquet(store.folder / "results.parquet")):
        assert table["nll"].tolist() == [math.inf, 0.5]
        assert table["nll"].mean() == math.inf
        assert {str(table[name].dtype) for name in ("nll", "entropy", "rotation/1/nll")} == {"float64"}


def test_null_scores_of_older_stores_are_read(store: Store) -> None:
    store.append({"run": "a", "status": "done", "nll": None, "fold": None, "classes": None, "task": "nan"})
    (row,) = Frame.read(store.folder).rows
    assert math.isnan(row["nll"])
    assert (row["fold"], row["classes"], row["task"]) == (None, None, "nan"), "no scores, and left alone"
    store.write_tables({"a"})
    assert (store.folder / "results.csv").read_text() == "run,task,fold,status,classes,nll\na,nan,,done,,\n"
    needs.package("pandas")
    assert results(store.folder)["nll"].isna().all()


def test_words_and_numbers_in_one_column(store: Store) -> None:
    rows = [{"run": "a", "axis:x": 1}, {"run": "b", "axis:x": "float"}, {"run": "c", "axis:x": None}]
    assert as_csv(rows).splitlines() == ["run,axis:x", "a,1", "b,float", "c,"]
    needs.package("pyarrow")
    assert as_parquet(rows) is not None


def test_a_store_belongs_to_one_study(store: Store) -> None:
    before = sorted(store.folder.rglob("*"))
    with pytest.raises(BadInput, match="made by 'one'"):
        Store(store.folder).prepare(OTHER)
    assert sorted(store.folder.rglob("*")) == before
    Store(store.folder).prepare(STUDY)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BadFile, match=r"holds thesis\.tex"):
        Store(tmp_path).prepare(STUDY)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("content", ['{"format": 2, "name": "one"}', "{}", "[]", "not json", ""])
def test_a_store_of_another_version_is_refused(store: Store, content: str) -> None:
    (store.folder / "study.json").write_text(content)
    with pytest.raises(BadFile) as caught:
        store.prepare(STUDY)
    assert (store.folder / "study.json").read_text() == content
    assert caught.value.do


# the files of a run in the order in which they come to be; the executor ray makes its own before the header.
BEGUN = [
    ["lock"],
    ["lock", ".planned.json.abc"],
    ["lock", "planned.json"],
    ["lock", "planned.json", ".study.json.abc"],
    ["lock", "lock-ray", "logs/ray.log", "planned.json"],
]


@pytest.mark.parametrize("held", BEGUN, ids=" ".join)
def test_a_run_killed_before_it_wrote_the_header_is_gone_on_with(held: list[str], tmp_path: Path) -> None:
    for name in held:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    store = Store(tmp_path)
    store.prepare(STUDY)
    with store.locked():
        mend(store)
        store.write_header(STUDY, ["a"])
    assert store.header()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("held", [["logs"], ["planned.json"], ["lock", "thesis.tex"], [".study.json.abc"]])
def test_files_like_ours_do_not_make_a_store(held: list[str], tmp_path: Path) -> None:
    for name in held:
        (tmp_path / name).write_text("years of work")
    with pytest.raises(BadFile, match=f"holds {', '.join(held)}"):
        Store(tmp_path).prepare(STUDY)
    assert all((tmp_path / name).read_text() == "years of work" for name in held)


@pytest.mark.parametrize("stopped_in", ["planned_runs", "stacks_of", "Table", "write_header"])
def test_wherever_a_run_stops_the_next_one_begins(
    stopped_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reached(BaseException):
        """Nobody foresees it, as nobody foresees a kill."""

    def stop(*given: object) -> None:
        raise Reached

    monkeypatch.setattr(Store if stopped_in == "write_header" else run_module, stopped_in, stop)
    for _ in range(2):
        with pytest.raises(Reached):
            run_study(STUDY, tmp_path / "store", device="cpu")


def test_data_that_are_missing_are_asked_for_each_time(tmp_path: Path) -> None:
    study = Study.from_content({"run": {"task": "mnist", "network": "lenet", "method": "mcd"}}, "one")
    for _ in range(2):
        with pytest.raises(BadInput, match="data fetch mnist"):
            run_study(study, tmp_path / "store", data_dir=tmp_path / "no data", device="cpu")


@contextlib.contextmanager
def at_work(store: Store) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process holds the lock."""
    code = (
        "import sys; from qbayes.lab.study.store.store import Store\n"
        "with Store(sys.argv[1]).locked():\n"
        "    print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        try:
            yield holder
        finally:
            holder.kill()


def test_two_runs_at_once_are_refused_and_a_dead_one_lets_go(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0.2)
    with at_work(store) as holder:
        with pytest.raises(BadInput, match=f"process {holder.pid} works on"), store.locked():
            pass
        holder.kill()
        holder.wait()
        with store.locked():
            assert (store.folder / "lock").read_text() == str(os.getpid())


def test_one_that_is_about_to_die_is_waited_for(store: Store) -> None:
    killed = threading.Event()
    with at_work(store) as holder:

        def die() -> None:
            killed.set()
            holder.kill()

        threading.Timer(0.5, die).start()
        with store.locked():
            assert killed.is_set()


def test_a_folder_that_became_another_study_s_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Store.prepare

    def overtaken(store: Store, study: Study) -> None:
        prepare(store, study)
        store.write_header(STUDY, ["a"])

    monkeypatch.setattr(Store, "prepare", overtaken)
    with pytest.raises(BadInput, match="made by 'one'"):
        run_study(OTHER, tmp_path / "store", device="cpu")
    header = Store(tmp_path / "store").header()
    assert header is not None
    assert header["name"] == "one"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_full_or_read_only_disk_says_so_and_leaves_the_rows(
    store: Store, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append({"run": "a", "status": "done"})
    store.write_tables({"a"})
    table = (store.folder / "results.csv").read_bytes()

    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(store_module, "write_atomically", refuse)
    monkeypatch.setattr(store_module.os, "fsync", refuse)
    for write in (
        lambda: store.append({"run": "b", "status": "done"}),
        lambda: store.write_tables({"a"}),
        lambda: store.write_header(STUDY, []),
    ):
        with pytest.raises(StoreFull) as caught:
            write()
        assert "run the same command again" in caught.value.do
        assert caught.value.exit_code == 2
    assert (store.folder / "results.csv").read_bytes() == table
    assert json.loads((store.folder / "results.jsonl").read_text().splitlines()[0])["run"] == "a"
