"""Dirty memory: what a kernel takes without filling it shows in its answer, and not by chance only.

A kernel that reads memory it never wrote is right as long as the allocator hands out zeros, as it does in a
fresh process. glibc can be asked to fill what it hands out (``M_PERTURB``); other C libraries cannot, and
there blocks of many sizes are filled and let go, so that the next to take them finds them so.
"""

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_PERTURB = -6  # mallopt
_LEAST, _MOST = 6, 22  # blocks of 2^6 … 2^22 bytes


@contextmanager
def dirty_memory(byte: int) -> Iterator[None]:
    """Within it, memory that is taken anew holds ``byte``; 0 leaves it as it comes.

    The whole process is asked: the memory of other threads is filled too, which changes no right answer.
    """
    if not byte:
        yield
        return
    # glibc hands small blocks of a thread out as they are, whatever it is asked.
    blocks = [torch.full((1 << size,), byte, dtype=torch.uint8) for size in range(_LEAST, _MOST)]
    del blocks
    fill = _perturb()
    fill(byte ^ 0xFF)  # glibc fills with the complement
    try:
        yield
    finally:
        fill(0)


@functools.cache
def _perturb() -> Callable[[int], object]:
    """``mallopt(M_PERTURB, …)`` where the C library is glibc; elsewhere nothing."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "gnu_get_libc_version"):
        return lambda byte: None
    return lambda byte: library.mallopt(_PERTURB, byte)
