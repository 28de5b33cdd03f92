"""Every test starts from the same seed, without a display, a network or the user's own data folder."""

import os
import socket
from typing import Any

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["skipped", "slow"]
os.environ.setdefault("MPLBACKEND", "Agg")
# Without a GPU, Triton's interpreter runs our kernels; it looks here when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Times on a shared machine say nothing about the code.
settings.register_profile("qbayes", deadline=None)
settings.load_profile("qbayes")

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@pytest.fixture(autouse=True)
def same_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's generator at 0; the user's settings out of sight."""
    torch.manual_seed(0)
    monkeypatch.delenv("QBAYES_DATA", raising=False)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to anything but this machine fails: no test may come to need the network unnoticed."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in LOOPBACK:
            raise OSError(f"tests must not use the network: {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes are named by their length: gzip holds the time, and workers must agree on their tests' names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None
