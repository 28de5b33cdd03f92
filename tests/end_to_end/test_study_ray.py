"""Studies on Ray: two real nodes, one of them killed; with and without a folder that all see."""

import contextlib
import importlib.util
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from end_to_end.studies import SMALL, kill, start, workers_of, write_study
from qbayes.cli import main
from qbayes.errors import BadInput
from qbayes.study.executors.base import EXECUTORS, Conditions, Event
from qbayes.study.executors.ray import Ray
from qbayes.study.run import Outcome, Progress, run_study
from qbayes.study.spec import Study

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (the extra ray brings it)"
)
# trainings of a few seconds, so that a node can die during one.
TEXT = SMALL.replace("epochs = 2,", "epochs = 12,")
JOIN_SECONDS = 60


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.read(write_study(tmp_path_factory.mktemp("study"), TEXT))


@pytest.fixture(scope="module")
def one_by_one(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the local executor."""
    store = tmp_path_factory.mktemp("local") / "store"
    assert run_study(study, store, device="cpu", workers=2).done == 6
    return store


def ray_processes(session: str) -> list[str]:
    """Command lines of what belongs to a session of Ray."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if session in text and "pytest" not in text:
                found.append(text)
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each. Afterwards, no process of theirs is left."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 100_000_000}
    nodes = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    nodes.add_node(**node)
    session = nodes.head_node.get_session_dir_path()
    yield nodes
    nodes.shutdown()
    deadline = time.monotonic() + JOIN_SECONDS
    while ray_processes(session) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ray_processes(session) == []


def check_same(store: Path, outcome: Outcome, expected: Path) -> None:
    assert (outcome.done, outcome.failed, outcome.planned) == (6, 0, 6)
    assert not list(store.glob("*/*/failed.json"))
    assert (store / "results.csv").read_bytes() == (expected / "results.csv").read_bytes()


class Heard:
    """What the executor said, and where files came from."""

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


@needs_ray
@pytest.mark.parametrize("shared", [None, False], ids=["shared folder", "object store"])
def test_two_nodes_give_the_table_of_one_machine(
    shared: bool | None,
    study: Study,
    one_by_one: Path,
    cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, store = Heard(monkeypatch), tmp_path / "store ü"
    options = {"address": cluster.address, "shared": shared}
    outcome = run_study(study, store, device="cpu", executor="ray", options=options)
    check_same(store, outcome, one_by_one)
    assert max(heard.slots) == 2
    # two trainings and six precisions of them, each done once.
    assert len(heard.kinds("done")) == 8
    assert not heard.kinds("lost", "stopped")
    assert {event.text for event in heard.kinds("started")} >= {"mcd on digits, W4A4, seed 0"}
    # the artefacts are those of the local executor, too; what is beside them holds times.
    artefacts = [path for path in one_by_one.glob("*/*/*") if path.suffix in (".safetensors", ".qbayes")]
    assert len(artefacts) == 2 + 4 + 4 + 6
    for path in artefacts:
        assert (store / path.relative_to(one_by_one)).read_bytes() == path.read_bytes()


@needs_ray
@pytest.mark.parametrize("shared", [None, False], ids=["shared folder", "object store"])
def test_a_node_killed_in_mid_study_costs_no_result(
    shared: bool | None,
    study: Study,
    one_by_one: Path,
    cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, store = Heard(monkeypatch), tmp_path / "store"
    [second] = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]
    killed = []

    def kill_when_both_work(progress: Progress) -> None:
        if not killed and len(heard.kinds("started")) == 2 and workers_at(second) == 1:
            killed.append(len(heard.kinds("done")))
            cluster.remove_node(second, allow_graceful=False)

    options = {"address": cluster.address, "shared": shared}
    outcome = run_study(
        study, store, device="cpu", executor="ray", options=options, watch=kill_when_both_work
    )
    cluster.add_node(num_cpus=1, num_gpus=0, object_store_memory=100_000_000)
    assert killed == [0]
    assert len(heard.kinds("lost")) == 1
    check_same(store, outcome, one_by_one)


def workers_at(node: Any) -> int:
    """Worker processes of a node that are at work on a job: Ray writes it into their command line."""
    [raylet] = node.all_processes["raylet"]
    children = Path(f"/proc/{raylet.process.pid}/task/{raylet.process.pid}/children").read_text().split()
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children]
    return sum(line.startswith(b"ray::perform") for line in lines)
