"""Peak resident memory of a prediction, in a process of its own that only opens what was written.

Three numbers: resident after the imports, after the network is loaded, and at most during the prediction (the
kernel's high-water mark, set back after loading where Linux allows it).
"""

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): writing it to clear_refs sets the high-water mark to what is resident now

Opened = TypeVar("Opened")


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


def measure_memory(
    load: Callable[[], Opened], predict: Callable[[Opened], object]
) -> tuple[Opened, Memory | None]:
    """What ``load`` gives, after one prediction, and the memory of both; None where there is no /proc."""
    if not _STATUS.exists():
        opened = load()
        predict(opened)
        return opened, None
    imported = _resident()
    opened = load()
    loaded = _resident()
    if _CLEAR.exists():
        _CLEAR.write_text(_RESET_PEAK)
    predict(opened)
    return opened, Memory(imported, loaded, _status("VmHWM"))


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
