"""Ctrl-C leaves a checkpoint; ``--resume`` goes on to the result of a run that was never stopped."""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import qbayes as qb
from end_to_end.conftest import Cli
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)

Interrupted = Callable[[str], tuple[subprocess.CompletedProcess[str], Path]]
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


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    """What a method's command said and left behind: in a process of its own, which starts in seconds."""
    folder = tmp_path_factory.mktemp("interrupted")

    @functools.cache
    def stopped(method: str) -> tuple[subprocess.CompletedProcess[str], Path]:
        command = [sys.executable, "-c", INTERRUPTED, *settings(method, folder / method)]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        return done, folder / method

    return stopped


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("method", ["mcd", "sghmc"])
def test_interrupted_and_resumed_gives_the_same_bits(
    interrupted: Interrupted, cli: Cli, tmp_path: Path, method: str
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    first, left = interrupted(method)
    assert first.returncode == 130, first.stderr
    assert "stopped in epoch 3 of 6" in first.stderr
    assert "go on with: qbayes fit digits" in first.stderr
    assert first.stderr.rstrip().endswith("--resume")
    assert "Traceback" not in first.stderr
    assert [path.name for path in left.iterdir()] == ["checkpoint"]
    shutil.copytree(left, stopped)

    for folder, more in ((stopped, "--resume"), (whole, "--quiet")):
        ended = cli(*settings(method, folder), more)
        assert ended.code == 0, ended.err
    assert sorted(path.name for path in stopped.iterdir()) == ["posterior.json", "weights.safetensors"]
    assert digest(stopped) == digest(whole)


def test_a_waiting_checkpoint_is_neither_lost_nor_mixed_up(
    interrupted: Interrupted, cli: Cli, tmp_path: Path
) -> None:
    """Without --resume it is refused; with other settings it is not continued."""
    first, left = interrupted("mcd")
    assert first.returncode == 130
    folder = tmp_path / "p"
    shutil.copytree(left, folder)
    held = {path: path.read_bytes() for path in folder.rglob("*.checkpoint")}
    assert held
    refused = cli(*settings("mcd", folder))
    other = cli(*settings("mcd", folder), "--resume", "--seed", "1")
    assert (refused.code, other.code) == (2, 2)
    assert "--resume" in refused.err
    assert "belongs to another run" in other.err
    assert {path: path.read_bytes() for path in folder.rglob("*.checkpoint")} == held
