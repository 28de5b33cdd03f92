"""Studies from the command line: run, resume, fail, retry; killed at random, the table is the same."""

import csv
import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from end_to_end.studies import ALONE, SMALL, kill, run, start, workers_of, write_study
from qbayes.lab.analysis.frame import Frame
from qbayes.training.checkpoint import read_checkpoint

IDENTITY = ("method", "precision", "weight", "activation", "training", "backend")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was run in one go."""
    folder = tmp_path_factory.mktemp("one go")
    done = run("run", write_study(folder), "--store", folder / "store", *ALONE)
    assert done.returncode == 0, done.stderr
    assert "6 of 6 runs done" in done.stdout
    return folder / "store"


def table(store: Path) -> list[dict[str, str]]:
    with (store / "results.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_table_has_a_row_for_every_run(uninterrupted: Path) -> None:
    rows = table(uninterrupted)
    found = {tuple(row[name] for name in IDENTITY) for row in rows}
    assert found == {
        (method, *bits)
        for method in ("pointwise", "mcd")
        for bits in (
            ("float", "32", "32", "float", "float"),
            ("W8A8", "8", "8", "trained", "reference"),
            ("W4A4", "4", "4", "trained", "reference"),
        )
    }
    assert all(row["status"] == "done" and 0 < float(row["error"]) < 0.9 for row in rows)
    # a quantised run is paired with the float run that it came from.
    assert all(len([r for r in rows if r["float"] == row["float"]]) == 3 for row in rows)
    assert "seconds" not in rows[0]


def test_a_real_store_is_published_and_reported_from_the_table(uninterrupted: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.csv"
    exported = run("export", uninterrupted, small, "--digits", "17")
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout.startswith("6 runs in ")
    whole, found = Frame.read(uninterrupted), Frame.read(small)
    for wanted, row in zip(whole.rows, found.rows, strict=True):
        ours = {name: value for name, value in wanted.items() if name not in ("run", "float")}
        assert {
            name: value for name, value in row.items() if name not in ("run", "float")
        }.items() <= ours.items()
        assert {name for name in ours if name not in row} == {"axis:method", "axis:precision"}
    assert "--out" in run("report", small).stderr
    written = run("report", small, "--out", tmp_path / "page")
    assert written.returncode == 0, written.stderr
    assert "Read from small.csv alone" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    compared = run("compare", uninterrupted, small)
    assert compared.stdout.startswith("6 runs are in both; 0 of "), compared.stdout + compared.stderr


def test_a_row_is_what_the_verbs_give(uninterrupted: Path) -> None:
    import qbayes as qb

    row = next(row for row in table(uninterrupted) if (row["method"], row["precision"]) == ("mcd", "W4A4"))
    key = json.loads((uninterrupted / "planned.json").read_text())
    assert row["run"] in key
    programs = [path / "program.qbayes" for path in (uninterrupted / "program").iterdir()]
    task = qb.load_task("digits")
    found = [
        qb.evaluate(qb.load(qb.Program.open(path), "reference"), task, 3, shifts=False) for path in programs
    ]
    assert any(repr(scores.clean["nll"]) == row["nll"] for scores in found)


def test_a_row_names_the_backend_that_auto_took(uninterrupted: Path, tmp_path: Path) -> None:
    import qbayes as qb

    text = SMALL.replace("draws = 3", 'draws = 3, backend = "auto"')
    assert text != SMALL
    done = run(
        "run", write_study(tmp_path, text), "--store", tmp_path / "store", "--from", uninterrupted, *ALONE
    )
    assert done.returncode == 0, done.stderr
    taken = {
        qb.load(qb.Program.open(path)).backend.name
        for path in (uninterrupted / "program").glob("*/program.qbayes")
    }
    assert {row["backend"] for row in table(tmp_path / "store")} == {"float", *taken}
    assert "auto" not in taken


def test_running_again_does_nothing_and_a_wider_study_only_what_is_new(
    uninterrupted: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(uninterrupted, store)
    before = {path: path.stat().st_mtime_ns for path in store.glob("*/*/done.json")}
    lines = (store / "results.jsonl").read_bytes()
    again = run("run", write_study(tmp_path), "--store", store, *ALONE)
    assert again.returncode == 0
    assert (store / "results.jsonl").read_bytes() == lines
    wider = SMALL.replace('"W4A4"]', '"W4A4", "W3A3"]')
    planned = run("plan", write_study(tmp_path, wider), "--store", store, "--json")
    stages = json.loads(planned.stdout)["stages"]
    assert {name: held["left"] for name, held in stages.items()} == {
        "float": 0, "quantised": 2, "program": 2, "scores": 2,
    }  # fmt: skip
    assert json.loads(planned.stdout)["stages_never_measured"] == 0
    assert json.loads(planned.stdout)["seconds_left_on_one_worker"] > 0
    grown = run("run", write_study(tmp_path, wider), "--store", store, *ALONE)
    assert "8 of 8 runs done" in grown.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(table(store)) == 8


def killed_at_random(folder: Path, kills: int, seed: int) -> list[Path]:
    """Stores of studies that were killed, and their workers, at random moments, until all kills are spent."""
    chance, stores, left = random.Random(seed), list[Path](), kills
    study = write_study(folder)
    while left or not stores:
        store = folder / f"store {len(stores)} ü"
        stores.append(store)
        while True:
            process = start("run", study, "--store", store, "--device", "cpu", "--no-report")
            try:
                _, err = process.communicate(timeout=chance.uniform(0.5, 14) if left else 300)
                assert process.returncode == 0, f"{store} after {kills - left} kills: {err}"
                break
            except subprocess.TimeoutExpired:
                left -= 1
                workers = workers_of(process)
                if workers and chance.random() < 0.4:
                    kill(chance.choice(workers))
                    _, err = process.communicate(timeout=300)
                    # a worker's death is made good at once
                    assert process.returncode == 0, f"{store} after {kills - left} kills: {err}"
                    break
                kill(process.pid)
                process.communicate()
    return stores


def check_same(stores: list[Path], uninterrupted: Path) -> None:
    expected = (uninterrupted / "results.csv").read_bytes()
    for store in stores:
        assert (store / "results.csv").read_bytes() == expected
        lines = [json.loads(line) for line in (store / "results.jsonl").read_text().splitlines()]
        assert {line["run"] for line in lines} == {row["run"] for row in table(uninterrupted)}


def test_killed_at_random_moments_it_ends_with_the_same_table(uninterrupted: Path, tmp_path: Path) -> None:
    check_same(killed_at_random(tmp_path, 4, seed=0), uninterrupted)


@pytest.mark.full
def test_killed_at_thirty_random_moments_it_ends_with_the_same_table(
    uninterrupted: Path, tmp_path: Path
) -> None:
    check_same(killed_at_random(tmp_path, 30, seed=1), uninterrupted)


def test_workers_leave_when_the_one_who_leads_is_killed(tmp_path: Path) -> None:
    process = start("run", write_study(tmp_path), "--store", tmp_path / "s", "--device", "cpu", "--no-report")
    deadline = time.monotonic() + 60
    while not (workers := workers_of(process)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers
    kill(process.pid)
    process.communicate()
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_ctrl_c_stops_with_130_and_the_same_command_goes_on(uninterrupted: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    process = start("run", write_study(tmp_path), "--store", store, "--device", "cpu", "--no-report")
    deadline = time.monotonic() + 60
    while not list(store.glob("float/*/done.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    again = run("run", write_study(tmp_path), "--store", store, *ALONE)
    assert again.returncode == 0
    check_same([store], uninterrupted)


def stopped_after(seconds: float, study: Path, store: Path) -> list[Path]:
    """The checkpoints of a study that is stopped so long after its training was handed out."""
    process = start("run", study, "--store", store, "--device", "cpu", "--workers", "1")
    deadline = time.monotonic() + 60
    while not list(store.glob("float/*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    (worker,) = workers_of(process)
    time.sleep(seconds)
    assert not list(store.glob("float/*/checkpoint/*"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not Path(f"/proc/{worker}").exists()
    return [path for path in store.glob("float/*/checkpoint/*") if path.name != "spent.json"]


def test_a_study_that_is_stopped_leaves_the_checkpoint_of_its_last_step(tmp_path: Path) -> None:
    """Checkpoints are written once a minute: one that is there sooner was written to stop."""
    study = write_study(tmp_path, SMALL.replace("training = {epochs = 2,", "training = {epochs = 100000,"))
    found: list[Path] = []
    for number, seconds in enumerate((8, 20, 40)):
        found = stopped_after(seconds, study, tmp_path / f"store{number}")
        # on a busy machine the worker may still be importing torch: then there is no step to keep.
        if found:
            break
    (held,) = found
    tensors, values = read_checkpoint(held)
    assert values["epoch"] > 1
    assert any(name.startswith("module/") for name in tensors)


def test_after_its_minutes_a_study_stops_and_the_same_command_goes_on(
    uninterrupted: Path, tmp_path: Path
) -> None:
    study, store = write_study(tmp_path), tmp_path / "store"
    # three seconds: its worker has hardly imported torch.
    first = run("run", study, "--store", store, *ALONE, "--minutes", "0.05")
    assert first.returncode == 3, first.stderr
    assert "runs are left, and the same command goes on" in first.stderr
    # each slice is longer: on a busy machine a worker takes that long to import torch.
    for minutes in (0.2 * 1.5**turn for turn in range(8)):
        last = run("run", study, "--store", store, *ALONE, "--minutes", str(minutes))
        if last.returncode != 3:
            break
    assert last.returncode == 0, last.stderr
    check_same([store], uninterrupted)


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_minutes_are_above_nothing_and_end(minutes: str, tmp_path: Path) -> None:
    found = run("run", write_study(tmp_path), "--store", tmp_path / "s", *ALONE, "--minutes", minutes)
    assert found.returncode == 2
    assert "a study needs some minutes" in found.stderr
    assert not (tmp_path / "s").exists()


def test_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    study, store = write_study(tmp_path), tmp_path / "store"
    first = start("run", study, "--store", store, *ALONE)
    deadline = time.monotonic() + 60
    while not list(store.glob("float/*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    # held still, so that it cannot end while the second waits whether it is about to die.
    first.send_signal(signal.SIGSTOP)
    try:
        second = run("run", study, "--store", store, *ALONE)
    finally:
        first.send_signal(signal.SIGCONT)
    assert second.returncode == 2, second.stdout + second.stderr
    assert "one run at a time" in second.stderr
    out, err = first.communicate(timeout=300)
    assert out
    assert first.returncode == 0, err


def test_a_run_that_fails_is_recorded_does_not_stop_the_others_and_can_be_retried(tmp_path: Path) -> None:
    text = SMALL.replace(
        'method = ["pointwise", {name = "mcd", rate = 0.2}]',
        '"method + training" = [{method = "pointwise", training = {epochs = 2}}, '
        '{method = {name = "pointwise", optimizer = "sgd"}, training = {epochs = 2, learning_rate = 1e9}}]',
    )
    study, store = write_study(tmp_path, text), tmp_path / "store"
    found = run("run", study, "--store", store, *ALONE, "--json")
    assert found.returncode == 1
    document = json.loads(found.stdout)
    assert document["done"] == 3
    assert len(document["failed"]) == 3
    assert all("float" in reason and "loss" in reason for reason in document["failed"].values())
    assert sorted(row["status"] for row in table(store)) == ["done"] * 3 + ["failed"] * 3
    status = run("status", store)
    assert "3 of 6 runs done" in status.stdout
    assert status.stdout.count("failed  pointwise on digits") == 3
    failed = list(store.glob("float/*/failed.json"))
    before = failed[0].stat().st_mtime_ns
    run("run", study, "--store", store, *ALONE)
    assert failed[0].stat().st_mtime_ns == before  # not tried again unless asked
    again = run("run", study, "--store", store, *ALONE, "--retry")
    assert again.returncode == 1
    assert failed[0].stat().st_mtime_ns > before
