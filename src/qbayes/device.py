"""Devices: which one is taken, and which tensors our kernels can read there.

Triton comes with torch's CUDA build and with no other: it is imported with the first CUDA tensor.
"""

# pyright: reportInvalidTypeForm=false
# Triton reads the annotations, and pyright cannot where Triton is not installed.
from __future__ import annotations

import functools
import importlib
import importlib.util
import subprocess
import warnings
from typing import Any

import torch
from torch import Tensor

from qbayes.errors import BadInput

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# a kernel counts elements in 32 bits.
MOST_ELEMENTS = 2**31 - 1
# Triton compiles a kernel anew for pointers that are no multiples of it.
ALIGNMENT = 16
# what Triton itself supports.
_LEAST_CAPABILITY = (8, 0)
# triton.language: Triton looks a kernel's names up among its module's.
tl: Any = None


def on_a_gpu(x: Tensor) -> bool:
    """Whether kernels of ours can read ``x``: in a CUDA device's memory, neither compiled nor transformed."""
    return not torch.compiler.is_compiling() and x.is_cuda and in_memory(x)


def on_a_cpu(x: Tensor) -> bool:
    """Whether C of ours can read ``x``: in the memory of a CPU, neither compiled nor transformed."""
    return not torch.compiler.is_compiling() and x.device.type == "cpu" and in_memory(x)


def in_memory(*tensors: Tensor) -> bool:
    """Whether these are plain tensors: what ``torch.func`` transforms, vmap of stacks above all, is not."""
    try:
        return all(t.data_ptr() for t in tensors)
    except RuntimeError:
        return False


def dense(x: Tensor, rows: int = 1) -> bool:
    """Whether ``x`` has neither gaps nor overlaps, and its ``rows`` slices lie one behind the other."""
    filled = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride != filled:
                return False
            filled *= size
    return rows == 1 or x.stride(0) * rows == filled


def lay_out(t: Tensor, like: Tensor) -> Tensor:
    """``t`` in the order of ``like``'s memory, and aligned: a kernel has no variant for what is not."""
    if t.stride() == like.stride() and t.data_ptr() % ALIGNMENT == 0:
        return t
    return torch.empty_like(like, dtype=t.dtype).copy_(t)


def _set_one(x: tl.tensor) -> None:
    tl.store(x, 1.0)


@functools.cache
def triton_works_on(device: torch.device) -> bool:
    """Whether Triton is there and can compile for this device: it needs a C compiler and Python's headers."""
    known = torch.version.cuda is not None and importlib.util.find_spec("triton") is not None
    if not known or torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return False
    try:
        triton = importlib.import_module("triton")
        globals()["tl"] = importlib.import_module("triton.language")
        with torch.cuda.device(device):
            triton.jit(_set_one)[(1,)](torch.zeros((), device=device))
    except (RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        warnings.warn(
            f"kernels run unfused, which is slower: Triton cannot compile here ({error})", stacklevel=2
        )
        return False
    return True


def choose_device(device: str | torch.device) -> torch.device:
    """``auto`` is CUDA where there is one; a named device must exist."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        # on the device 'meta' there are shapes and no numbers: reading one back fails.
        torch.zeros(1, device=place).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise BadInput(
            "the device must exist on this machine", f"{device}: {error}", "use auto or cpu"
        ) from None
    return place
