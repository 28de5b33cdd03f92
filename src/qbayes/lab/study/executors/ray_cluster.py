"""A Ray cluster: a connection to it, what its nodes can carry, and what runs on one of them.

A connection is made soon or refused with a reason. A node does one job at a time, in the store's folder where
it is seen, else in a folder of its own.
"""

import functools
import logging
import os
import socket
import tempfile
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qbayes.errors import BadFile, BadInput
from qbayes.lab.study.executors.ray_store import Files, claimed, pack, sees, stages_of, unpack
from qbayes.lab.study.store.store import FAILED, StageDamaged, Store, StoreFull
from qbayes.lab.study.work.jobs import perform as do
from qbayes.lab.study.work.worker_context import DeviceLost, Workplace
from qbayes.provenance import versions

# as many jobs share a GPU as worker processes do on one machine.
_JOBS_ON_A_GPU = 8
_KNOCK = 5.0  # seconds for a port to be there
_SCHEME = "ray://"
_FOUND_BY_RAY = ("auto", "local")
_COMPARED = ("qbayes", "torch", "numpy")
_DEVICE_LOST = 4  # exit code
Sent = list[tuple[str, str, Any]]  # stage, key, and the reference under which Ray keeps its files
Answer = dict[str, Any]


@dataclass(frozen=True)
class Share:
    """What one job takes of a node."""

    cpus: int
    gpus: float

    def fits(self, node: Mapping[str, Any]) -> int:
        """How many such jobs a node carries at once."""
        held = node["Resources"] if node["Alive"] else {}
        jobs = int(held.get("CPU", 0)) // self.cpus
        return min(jobs, int(held.get("GPU", 0)) * _JOBS_ON_A_GPU) if self.gpus else jobs


def connect(address: str | None, cpus: int) -> None:
    """Join the cluster at ``address``, or start one on this machine; what Ray says goes to its log."""
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
        return
    try:
        _knock(address)
        ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise no_answer(address, f"{error}".partition("\n")[0] or type(error).__name__) from error


def no_answer(address: str, got: str) -> BadInput:
    return BadInput(
        f"a Ray cluster must answer at {address}",
        got,
        "compare with `ray status` on its head node (host:port, 6379 by default), or leave --address out "
        "for a cluster on this machine; the store was not changed",
    )


def _knock(address: str) -> None:
    """Ray itself tries for minutes to reach a port at which nobody listens."""
    if address in _FOUND_BY_RAY:
        return
    host, _, port = address.removeprefix(_SCHEME).partition("/")[0].rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("an address is auto, host:port or ray://host:port")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()


def device_on(nodes: Iterable[Mapping[str, Any]], device: str) -> str:
    """The device of every job: one kind for all, since a CPU and a GPU round differently."""
    gpus = any(node["Alive"] and node["Resources"].get("GPU", 0) >= 1 for node in nodes)
    if device == "auto":
        return "cuda" if gpus else "cpu"
    if not device.startswith("cuda"):
        return device
    if not gpus:
        raise BadInput("the cluster must have a GPU", "no node has one", "use --device cpu or auto")
    return "cuda"  # Ray shows a job one GPU, whichever it is on its node


def share_for(nodes: Iterable[Mapping[str, Any]], threads: int, device: str) -> Share:
    """What a job takes; refused if no node could ever carry one."""
    share = Share(threads, 1 / _JOBS_ON_A_GPU if device == "cuda" else 0.0)
    known = list(nodes)
    if not any(share.fits(node) for node in known):
        most = max((int(node["Resources"].get("CPU", 0)) for node in known if node["Alive"]), default=0)
        raise BadInput(
            f"a node must have {threads} CPUs, for the threads of a job",
            f"the largest of {len(known)} nodes has {most}",
            "lower threads in [run], or add a larger node",
        )
    return share


def work(order: Mapping[str, Any], sent: Sent | None) -> Answer:
    """Do the job of ``order``, and say what became of it.

    ``done``: all is in the store. ``files``: here are the stages that were made. ``unseen``: the store's
    folder is not seen here, and without the stages before nothing can be done. ``stopped``: the store takes
    no files. ``damaged``: a stage before it is to be made again. ``refused``: this node cannot do the study's
    jobs. ``notes`` is what else the user should know.
    """
    notes: list[str] = []
    return {**_answer(order, sent, notes), "notes": notes}


def _answer(order: Mapping[str, Any], sent: Sent | None, notes: list[str]) -> Answer:
    try:
        _check_versions(order["versions"])
        if sees(Path(order["store"]), order["token"]):
            return _in_the_store(order, notes)
        return {"kind": "unseen"} if sent is None else _elsewhere(order, sent, notes)
    except StageDamaged as damage:
        return {"kind": "damaged", "stage": damage.stage, "key": damage.key, "text": str(damage)}
    except StoreFull as error:
        return {"kind": "stopped", "text": f"{socket.gethostname()}: {error.got}"}
    except DeviceLost:
        # Ray would give this process the next job too; when it has died, the job comes back as lost.
        traceback.print_exc()
        os._exit(_DEVICE_LOST)
    except BadInput as error:
        got = f"{socket.gethostname()}: {error.got}"
        return {"kind": "refused", "must": error.must, "got": got, "do": error.do}


def _check_versions(wanted: Mapping[str, str]) -> None:
    """The same numbers need the same code; a build for another device is the same version."""
    found = versions()
    apart = [
        f"{name} {found[name]} instead of {wanted[name]}"
        for name in _COMPARED
        if found[name].partition("+")[0] != wanted[name].partition("+")[0]
    ]
    if apart:
        raise BadInput(
            "every node must have the versions of the machine that runs the study",
            ", ".join(apart),
            "install the same there, or take the node out of the cluster; what is done is kept",
        )


@functools.lru_cache(maxsize=1)
def _workplace(data_dir: str | None, device: str) -> Workplace:
    """Kept from job to job, with the data sets it has read."""
    return Workplace(Store("."), None if data_dir is None else Path(data_dir), device)


def _in_the_store(order: Mapping[str, Any], notes: list[str]) -> Answer:
    at = _workplace(order["data_dir"], order["device"])
    at.store, at.note = Store(order["store"]), notes.append
    with claimed(at.store.folder, order["job"]):
        do(at, order["payload"])
    return {"kind": "done"}


def _elsewhere(order: Mapping[str, Any], sent: Sent, notes: list[str]) -> Answer:
    import ray

    at = _workplace(order["data_dir"], order["device"])
    at.note = notes.append
    with tempfile.TemporaryDirectory(prefix="qbayes-") as folder:
        at.store = Store(folder)
        contents: list[Files] = ray.get([reference for _, _, reference in sent])
        try:
            for (stage, key, _), files in zip(sent, contents, strict=True):
                unpack(at.store, stage, key, files)
            do(at, order["payload"])
        except BadFile as error:
            # the node's own disk, not the store's: another node may have room.
            raise OSError(error.got) from error
        before = {(stage, key) for stage, key, _ in sent}
        return {"kind": "files", "stages": _pack_new(at.store, order["payload"], before)}


def _pack_new(
    store: Store, payload: Mapping[str, Any], before: set[tuple[str, str]]
) -> list[tuple[str, str, Files]]:
    return [
        (stage, key, pack(store, stage, key))
        for stage, key in stages_of(payload)
        if (stage, key) not in before
        and (store.is_done(stage, key) or (store.stage(stage, key) / FAILED).exists())
    ]
