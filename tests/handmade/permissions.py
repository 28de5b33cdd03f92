"""Permissions that hold for the superuser too: without this right he writes anywhere."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

import pytest

# linux/capability.h: effective, permitted and inheritable rights, the low halves and then the high ones.
_VERSION = 0x20080522
_OVERRIDE = 1 << 1  # CAP_DAC_OVERRIDE
_Header, _Sets = ctypes.c_uint32 * 2, ctypes.c_uint32 * 6


@pytest.fixture
def permissions_hold() -> Iterator[None]:
    """The thread of the test is refused what its owner's bits refuse."""
    with _without_override() if os.geteuid() == 0 else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _without_override() -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), _Sets()
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    effective = sets[0]
    sets[0] = effective & ~_OVERRIDE
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        sets[0] = effective
        assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
