"""Damaged stores: what is not as it was written is made again with the reason said; the rest is left."""

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from end_to_end.studies import ALONE, run, start, workers_of, write_study
from qbayes.lab.study.store.repair import UNREAD
from qbayes.lab.study.store.store import CHECKPOINT, DONE, FAILED, LOGS, RESULTS, ROW, ROWS
from qbayes.lab.study.work.worker_context import PROGRAM
from qbayes.posterior.storage.save import HEADER, WEIGHTS

# four float posteriors, three of which are quantised: what is damaged in one run.
STUDY = """
[study]
name = "damage"

[run]
task = "digits"
network = {name = "mlp", hidden = [8]}
method = "pointwise"
training = {epochs = 1, batch_size = 256}
quantize = {epochs = 0}
evaluate = {draws = 2, shifts = false, confusion = false}

[axes]
"method + precision" = [
    {method = ["pointwise", "mcd", {name = "mcd", rate = 0.4}, "bbb"], precision = "float"},
    {method = ["pointwise", "mcd", "bbb"], precision = "W8A8"},
]
"""
Damage = Callable[[Path], object]


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 16
    path.write_bytes(bytes(content))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    """What a power cut leaves of a file whose length came to the disk before its content."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    # not stacked: each posterior has a job of its own to be made again by.
    done = run("run", write_study(folder, STUDY), "--store", folder / "store", *ALONE, "--no-stack")
    assert done.returncode == 0, done.stderr
    assert "7 of 7 runs done" in done.stdout
    return folder / "store"


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "store")
    return tmp_path / "store"


def again(store: Path) -> list[str]:
    """The study once more: what it said of what was damaged."""
    found = run("run", write_study(store.parent, STUDY), "--store", store, *ALONE, "--no-stack", "--json")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Traceback" not in found.stderr
    notes = json.loads(found.stdout)["notes"]
    assert found.stderr.count("damaged  ") == 0, "they are in the document"
    return notes


def same(store: Path, whole: Path) -> None:
    """All that the whole store has, to the bit, whatever happened."""
    for name in ("results.csv", "planned.json"):
        assert (store / name).read_bytes() == (whole / name).read_bytes()
    for path in whole.glob("*/*/*"):
        # a program records how long its training took.
        if path.name in (WEIGHTS, ROW, ROWS):
            assert (store / path.relative_to(whole)).read_bytes() == path.read_bytes(), path
    rows = [json.loads(line) for line in (store / RESULTS).read_bytes().splitlines()]
    held = [json.loads(line) for line in (whole / RESULTS).read_bytes().splitlines()]
    assert {row["run"]: row for row in rows} == {row["run"]: row for row in held}


def stages(store: Path, stage: str) -> list[Path]:
    return sorted(path for path in (store / stage).iterdir())


def times(store: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in store.glob("*/*/*") if path.is_file()}


def forget_scores(store: Path) -> None:
    shutil.rmtree(store / "scores")
    (store / RESULTS).write_bytes(b"")


FLOATS: list[tuple[str, Damage, str]] = [
    (WEIGHTS, cut, "sha256"),
    (WEIGHTS, flip, "sha256"),
    (HEADER, empty, "readable JSON"),
    (WEIGHTS, Path.unlink, "No such file"),
]


def test_damaged_float_posteriors_are_made_again_with_the_reason(store: Path, whole: Path) -> None:
    """Cut, flipped, without JSON, without weights: one each."""
    forget_scores(store)
    shutil.rmtree(store / "quantised")
    shutil.rmtree(store / "program")
    for folder, (name, damage, _) in zip(stages(store, "float"), FLOATS, strict=True):
        damage(folder / name)
    notes = again(store)
    for folder, (name, _, why) in zip(stages(store, "float"), FLOATS, strict=True):
        (note,) = (note for note in notes if note.startswith(f"float {folder.name}: "))
        assert name in note
        assert why in note
        assert note.endswith("it was made again")
    assert len(notes) == 4
    same(store, whole)


def test_damaged_programs_and_what_they_were_made_from_are_made_again(store: Path, whole: Path) -> None:
    """One after the other comes to light: the study is planned anew each time."""
    forget_scores(store)
    for folder, damage in zip(stages(store, "program"), (cut, flip, empty), strict=True):
        damage(folder / PROGRAM)
    for folder, damage in zip(stages(store, "quantised"), (cut, flip, zeros), strict=True):
        damage(folder / (HEADER if damage is zeros else WEIGHTS))
    before = {path: time for path, time in times(store).items() if "float" in path.parts}
    notes = again(store)
    said = sorted(note.partition(":")[0] for note in notes)
    assert said == [
        f"{stage} {folder.name}" for stage in ("program", "quantised") for folder in stages(store, stage)
    ]
    assert {path: path.stat().st_mtime_ns for path in before} == before, "nothing else was made"
    same(store, whole)


def half_failed(path: Path) -> None:
    """Neither done nor failed: a note of failure that cannot be read is none."""
    path.unlink()
    (path.parent / FAILED).write_bytes(b'{"rea')


SCORES: list[tuple[str, Damage, str]] = [
    (DONE, empty, "done.json is damaged"),
    (DONE, lambda path: path.write_text("[]"), "done.json is damaged"),
    (DONE, half_failed, ""),
    (ROW, cut, "row.json is damaged"),
    (ROW, Path.unlink, "row.json is damaged"),
    (ROWS, cut, "safetensors"),
]


def test_a_stage_without_a_readable_end_is_not_done(store: Path, whole: Path) -> None:
    """The one that is whole is not touched, nor is any posterior or program."""
    *damaged, last = stages(store, "scores")
    for folder, (name, damage, _) in zip(damaged, SCORES, strict=True):
        damage(folder / name)
    before = {path: time for path, time in times(store).items() if path.parent not in damaged}
    notes = again(store)
    for folder, (_, _, why) in zip(damaged, SCORES, strict=True):
        found = [note for note in notes if note.startswith(f"scores {folder.name}: ")]
        assert len(found) == bool(why)
        assert all(why in note for note in found)
    assert not any(last.name in note for note in notes)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    same(store, whole)


def test_lines_that_cannot_be_read_are_written_anew_from_the_stages(store: Path, whole: Path) -> None:
    """… and a study that is whole otherwise starts no worker for it."""
    path = store / RESULTS
    lines = path.read_bytes().splitlines(keepends=True)
    # a byte lost, a line feed lost (two lines are one), no row, rubbish, a nest without end, a torn end.
    joined = lines[1].rstrip(b"\n") + lines[2]
    broken = [lines[0].replace(b'"', b"", 1), joined, b"[]\n", b"\xff\0\n", b"[" * 50_000 + b"\n"]
    path.write_bytes(b"".join(broken + lines[3:]) + b'{"run": "torn')
    before, logs = times(store), sorted((store / LOGS).iterdir())
    assert run("report", store).returncode == 2, "a report reads, and mends nothing"
    (note,) = again(store)
    assert "5 lines could not be read" in note
    assert (store / LOGS / UNREAD).read_bytes() == b"".join(broken)
    assert sorted((store / LOGS).iterdir()) == sorted([*logs, store / LOGS / UNREAD])
    assert {path: path.stat().st_mtime_ns for path in before if path.parent.name != LOGS} == {
        path: time for path, time in before.items() if path.parent.name != LOGS
    }
    assert again(store) == []
    same(store, whole)
    assert run("report", store).returncode == 0


def test_rows_that_were_changed_become_what_their_stages_say(store: Path, whole: Path) -> None:
    path = store / RESULTS
    path.write_bytes(re.sub(rb'"error": [0-9.]+', b'"error": 0.5', path.read_bytes()))
    assert again(store) == []
    same(store, whole)


def test_checkpoints_that_cannot_be_gone_on_from_are_left(store: Path, whole: Path) -> None:
    forget_scores(store)
    damages: list[tuple[Damage, str]] = [
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.write_bytes(b"\0" * 1000), "is damaged"),
    ]
    kept = []
    for folder, (damage, _) in zip(stages(store, "float"), damages, strict=False):
        (folder / DONE).unlink()
        (folder / CHECKPOINT).mkdir()
        damage(folder / CHECKPOINT / "chain-0000.checkpoint")
        kept.append(folder)
    notes = again(store)
    for folder, (_, why) in zip(kept, damages, strict=True):
        (note,) = (note for note in notes if note.startswith(f"float {folder.name}: "))
        assert why in note
        assert "starts from the beginning" in note
        assert not (folder / CHECKPOINT).exists()
    same(store, whole)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\0" * 200])
def test_a_header_that_is_lost_is_told_how_to_write_anew(content: bytes, store: Path, whole: Path) -> None:
    """It alone says whose store it is: that is for the user to know."""
    (store / "study.json").write_bytes(content)
    before = times(store)
    found = run("run", write_study(store.parent, STUDY), "--store", store, *ALONE)
    assert found.returncode == 2
    said = re.search(r"write (\{.*?\}) there", found.stderr)
    assert said
    assert times(store) == before
    (store / "study.json").write_text(said[1].replace("its name", "damage"))
    assert again(store) == []
    same(store, whole)


STACKED = STUDY.replace('"W8A8"', '"W4A4"').replace(
    "quantize = {epochs = 0}", "quantize = {epochs = 1, least_steps = 0}"
)


def test_a_stack_is_made_again_whole_and_to_the_same_bits(tmp_path: Path) -> None:
    """Networks of a stack that are there are trained with the one that is not, and not written."""
    text = STACKED.partition("[axes]")[0] + '[axes]\nseed = [0, 1, 2]\nprecision = ["float", "W4A4"]\n'
    study = write_study(tmp_path, text)
    first = run("run", study, "--store", tmp_path / "store", *ALONE)
    assert first.returncode == 0, first.stderr
    table = (tmp_path / "store" / "results.csv").read_bytes()
    forget_scores(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "program")
    damaged, *others = stages(tmp_path / "store", "float")
    quantised = stages(tmp_path / "store", "quantised")[1]
    weights = (damaged / WEIGHTS).read_bytes()
    cut(damaged / WEIGHTS)
    flip(quantised / WEIGHTS)
    before = [(folder / WEIGHTS).stat().st_mtime_ns for folder in others]
    second = run("run", study, "--store", tmp_path / "store", *ALONE)
    assert second.returncode == 0, second.stderr
    assert f"damaged  float {damaged.name}" in second.stderr
    assert f"damaged  quantised {quantised.name}" in second.stderr
    assert (damaged / WEIGHTS).read_bytes() == weights
    assert [(folder / WEIGHTS).stat().st_mtime_ns for folder in others] == before
    assert (tmp_path / "store" / "results.csv").read_bytes() == table


def test_what_is_cut_while_a_study_runs_is_made_again(store: Path, whole: Path) -> None:
    """The worker has not come to it yet, or is reading it: it does not die of that."""
    forget_scores(store)
    process = start("run", write_study(store.parent, STUDY), "--store", store, *ALONE, "--no-stack")
    while not workers_of(process) and process.poll() is None:
        time.sleep(0.05)
    for folder in stages(store, "float"):
        cut(folder / WEIGHTS)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "ended with code" not in err
    assert "Fatal Python error" not in "".join(path.read_text() for path in (store / LOGS).glob("worker*"))
    assert err.count("damaged  float") >= 1
    again(store)
    assert (store / "results.csv").read_bytes() == (whole / "results.csv").read_bytes()


def test_nothing_is_mapped() -> None:
    """A file that is cut while it is mapped ends its reader by SIGBUS; what was read is the reader's own."""
    source = Path(__file__).parents[2] / "src"
    mapped = re.compile(r"safe_open|load_file|mmap_mode|memmap|import mmap|mmap=True|from_file\(")
    assert [path for path in source.rglob("*.py") if mapped.search(path.read_text(encoding="utf-8"))] == []
