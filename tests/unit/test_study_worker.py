"""A worker process: what nobody foresaw ends it with a reason, not with an abort."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qbayes.lab.study.executors.base import Conditions, Event, import_paths
from qbayes.lab.study.executors.local import Local
from qbayes.lab.study.store.store import LOGS, Store


def told(executor: Local, job: str, payload: dict[str, Any]) -> list[Event]:
    """All that is said of a job, up to its end."""
    executor.submit(job, payload)
    found: list[Event] = []
    while not any(event.ends for event in found):
        found += executor.wait(60)
    return found


def test_what_nobody_foresaw_is_told_in_its_own_words(tmp_path: Path) -> None:
    executor = Local(Conditions(tmp_path, device="cpu"), workers=1)
    try:
        (event,) = told(executor, "job", {"kind": "answers", "threads": 1})
        (again,) = told(executor, "another", {"kind": "none of ours", "threads": 1})
    finally:
        executor.close()
    assert (event.kind, event.text) == ("lost", "KeyError: 'runs'")
    assert (again.kind, again.text) == ("lost", "KeyError: 'none of ours'")
    logs = [path.read_text() for path in sorted((tmp_path / LOGS).iterdir())]
    assert len(logs) == 2, "each in a process of its own"
    for log in logs:
        assert log.rstrip().splitlines()[-1].startswith("KeyError")
        assert "Fatal Python error" not in log


def test_a_worker_that_finds_damage_lives_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    more = {"precision": "float", "seed": 0, "evaluate": {}, "quantize": {}}
    run = {"task": "digits", "network": "mlp", "method": "pointwise", **more}
    stages = {"float": "f", "quantised": None, "program": None}
    job = {"kind": "answers", **stages, "runs": [("s", run)], "threads": 1}
    executor = Local(Conditions(tmp_path, device="cpu"), workers=1)
    try:
        for _ in range(2):
            (store.begin("float", "f") / "posterior.json").write_bytes(b"{")
            store.finish("float", "f", {})
            *_, event = told(executor, "job", job)
            assert event.kind == "damaged"
            assert event.text.startswith("float f: ")
            assert not store.is_done("float", "f")
    finally:
        executor.close()
    assert len(list((tmp_path / LOGS).iterdir())) == 1, "one process for both"


def test_its_exit_code_is_no_signal(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "qbayes.lab.study.work.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(import_paths())},
    )
    messages = [
        {"store": str(tmp_path), "data_dir": None, "device": "cpu"},
        {"job": "j", "payload": {"kind": "?", "threads": 1}},
    ]
    assert process.stdin is not None
    process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
    process.stdin.flush()
    assert process.wait(60) == 1
    assert process.stderr is not None
    assert process.stderr.read().rstrip().endswith(b"KeyError: '?'")
    process.stdin.close()


def test_workers_look_where_this_process_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The current folder only where it is one of those places."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/a", "b"])
    assert import_paths() == ["/a", str(tmp_path / "b")]
    monkeypatch.setattr(sys, "path", ["", "/a"])
    assert import_paths() == [str(tmp_path), "/a"]
