"""A connection to a Ray cluster, made soon or refused with a reason; and what its nodes can carry."""

import logging
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qbayes.errors import BadInput

# as many jobs share a GPU as worker processes do on one machine.
_JOBS_ON_A_GPU = 8
_KNOCK = 5.0  # seconds for a port to be there
_SCHEME = "ray://"
_FOUND_BY_RAY = ("auto", "local")


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
