"""The C kernels of the fast backends, compiled once per user; without a compiler ``Op.run`` stands in.

Both give the same codes (tests compare them), so only the speed depends on the compiler.
``QBAYES_INTEGER_KERNELS=off`` keeps to ``Op.run``.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from qbayes.native import functions
from qbayes.native.folder import NoLibrary
from qbayes.native.functions import F64, I32, I64, PTR, U8, U32, U64, Functions, source_with_threads
from qbayes.native.library import load
from qbayes.noise import c_kernel
from qbayes.threads import once

_FOLDER = Path(__file__).parent
_SOURCE = source_with_threads(
    "integer",
    _FOLDER / "kernels.c",
    switch="QBAYES_INTEGER_KERNELS",
    included=[
        *(_FOLDER / name for name in ("kernels_noise.c", "kernels_linear.c")),
        Path(c_kernel.__file__).with_name("philox.c"),
    ],
)
# elements below which a second thread costs more than it saves
_ALONE = 1 << 14

_SIGNATURES: dict[str, tuple[object, ...]] = {
    "mask": (PTR, PTR, I64, PTR, *(I64,) * 5, I32, I32, U8, U64, U32, U32, I32),
    "sum": (PTR, PTR, PTR, *(I64,) * 3, PTR, PTR, *(F64,) * 3, I32),
    "pair": (PTR, PTR, I64, PTR, *(I64,) * 3, PTR, PTR, *(I32,) * 5),
    "product": (PTR, PTR, I64, PTR, *(I64,) * 5, I32, *(F64,) * 6, I32),
    "affine": (PTR, PTR, *(I64,) * 3, I32, PTR, PTR, *(F64,) * 4, I32),
    "lookup": (PTR, PTR, I64, PTR, I32),
    "place": (PTR, PTR, *(I64,) * 5, PTR, I32),
    "max_pool": (PTR, PTR, *(I64,) * 4, PTR, I64, PTR, I32),
    "mean_pool": (PTR, PTR, *(I64,) * 4, PTR, I64, PTR, I64, *(F64,) * 4, I32),
    "join": (PTR, PTR, PTR, I64, I64, PTR, PTR, *(F64,) * 3, I32),
    "sample_all": (PTR, I64, I64, I64, U64, U32, *(PTR,) * 5, I64, *(I32,) * 3),
    "lines": (PTR, PTR, *(I64,) * 3, PTR, I32),
    "sums": (PTR, PTR, PTR, I64, PTR, I32),
    "whole_sums": (PTR, PTR, PTR, I64, PTR, I32),
    "bytes": (PTR, PTR, *(I64,) * 3, I32, PTR, I32),
}
_TELL_FAILURE = ("mask", "lines", "sums")  # 1 where there was no memory


class Matrix(ctypes.Structure):
    """``struct matrix`` of kernels_linear.c, field by field."""

    _fields_ = [
        *((name, I64) for name in ("inputs", "outputs")),
        *((name, PTR) for name in ("weights", "noise", "biases")),
        *((name, PTR) for name in ("weight_zeros", "multiplier", "second_multiplier", "shift", "factor")),
        *((name, I64) for name in ("zero_step", "scale_step")),
        *((name, I32) for name in ("x_zero", "zero", "low", "high", "wide")),
    ]


class Kernels(Functions):
    """The functions of the shared library."""


def threads_for(elements: int) -> int:
    """How many threads a loop over that many elements is worth."""
    return functions.threads_for(elements, _ALONE)


def addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """A C array of the tensors' addresses."""
    return (PTR * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


@once
def found() -> Kernels | str:
    """The compiled kernels, or why there are none."""
    try:
        return Kernels(load(_SOURCE), _SIGNATURES, _TELL_FAILURE)
    except NoLibrary as missing:
        return str(missing)


def kernels() -> Kernels | None:
    """The compiled kernels; None without a compiler or a safe cache, or when they are switched off."""
    return made if isinstance(made := found(), Kernels) else None


def why_no_kernels() -> str:
    """What keeps ops from the compiled kernels; empty where those are there."""
    return made if isinstance(made := found(), str) else ""
