"""Studies on Ray: two real nodes, one of them killed; with and without a folder that all see."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import needs
from end_to_end.conftest import Cli
from end_to_end.studies import SMALL, STACKED, kill, run_apart, start, write_study
from qbayes.lab.study.executors import ray as executor_module
from qbayes.lab.study.executors.base import Event
from qbayes.lab.study.executors.ray import Ray
from qbayes.lab.study.leader import Progress
from qbayes.lab.study.run import Outcome, run_study
from qbayes.lab.study.spec.study import Study

needs_ray = needs.installed("ray")
# trainings of some seconds, so that a node can die during one.
TEXT = SMALL.replace("epochs = 2,", "epochs = 6,")
NODE: Mapping[str, Any] = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 100_000_000}
PATIENCE = 90  # seconds


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.read(write_study(tmp_path_factory.mktemp("study"), TEXT))


@pytest.fixture(scope="module")
def on_one_machine(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the local executor."""
    store = tmp_path_factory.mktemp("local") / "store"
    assert run_study(study, store, device="cpu", workers=1).done == 6
    return store


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each. Afterwards, no process of theirs is left."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    nodes.add_node(**NODE)
    yield nodes
    STARTED.update(family(os.getpid()))
    nodes.shutdown()
    # the agents of a node that was killed take a minute to notice.
    for pid, _ in STARTED & alive().keys():
        kill(pid)
    check_gone(STARTED)


Process = tuple[int, str]  # the id, and the time it started, as an id may be given again
STARTED: set[Process] = set()


def alive() -> dict[Process, int]:
    """All processes, with the id of their parent; those that only wait to be buried are not alive."""
    found: dict[Process, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                found[int(path.parent.name), fields[19]] = int(fields[1])
    return found


def family(root: int) -> set[Process]:
    """The children of a process, theirs, and so on."""
    parents, found, new = alive(), set[Process](), {root}
    while new:
        born = {process for process, parent in parents.items() if parent in new} - found
        found |= born
        new = {pid for pid, _ in born}
    return found


def check_gone(processes: set[Process]) -> None:
    deadline = time.monotonic() + PATIENCE
    while processes & alive().keys() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not processes & alive().keys()


class Heard:
    """What the executor said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Event] = []
        self.slots: set[int] = set()
        wait = Ray.wait

        def listening(executor: Ray, seconds: float) -> list[Event]:
            found = wait(executor, seconds)
            self.events += found
            self.slots.add(executor.slots)
            return found

        monkeypatch.setattr(Ray, "wait", listening)

    def kinds(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]


def hide_the_folder(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first job goes out, the nodes come to see a folder that is not the leader's."""
    submit = Ray.submit

    def hidden(executor: Ray, job: str, payload: Mapping[str, Any]) -> None:
        (store / "lock-ray").write_text("the token of another folder")
        submit(executor, job, payload)

    monkeypatch.setattr(Ray, "submit", hidden)


def check_same(store: Path, outcome: Outcome, expected: Path) -> None:
    assert (outcome.done, outcome.failed, outcome.planned) == (6, 0, 6)
    assert not list(store.glob("*/*/failed.json"))
    assert (store / "results.csv").read_bytes() == (expected / "results.csv").read_bytes()
    each_row = list(expected.glob("scores/*/rows.safetensors"))
    assert len(each_row) == 6
    for path in each_row:
        assert (store / path.relative_to(expected)).read_bytes() == path.read_bytes()


@needs_ray
# the short run sends stacks through the object store (below).
@pytest.mark.parametrize(
    "seen", [True, pytest.param(False, marks=pytest.mark.full)], ids=["shared folder", "object store"]
)
def test_two_nodes_give_the_table_of_one_machine(
    seen: bool,
    study: Study,
    on_one_machine: Path,
    cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, store = Heard(monkeypatch), tmp_path / "store ü"
    if not seen:
        hide_the_folder(store, monkeypatch)
    options = {"address": cluster.address}
    outcome = run_study(study, store, device="cpu", executor="ray", options=options)
    check_same(store, outcome, on_one_machine)
    assert max(heard.slots) == 2
    # two trainings and three precisions of each, every one done once.
    assert len(heard.kinds("done")) == 2 + 6
    assert not heard.kinds("lost", "stopped")
    assert "mcd on digits, W4A4, seed 0" in {event.text for event in heard.kinds("started")}


@needs_ray
def test_damage_that_a_node_finds_is_made_good_in_the_store(
    study: Study, on_one_machine: Path, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node works on copies: what is set back, and made again, is what they were copied from."""
    store = tmp_path / "store"
    shutil.copytree(on_one_machine, store)
    for stage in ("quantised", "program", "scores"):
        shutil.rmtree(store / stage)
    (store / "results.jsonl").write_bytes(b"")
    damaged, _ = sorted((store / "float").iterdir())
    weights = damaged / "weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    hide_the_folder(store, monkeypatch)
    outcome = run_study(study, store, device="cpu", executor="ray", options={"address": cluster.address})
    check_same(store, outcome, on_one_machine)
    (note,) = outcome.notes
    assert note.startswith(f"float {damaged.name}: ")
    assert "sha256" in note
    assert weights.read_bytes() == content


@needs_ray
def test_stacks_travel_whole_through_the_object_store(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.from_toml(STACKED.replace("[0, 1, 2, 3]", "[0, 1, 2]"))
    alone, store = tmp_path / "alone", tmp_path / "store"
    run_study(study, alone, device="cpu", workers=1)
    heard = Heard(monkeypatch)
    hide_the_folder(store, monkeypatch)
    run_study(study, store, device="cpu", executor="ray", options={"address": cluster.address})
    # a stack for each method; one for each of its two precisions; and then each run.
    assert len(heard.kinds("done")) == 3 + 6 + 27
    assert not heard.kinds("lost", "stopped")
    assert (store / "results.csv").read_bytes() == (alone / "results.csv").read_bytes()


@needs_ray
@pytest.mark.parametrize(
    "shared", [None, pytest.param(False, marks=pytest.mark.full)], ids=["shared folder", "object store"]
)
def test_a_node_killed_in_mid_study_costs_no_result(
    shared: bool | None,
    study: Study,
    on_one_machine: Path,
    cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, store = Heard(monkeypatch), tmp_path / "store"
    [second] = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]
    begun, done_before = time.time(), list[int]()

    def trainings() -> int:
        own = Path(tempfile.gettempdir()).glob("qbayes-*/float/*")
        found = store.glob("float/*") if shared is None else own
        return sum(path.stat().st_mtime > begun for path in found)

    def kill_when_both_train(progress: Progress) -> None:
        if not done_before and trainings() == 2:
            done_before.append(len(heard.kinds("done")))
            STARTED.update(family(os.getpid()))
            cluster.remove_node(second, allow_graceful=False)

    options = {"address": cluster.address, "shared": shared}
    outcome = run_study(
        study, store, device="cpu", executor="ray", options=options, watch=kill_when_both_train
    )
    cluster.add_node(**NODE)
    assert done_before == [0]
    [lost] = heard.kinds("lost")
    assert lost.job.startswith("float:")
    check_same(store, outcome, on_one_machine)


@needs_ray
@pytest.mark.full
def test_a_cluster_of_our_own_ends_with_the_study_or_with_its_death(
    on_one_machine: Path, tmp_path: Path
) -> None:
    arguments = ["run", write_study(tmp_path, TEXT), "--store", tmp_path / "store", "--executor", "ray"]
    arguments += ["--workers", "2", "--device", "cpu", "--no-report", "--json"]
    process = start(*arguments)
    deadline = time.monotonic() + PATIENCE
    while not list((tmp_path / "store").glob("float/*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    started = family(process.pid)
    assert len(started) > 4  # the process with Ray, and Ray's own
    kill(process.pid)
    process.communicate()
    check_gone(started)
    done = run_apart(*arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 6  # and nothing of Ray's on standard output
    expected = (on_one_machine / "results.csv").read_bytes()
    assert (tmp_path / "store" / "results.csv").read_bytes() == expected


def contents(folder: Path) -> dict[str, bytes]:
    """What a store holds; the lock says who came last."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def half_done(study: Study, on_one_machine: Path, tmp_path: Path) -> Path:
    """A store in which one run is left to do."""
    store = tmp_path / "store"
    shutil.copytree(on_one_machine, store)
    shutil.rmtree(next(iter(store.glob("scores/*"))))
    (store / "results.jsonl").write_bytes(b"".join(rows_that_are_done(store)))
    return store


def rows_that_are_done(store: Path) -> list[bytes]:
    lines = (store / "results.jsonl").read_bytes().splitlines(keepends=True)
    return [line for line in lines if (store / "scores" / json.loads(line)["run"]).exists()]


@contextlib.contextmanager
def silent_port() -> Iterator[str]:
    """Somebody listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@needs_ray
def test_an_address_that_does_not_answer_is_refused_soon_and_changes_nothing(
    half_done: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "_JOIN", 4.0)
    before, path = contents(half_done), write_study(tmp_path, TEXT)
    with silent_port() as silent:
        free = "127.0.0.1:1"  # nobody listens at port 1
        for address, got in {free: "refused", silent: "no answer within 4 s"}.items():
            begun = time.monotonic()
            found = cli("study", "run", path, "--store", half_done, "--executor", "ray", "--address", address)
            assert time.monotonic() - begun < PATIENCE
            assert found.code == 2
            assert f"must answer at {address}" in found.err
            assert got in found.err
            assert "ray status" in found.err
            assert contents(half_done) == before


def test_without_ray_the_module_imports_and_its_use_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "import qbayes.lab.study.executors.ray\n"
        "from qbayes.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["study", "run", str(write_study(tmp_path)), "--store", str(tmp_path / "store")]
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--executor", "ray"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert "pip install 'qbayes[ray]'" in found.stderr
    assert "Traceback" not in found.stderr
