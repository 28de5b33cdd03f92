"""A small study on real data, and its command line in a process of its own."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qbayes.cli import main

# two methods, three precisions, two epochs: about ten seconds, most of it starting processes.
SMALL = """
[study]
name = "small"
question = "Does it survive?"

[run]
task = "digits"
network = {name = "lenet", style = "relu"}
method = "pointwise"
training = {epochs = 2, batch_size = 128}
quantize = {epochs = 1}
evaluate = {draws = 3, shifts = false}

[axes]
method = ["pointwise", {name = "mcd", rate = 0.2}]
precision = ["float", "W8A8", "W4A4"]
"""
# 4 folds of three methods, three precisions: 9 posteriors and 24 of sghmc's members quantised.
STACKED = """
[run]
task = {name = "diabetes", split = 0}
network = {name = "mlp", hidden = [20, 20], noise = "constant"}
method = "pointwise"
training = {epochs = 20, batch_size = 64}
quantize = {epochs = 2, least_steps = 0, optimizer = "sgd", learning_rate = 1e-2}
evaluate = {draws = 3}

[axes]
task = [{name = "diabetes", split = [0, 1, 2, 3]}]
method = ["pointwise", {name = "mcd", rate = 0.1}, {name = "sghmc", members = 2, every = 2}]
precision = ["float", "W8A8", "W4A4"]
"""
# the command; a shell starts what runs in its background deaf to Ctrl-C, and children inherit that.
COMMAND = """
import signal, sys
from qbayes.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


# every worker takes seconds to start, these studies hardly any to run; those that are killed have two.
ALONE = ("--device", "cpu", "--workers", "1", "--no-report")


def write_study(folder: Path, text: str = SMALL, name: str = "small.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """``qbayes study …`` in a session of its own, so that a signal reaches it alone."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "study", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def run_apart(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``qbayes study …`` in this process, which spares the seconds that another takes to import torch.

    The workers of a study are processes of their own all the same.
    """
    words = ["study", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    """The worker processes of a running study."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        return [int(pid) for pid in children.read_text().split()]
    except OSError:
        return []


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
