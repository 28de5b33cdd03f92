"""Peak resident memory of a prediction, measured in a process of its own that only opens what was written.

The process is the engine's folder, its packages and one prediction. Three numbers: resident after the
imports, after the network is loaded, and at most during the prediction (the kernel's high-water mark, set
back after loading where Linux allows it).
"""

import ctypes
import gc
import importlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.subjects import network_choice
from qbayes.errors import RunFailed

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): writing it to clear_refs sets the high-water mark to what is resident now


@dataclass(frozen=True)
class Memory:
    """Bytes resident in the process of one engine."""

    imported: int
    loaded: int
    peak: int

    @property
    def own(self) -> int:
        """The network and its prediction at most, without the libraries themselves."""
        return max(0, self.peak - self.imported)


def why_not_measured() -> str | None:
    """Why memory cannot be measured here; None if it can."""
    return None if _STATUS.exists() else "peak memory is read from /proc, which only Linux has"


def measure_memory(engine: str, folder: Path, network: str, batch: int, draws: int) -> Memory:
    """One prediction in a fresh process, on as many threads as this one has."""
    words = [engine, str(folder), network, str(batch), str(draws), str(torch.get_num_threads())]
    done = subprocess.run(
        [sys.executable, "-m", "qbayes.bench.memory", *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunFailed(
            f"the process that measures the memory of '{engine}' must end well",
            f"exit code {done.returncode}: {last}",
            "run the benchmark with --no-memory",
        )
    return Memory(**json.loads(done.stdout.splitlines()[-1]))


def _predict_and_measure(words: list[str]) -> Memory:
    name, folder, network, batch, draws, threads = words
    torch.set_num_threads(int(threads))
    engine = ENGINES[name]()
    for package in engine.packages:
        importlib.import_module(package)
    x = network_choice(network).rows(int(batch))
    imported = _resident()
    answer = engine.open(Path(folder))
    loaded = _resident()
    if _CLEAR.exists():
        _CLEAR.write_text(_RESET_PEAK)
    answer(x, int(draws))
    return Memory(imported, loaded, _status("VmHWM"))


def _resident() -> int:
    """Bytes resident, after what is free has been given back."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    return _status("VmRSS")


def _status(entry: str) -> int:
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{entry}:"))


if __name__ == "__main__":
    found = _predict_and_measure(sys.argv[1:])
    sys.stdout.write(json.dumps({"imported": found.imported, "loaded": found.loaded, "peak": found.peak}))
