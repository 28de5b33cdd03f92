"""The C kernels of fine-tuning on a CPU, compiled once per user.

Without a compiler torch's operations stand in. Both give the same numbers up to rounding, as tests show.
``QBAYES_QUANT_KERNELS=off`` keeps to torch.
"""

import ctypes
from pathlib import Path

from qbayes.native.functions import (
    F32,
    F64,
    I32,
    I64,
    PTR,
    Functions,
    load_or_warn,
    threads_for,
    training_source,
)
from qbayes.threads import once

__all__ = ["Kernels", "kernels", "threads_for"]

SWITCH = "QBAYES_QUANT_KERNELS"
_SOURCE = training_source("quant", Path(__file__).with_name("kernels.c"), SWITCH)
_GRID = (I64, I64, PTR, PTR, F32, F32, F32, F32, I32)
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "round": (PTR, I32, PTR, I32, *_GRID, I32),
    "follow": (PTR, I32, I64, *(PTR,) * 6, *(F64,) * 6, PTR, I32),
    "differentiate": (PTR, I32, PTR, I32, PTR, *_GRID, PTR, PTR, F64, I32),
}


class Kernels(Functions):
    """The functions of the shared library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library, _SIGNATURES)
        # numbers whose shares of a sum are added at once.
        self.chunk = ctypes.c_int64.in_dll(library, "qbayes_chunk").value


@once
def kernels() -> Kernels | None:
    """The compiled kernels; None without a compiler or a safe cache, which is said, or switched off."""
    library = load_or_warn(_SOURCE, "fine-tuning")
    return None if library is None else Kernels(library)
