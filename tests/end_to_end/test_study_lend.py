"""Studies that take what others have: the same rows, and nothing is trained twice."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import qbayes as qb
from qbayes.errors import BadInput
from qbayes.lab.study.store.store import DONE, HEADER, RESULTS, ROWS, Store
from qbayes.metrics.row_errors import ROW_ERROR, standard_errors

STUDY = """
[run]
task = {name = "diabetes", split = 0}
network = {name = "mlp", hidden = [20], noise = "constant"}
method = "pointwise"
training = {epochs = 2, batch_size = 64, least_steps = 0}
quantize = {epochs = 0}
evaluate = {draws = 3}

[axes]
method = ["pointwise", {name = "mcd", rate = 0.1}]
precision = PRECISIONS
"""


def study(name: str, precisions: str) -> qb.Study:
    return qb.Study.from_toml(STUDY.replace("PRECISIONS", precisions), name)


def run(asked: qb.Study, folder: Path, *lenders: Path) -> Store:
    done = qb.run_study(asked, folder, device="cpu", workers=1, lenders=lenders)
    assert (done.done, done.failed) == (done.planned, 0)
    return Store(folder)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A lender whose records bear a mark: what was copied has it, what was made has not."""
    store = run(study("first", '["float", "W8A8"]'), tmp_path_factory.mktemp("first") / "store")
    for stage in ("float", "scores"):
        for key in store.done_keys(stage):
            store.finish(stage, key, {**store.record(stage, key), "marked": True})
    return store


def is_lent(store: Store, stage: str, key: str) -> bool:
    return "marked" in store.record(stage, key)


def test_another_study_takes_its_networks_and_its_scores(first: Store, tmp_path: Path) -> None:
    asked = study("second", '["float", "W8A8", "W4A4"]')
    alone = run(asked, tmp_path / "alone")
    store = run(asked, tmp_path / "store", first.folder)
    assert (store.folder / "results.csv").read_bytes() == (alone.folder / "results.csv").read_bytes()
    assert store.done_keys("float") == first.done_keys("float")
    for stage in ("float", "scores"):
        for key in first.done_keys(stage):
            assert is_lent(store, stage, key)
    assert len(store.done_keys("quantised")) == 2, "of W4A4 alone"


def kept_of(lender: Store, folder: Path, rows: int | None = None) -> Path:
    """What a machine that keeps nothing gave back of a store: two small files."""
    folder.mkdir()
    shutil.copy(lender.folder / HEADER, folder / HEADER)
    lines = (lender.folder / RESULTS).read_bytes().splitlines(keepends=True)
    (folder / RESULTS).write_bytes(b"".join(lines[:rows]))
    return folder


def test_a_table_alone_lends_its_rows(first: Store, tmp_path: Path) -> None:
    store = run(study("again", '["float", "W8A8"]'), tmp_path / "store", kept_of(first, tmp_path / "kept"))
    assert not store.done_keys("float")
    assert store.rows() == first.rows()


def test_a_row_is_told_in_the_words_of_the_study_that_takes_it(first: Store, tmp_path: Path) -> None:
    """Its axes are this study's; of the other's nothing stays."""
    axes = ('method = ["pointwise", {name = "mcd", rate = 0.1}]', 'method = [{name = "mcd", rate = [0.1]}]')
    asked = qb.Study.from_toml(STUDY.replace(*axes).replace("PRECISIONS", '["float", "W8A8"]'), "other")
    store = run(asked, tmp_path / "store", kept_of(first, tmp_path / "kept"))
    alone = run(asked, tmp_path / "alone")
    assert (store.folder / "results.csv").read_bytes() == (alone.folder / "results.csv").read_bytes()
    assert not store.done_keys("float")


def test_a_store_with_holes_lends_what_is_whole(first: Store, tmp_path: Path) -> None:
    holed = tmp_path / "holed"
    shutil.copytree(first.folder, holed)
    for path in (*holed.glob("float/*/weights.safetensors"), *holed.glob("scores/*/row.json")):
        path.unlink()
    damaged, *_ = sorted(holed.glob("scores/*"))
    (damaged / "row.json").write_bytes(b'{"error": ')
    with (holed / RESULTS).open("ab") as results:
        results.write(b"no row\n")
    store = run(study("mended", '["float", "W8A8", "W4A4"]'), tmp_path / "store", holed)
    for key in first.done_keys("float"):
        assert not is_lent(store, "float", key), "made here, for W4A4"
    assert {key: store.rows()[key] for key in first.rows()} == first.rows()
    assert (holed / RESULTS).read_bytes().endswith(b"no row\n"), "a lender is only read"


STACKED = """
[run]
task = {name = "diabetes", split = 0}
network = {name = "mlp", hidden = [20], noise = "constant"}
method = "bbb"
training = {epochs = 2, batch_size = 64, least_steps = 0, start = "pointwise"}
quantize = {epochs = 1, least_steps = 0, optimizer = "sgd", learning_rate = 1e-2}
evaluate = {draws = 3}

[axes]
task = [{name = "diabetes", split = [0, 1, 2]}]
precision = ["W4A4"]
"""


def test_a_stack_is_trained_whole_also_where_rows_of_it_are_lent(tmp_path: Path) -> None:
    asked = qb.Study.from_toml(STACKED, "stacked")
    alone = run(asked, tmp_path / "alone")
    store = run(asked, tmp_path / "store", kept_of(alone, tmp_path / "kept", rows=2))
    assert store.rows() == alone.rows()


def test_what_is_not_whole_is_made(first: Store, tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(first.folder, torn)
    (torn / RESULTS).write_bytes(b"")
    keys = sorted(first.done_keys("float"))
    (torn / "float" / keys[0] / DONE).unlink()
    store = run(study("mended", '["float"]'), tmp_path / "store", torn)
    assert [is_lent(store, "float", key) for key in keys] == [False, True]


def test_a_damaged_posterior_is_not_worth_borrowing(first: Store, tmp_path: Path) -> None:
    """Its copy comes to light when something needs it, and is made here."""
    shutil.copytree(first.folder, tmp_path / "lender")
    shutil.rmtree(tmp_path / "lender" / "scores")
    (tmp_path / "lender" / RESULTS).write_bytes(b"")
    one, other = sorted(first.done_keys("float"))
    path = tmp_path / "lender" / "float" / one / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-3] + b"\0\0\0")
    store = run(study("mended", '["float"]'), tmp_path / "store", tmp_path / "lender")
    assert [is_lent(store, "float", key) for key in (one, other)] == [False, True]
    assert {key: row["nll"] for key, row in store.rows().items()} == {
        key: row["nll"] for key, row in first.rows().items() if row["precision"] == "float"
    }


def test_a_folder_that_is_no_study_lends_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="lent by the folder of a study") as caught:
        qb.run_study(study("x", '["float"]'), tmp_path / "store", device="cpu", lenders=[tmp_path])
    assert "no study.json" in caught.value.got
    assert not (tmp_path / "store" / HEADER).exists()


def test_rows_take_the_errors_of_their_test_rows_and_keep_them_where_those_are_gone(
    first: Store, tmp_path: Path
) -> None:
    rows = first.rows()
    for row in rows.values():
        details = load_file(first.stage("scores", row["run"]) / ROWS)
        reference = next(one for one in rows.values() if one["float"] == row["float"] and is_float(one))
        before = None if is_float(row) else load_file(first.stage("scores", reference["run"]) / ROWS)
        expected = {ROW_ERROR + name: value for name, value in standard_errors(details, before).items()}
        assert {name: value for name, value in row.items() if name.startswith(ROW_ERROR)} == expected
        assert {ROW_ERROR + "rmse", ROW_ERROR + "nll"} <= set(row)
    # a second run of the study finds nothing to add.
    before_bytes = (first.folder / RESULTS).read_bytes()
    run(study("first", '["float", "W8A8"]'), first.folder)
    assert (first.folder / RESULTS).read_bytes() == before_bytes
    # the two small files are enough to know them, also of a study that is larger.
    kept = kept_of(first, tmp_path / "kept")
    second = run(study("second", '["float", "W8A8", "W4A4"]'), tmp_path / "store", kept).rows()
    assert {key: second[key] for key in rows} == rows
    for row in second.values():
        alone = not any(name.startswith(ROW_ERROR) for name in row)
        # the float run of W4A4 was lent without its test rows.
        assert alone == (row["precision"] == "W4A4")


def is_float(row: Mapping[str, object]) -> bool:
    return row["precision"] == "float"
