"""The C kernels of training on a CPU, compiled once per user; without a compiler torch's operations stand in.

Both give the same numbers up to rounding (tests compare them), so only the speed depends on the compiler. The
kernels use the OpenMP library that torch has loaded. ``QBAYES_QUANT_KERNELS=off`` keeps to torch.
"""

import ctypes
import os
import warnings
from pathlib import Path

import torch

from qbayes.native.folder import NoLibrary
from qbayes.native.library import Source, load
from qbayes.threads import once

SWITCH = "QBAYES_QUANT_KERNELS"
# nothing is contracted: the same bits on every processor.
_FLAGS = (
    *("-std=gnu99", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
    "-Wno-unknown-pragmas",
)
_SOURCE = Source(
    "quant",
    Path(__file__).with_name("kernels.c"),
    included=(),
    # linked without OpenMP: its symbols are looked up in what the process has loaded.
    flags=((*_FLAGS, "-fopenmp"), _FLAGS),
    switch=SWITCH,
)
# elements below which a second thread costs more than it saves
_ALONE = 1 << 15

_PTR, _I64, _I32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_F32, _F64 = ctypes.c_float, ctypes.c_double
_GRID = (_I64, _I64, _PTR, _PTR, _F32, _F32, _F32, _F32, _I32)
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "round": (_PTR, _I32, _PTR, _I32, *_GRID, _I32),
    "follow": (_PTR, _I32, _I64, *(_PTR,) * 6, *(_F64,) * 6, _PTR, _I32),
    "differentiate": (_PTR, _I32, _PTR, _I32, _PTR, *_GRID, _PTR, _PTR, _F64, _I32),
}


class Kernels:
    """The functions of the shared library with their C types; callers hand in dense tensors' addresses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, types in _SIGNATURES.items():
            function = getattr(library, f"qbayes_{name}")
            function.argtypes, function.restype = list(types), None
        self.round = library.qbayes_round
        self.follow = library.qbayes_follow
        self.differentiate = library.qbayes_differentiate
        # numbers whose shares of a sum are added at once.
        self.chunk = ctypes.c_int64.in_dll(library, "qbayes_chunk").value


def threads_for(elements: int) -> int:
    """How many threads a pass over that many elements is worth."""
    return 1 if elements < _ALONE else torch.get_num_threads()


@once
def kernels() -> Kernels | None:
    """The compiled kernels; None without a compiler or a safe cache, which is said, or switched off."""
    try:
        return Kernels(load(_SOURCE))
    except NoLibrary as missing:
        if os.environ.get(SWITCH) != "off":
            warnings.warn(
                f"fine-tuning on a CPU must have compiled kernels to be fast; there are none ({missing}): "
                "it runs in torch's operations, which is right and two to three times slower. Install a C "
                f"compiler, or set {SWITCH}=off to leave it so.",
                stacklevel=2,
            )
        return None
