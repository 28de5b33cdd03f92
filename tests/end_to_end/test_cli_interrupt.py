"""Ctrl-C leaves a checkpoint; ``--resume`` goes on to the result of a run that was never stopped."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qbayes as qb

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(qb.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
# the command, which gets a real SIGINT inside its third epoch of 10 steps, whatever the machine's speed.
INTERRUPTED = """
import os, signal, sys
from qbayes.cli import main
from qbayes.training.loop import Loop

take_step, taken = Loop._step, []

def step_and_interrupt(self, x, y):
    take_step(self, x, y)
    taken.append(1)
    if len(taken) == 24:
        os.kill(os.getpid(), signal.SIGINT)

Loop._step = step_and_interrupt
sys.exit(main())
"""


def settings(method: str, folder: Path) -> list[str]:
    few = ["--set", "members=3", "--set", "every=1"] if method == "sghmc" else []
    network = ["--network", "mlp", "--epochs", "6", "--batch-size", "128"]
    return ["fit", "digits", "--method", method, *network, "--out", str(folder), *few]


def run(start: list[str], method: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *start, *settings(method, folder), *more]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("method", ["mcd", "sghmc"])
def test_interrupted_and_resumed_gives_the_same_bits(tmp_path: Path, method: str) -> None:
    command, whole, stopped = ["-m", "qbayes"], tmp_path / "whole", tmp_path / "stopped"
    first = run(["-c", INTERRUPTED], method, stopped)
    assert first.returncode == 130, first.stderr
    assert "stopped in epoch 3 of 6" in first.stderr
    assert "go on with: qbayes fit digits" in first.stderr
    assert first.stderr.rstrip().endswith("--resume")
    assert "Traceback" not in first.stderr
    assert [path.name for path in stopped.iterdir()] == ["checkpoint"]

    for folder, more in ((stopped, "--resume"), (whole, "--quiet")):
        ended = run(command, method, folder, more)
        assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in stopped.iterdir()) == ["posterior.json", "weights.safetensors"]
    assert digest(stopped) == digest(whole)


def test_a_waiting_checkpoint_is_neither_lost_nor_mixed_up(cli: Callable[..., Any], tmp_path: Path) -> None:
    """Without --resume it is refused; with other settings it is not continued."""
    folder = tmp_path / "p"
    assert run(["-c", INTERRUPTED], "mcd", folder).returncode == 130
    held = {path: path.read_bytes() for path in folder.rglob("*.checkpoint")}
    assert held
    refused = cli(*settings("mcd", folder))
    other = cli(*settings("mcd", folder), "--resume", "--seed", "1")
    assert (refused.code, other.code) == (2, 2)
    assert "--resume" in refused.err
    assert "belongs to another run" in other.err
    assert {path: path.read_bytes() for path in folder.rglob("*.checkpoint")} == held
