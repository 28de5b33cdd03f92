"""How a process that leads and one that works speak: JSON, a line each."""

import contextlib
import json
import subprocess
from collections.abc import Mapping
from typing import Any

# seconds that a worker has to stop by itself; then it is left, or killed.
PATIENCE = 20.0


def send_line(process: "subprocess.Popen[bytes]", message: Mapping[str, Any] | None) -> None:
    """One JSON line to a process; one that has ended is told of by the thread that listens to it."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
