"""The parts of the executor ray: what a node carries, who sees the folder, how stages travel."""

import contextlib
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from qbayes.errors import BadFile, BadInput
from qbayes.lab.study.executors import ray_store
from qbayes.lab.study.executors.base import Conditions
from qbayes.lab.study.executors.ray import Ray
from qbayes.lab.study.executors.ray_cluster import Share, connect, device_on, share_for, work
from qbayes.lab.study.executors.ray_store import Beacon, claimed, pack, sees, stages_of, unpack
from qbayes.lab.study.store.store import Store
from qbayes.provenance import versions


def test_workers_must_be_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="workers"):
        Ray(Conditions(tmp_path), workers=0)


@pytest.mark.parametrize("address", ["cluster", "cluster:", ":6379", "ray://cluster", "cluster:six"])
def test_an_address_names_a_host_and_a_port(address: str) -> None:
    needs.package("ray")
    with pytest.raises(BadInput, match="host:port") as refusal:
        connect(address, 1)
    assert address in refusal.value.must


def a_node(cpus: float, gpus: float = 0, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpus, **({"GPU": gpus} if gpus else {})}}


def test_threads_of_a_job_are_on_one_node() -> None:
    nodes = [a_node(3), a_node(4), a_node(64, alive=False)]
    assert [Share(2, 0).fits(node) for node in nodes] == [1, 2, 0]
    assert share_for(nodes, 4, "cpu") == Share(4, 0)
    with pytest.raises(BadInput, match="has 4"):
        share_for(nodes, 5, "cpu")


def test_one_kind_of_device_for_all_jobs() -> None:
    mixed, plain = [a_node(16, gpus=1), a_node(4)], [a_node(4), a_node(16, gpus=1, alive=False)]
    assert device_on(mixed, "auto") == device_on(mixed, "cuda:1") == "cuda"
    assert device_on(mixed, "cpu") == device_on(plain, "auto") == "cpu"
    share = share_for(mixed, 1, "cuda")
    assert [share.fits(node) for node in mixed] == [8, 0]
    assert share.gpus * 8 == 1
    with pytest.raises(BadInput, match="GPU"):
        device_on(plain, "cuda")


@contextlib.contextmanager
def held_by_another(path: Path, byte: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process holds a byte of the file, for a minute at most."""
    code = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, int(sys.argv[2]))\n"
        "print('held', flush=True)\n"
        "time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path), str(byte)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        yield holder
    finally:
        holder.kill()
        holder.communicate()


def is_held(path: Path, byte: int) -> bool:
    """Whether another process finds the byte locked."""
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(path), str(byte)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0 or "BlockingIOError" in found.stderr
    return found.returncode != 0


def byte_of(job: str) -> int:
    return 1 + int.from_bytes(hashlib.sha256(job.encode()).digest()[:7], "little")


def test_a_folder_is_seen_by_its_token_and_its_lock(tmp_path: Path) -> None:
    assert not sees(tmp_path, "")
    assert not sees(tmp_path, "abc")
    (tmp_path / "lock-ray").write_text("abc")
    assert not sees(tmp_path, "abc")  # the locks of the one who leads do not reach here
    with held_by_another(tmp_path / "lock-ray", 0):
        assert sees(tmp_path, "abc")
        assert not sees(tmp_path, "abd")
        assert not sees(tmp_path / "elsewhere", "abc")


def test_one_process_leads_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock-ray"
    path.write_text("abc")
    with held_by_another(path, 0):
        monkeypatch.setattr("qbayes.lab.study.executors.ray_store._PATIENCE", 0.5)
        with pytest.raises(BadInput, match="one run at a time"):
            Beacon(tmp_path)
    assert path.read_text() == "abc"
    beacon = Beacon(tmp_path)
    with beacon.claimed("float:a"):
        assert is_held(path, byte_of("float:a"))
    assert not is_held(path, byte_of("float:a"))
    assert is_held(path, 0)
    beacon.close()
    # not before: a process that closes the file anywhere gives up its locks.
    assert path.read_text() == beacon.token != "abc"


def test_a_job_waits_for_the_process_that_had_it(tmp_path: Path) -> None:
    path = tmp_path / "lock-ray"
    path.write_text("abc")
    killed = threading.Event()
    with held_by_another(path, byte_of("float:a")) as holder:
        with claimed(tmp_path, "float:b"):
            assert holder.poll() is None

        def die() -> None:
            killed.set()
            holder.kill()

        threading.Timer(0.5, die).start()
        with claimed(tmp_path, "float:a"):
            assert killed.is_set()


def test_stages_of_a_job_come_after_those_they_start_from() -> None:
    assert stages_of({"kind": "float", "stages": [("a", {}), ("b", {})]}) == [("float", "a"), ("float", "b")]
    answers = {"kind": "answers", "float": "f", "quantised": "q", "program": "p", "runs": [("s", {})]}
    assert stages_of(answers) == [("float", "f"), ("quantised", "q"), ("program", "p"), ("scores", "s")]
    float_run = {**answers, "quantised": None, "program": None}
    assert stages_of(float_run) == [("float", "f"), ("scores", "s")]


def test_a_stage_travels_whole_and_is_done_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    folder = here.begin("float", "key")
    (folder / "members").mkdir()
    (folder / "checkpoint").mkdir()
    for name in ("weights", "members/0", "checkpoint/state"):
        (folder / name).write_bytes(name.encode())
    (folder / "done.json").write_text('{"seconds": 1.5}')
    files = pack(here, "float", "key")
    assert set(files) == {"weights", "members/0", "done.json"}

    def full(path: Path, content: bytes) -> None:
        raise BadFile("the disk must have room", "it is full", "free some")

    with monkeypatch.context() as patched:
        patched.setattr(ray_store, "write_atomically", full)
        with pytest.raises(BadFile):
            unpack(there, "float", "key", files)
    assert not there.is_done("float", "key")
    unpack(there, "float", "key", files)
    assert there.records("float") == {"key": {"seconds": 1.5}}
    assert pack(there, "float", "key")["members/0"] == b"members/0"
    here.fail("scores", "key", "NaN")
    unpack(there, "scores", "key", pack(here, "scores", "key"))
    assert there.failed_keys("scores") == {"key": "NaN"}


def test_a_node_with_another_version_is_refused() -> None:
    order = {"store": "nowhere", "token": "abc", "versions": {**versions(), "torch": "1.0"}}
    answer = work(order, None)
    assert answer["kind"] == "refused"
    assert "instead of 1.0" in answer["got"]
    same = {**order, "versions": {**versions(), "torch": versions()["torch"].partition("+")[0] + "+cu130"}}
    assert work(same, None) == {"kind": "unseen", "notes": []}


def test_a_node_that_finds_damage_sets_the_stage_back_and_says_so(tmp_path: Path) -> None:
    beacon = subprocess.Popen(
        [sys.executable, "-c", LEADER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert beacon.stdout is not None
        token = beacon.stdout.readline().strip()
        store = Store(tmp_path)
        (store.begin("float", "f") / "posterior.json").write_bytes(b"{")
        store.finish("float", "f", {})
        more = {"precision": "float", "seed": 0, "evaluate": {}, "quantize": {}}
        run = {"task": "digits", "network": "mlp", "method": "pointwise", **more}
        stages = {"float": "f", "quantised": None, "program": None}
        payload = {"kind": "answers", **stages, "runs": [("s", run)], "threads": 1}
        order = {
            "store": str(tmp_path),
            "data_dir": None,
            "device": "cpu",
            "token": token,
            "versions": versions(),
        }
        answer = work({**order, "job": "answers:f", "payload": payload}, None)
    finally:
        beacon.kill()
        beacon.communicate()
    assert (answer["kind"], answer["stage"], answer["key"]) == ("damaged", "float", "f")
    assert "readable JSON" in answer["text"]
    assert not store.is_done("float", "f")
    assert store.why_failed("scores", "s") is None


LEADER = """
import sys
from pathlib import Path
from qbayes.lab.study.executors.ray_store import Beacon
beacon = Beacon(Path(sys.argv[1]))
print(beacon.token, flush=True)
sys.stdin.read()
"""
