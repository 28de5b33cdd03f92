"""The C kernels of the fast backends, compiled once per user; without a compiler ``Op.run`` stands in.

Both give the same codes (tests compare them), so only the speed depends on the compiler. The kernels use the
OpenMP library that torch has loaded: a second one would bring threads of its own, which fight for the cores.
``QBAYES_INTEGER_KERNELS=off`` keeps to ``Op.run``.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from qbayes import noise_build
from qbayes.native.folder import NoLibrary
from qbayes.native.library import Source, load
from qbayes.threads import once

_FOLDER = Path(__file__).parent
_FLAGS = ("-std=gnu99", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-Wno-unknown-pragmas")
_SOURCE = Source(
    "integer",
    _FOLDER / "kernels.c",
    included=(
        *(_FOLDER / name for name in ("kernels_noise.c", "kernels_lines.c")),
        Path(noise_build.__file__).with_name("noise_kernel.c"),
    ),
    # linked without OpenMP: its symbols are looked up in what the process has loaded.
    flags=((*_FLAGS, "-fopenmp"), _FLAGS),
    switch="QBAYES_INTEGER_KERNELS",
)
# elements below which a second thread costs more than it saves
_ALONE = 1 << 14

_PTR, _I64, _I32, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_double
_U64, _U32, _U8 = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint8
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "mask": (_PTR, _PTR, _I64, _PTR, *(_I64,) * 5, _I32, _I32, _U8, _U64, _U32, _U32, _I32),
    "sum": (_PTR, _PTR, _PTR, *(_I64,) * 3, _PTR, _PTR, *(_REAL,) * 3, _I32),
    "pair": (_PTR, _PTR, _I64, _PTR, *(_I64,) * 3, _PTR, _PTR, *(_I32,) * 5),
    "product": (_PTR, _PTR, _I64, _PTR, *(_I64,) * 5, _I32, *(_REAL,) * 6, _I32),
    "affine": (_PTR, _PTR, *(_I64,) * 3, _I32, _PTR, _PTR, *(_REAL,) * 4, _I32),
    "lookup": (_PTR, _PTR, _I64, _PTR, _I32),
    "place": (_PTR, _PTR, *(_I64,) * 5, _PTR, _I32),
    "max_pool": (_PTR, _PTR, *(_I64,) * 4, _PTR, _I64, _PTR, _I32),
    "mean_pool": (_PTR, _PTR, *(_I64,) * 4, _PTR, _I64, _PTR, _I64, *(_REAL,) * 4, _I32),
    "join": (_PTR, _PTR, _PTR, _I64, _I64, _PTR, _PTR, *(_REAL,) * 3, _I32),
    "sample_all": (_PTR, _I64, _I64, _I64, _U64, _U32, *(_PTR,) * 5, _I64, *(_I32,) * 3),
    "lines": (_PTR, _PTR, *(_I64,) * 3, _PTR, _I32),
    "sums": (_PTR, _PTR, _PTR, _I64, _PTR, _I32),
    "whole_sums": (_PTR, _PTR, _PTR, _I64, _PTR, _I32),
    "bytes": (_PTR, _PTR, *(_I64,) * 3, _I32, _PTR, _I32),
}
_TELL_FAILURE = ("mask", "lines", "sums")  # 1 where there was no memory


class Matrix(ctypes.Structure):
    """``struct matrix`` of kernels_lines.c, field by field."""

    _fields_ = [
        *((name, _I64) for name in ("inputs", "outputs")),
        *((name, _PTR) for name in ("weights", "noise", "biases")),
        *((name, _PTR) for name in ("weight_zeros", "multiplier", "second_multiplier", "shift", "factor")),
        *((name, _I64) for name in ("zero_step", "scale_step")),
        *((name, _I32) for name in ("x_zero", "zero", "low", "high", "wide")),
    ]


class Kernels:
    """The functions of the shared library with their C types; callers hand in dense tensors' addresses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, types in _SIGNATURES.items():
            function = getattr(library, f"qbayes_{name}")
            function.argtypes = list(types)
            function.restype = _I32 if name in _TELL_FAILURE else None
        self.mask = library.qbayes_mask
        self.sum = library.qbayes_sum
        self.pair = library.qbayes_pair
        self.product = library.qbayes_product
        self.affine = library.qbayes_affine
        self.lookup = library.qbayes_lookup
        self.place = library.qbayes_place
        self.max_pool = library.qbayes_max_pool
        self.mean_pool = library.qbayes_mean_pool
        self.join = library.qbayes_join
        self.sample_all = library.qbayes_sample_all
        self.lines = library.qbayes_lines
        self.sums = library.qbayes_sums
        self.whole_sums = library.qbayes_whole_sums
        self.bytes = library.qbayes_bytes


def threads_for(elements: int) -> int:
    """How many threads a loop over that many elements is worth."""
    return 1 if elements < _ALONE else torch.get_num_threads()


def addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """A C array of the tensors' addresses."""
    return (_PTR * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


@once
def found() -> Kernels | str:
    """The compiled kernels, or why there are none."""
    try:
        return Kernels(load(_SOURCE))
    except NoLibrary as missing:
        return str(missing)


def kernels() -> Kernels | None:
    """The compiled kernels; None without a compiler or a safe cache, or when they are switched off."""
    return made if isinstance(made := found(), Kernels) else None


def why_no_kernels() -> str:
    """What keeps ops from the compiled kernels; empty where those are there."""
    return made if isinstance(made := found(), str) else ""
