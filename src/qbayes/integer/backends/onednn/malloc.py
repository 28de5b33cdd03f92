"""Memory that one op lets go is kept for the next, where the C library is glibc.

An op makes a tensor of some megabytes, and the op after it lets that go. glibc hands blocks of this size back
to the system, which gives them out again page by page, each filled with zeros first. That was a tenth to a
fifth of the time of a slim ResNet-18 on 256 images.
"""

import ctypes
import functools
import os
import sys

# mallopt(3): blocks from this size on are always the system's own (the most that it takes), and so much free
# memory stays with the process: a few tensors of ``Backend.codes_at_once`` codes.
_OPTIONS = {-3: 1 << 25, -1: 1 << 26}
# By these a user has chosen already.
_CHOSEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> bool:
    """Ask for it, once a process; whether it was granted. What the environment says about it stands."""
    if sys.platform != "linux" or any(name in os.environ for name in _CHOSEN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, size) == 1 for option, size in _OPTIONS.items())
