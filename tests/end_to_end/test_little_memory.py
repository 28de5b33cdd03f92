"""Every command works where a process may reserve four gigabytes, as ``ulimit -v 4000000`` sets it."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import needs
import qbayes
from end_to_end.studies import SMALL
from qbayes.cli.app import app

# torch on CUDA maps more than that; these commands run on a CPU.
pytestmark = needs.unless(sys.platform == "linux", needs.LINUX)
MOST = 4_000_000 * 1024
# each line is one command; the last word of a line may be the name of what it writes.
DEPLOYED = """
fit digits --method bbb --network mlp --network-set hidden=[8] --epochs 1 --quiet --device cpu --out float
quantize float --precision W8A8 --epochs 0 --quiet --device cpu --out quantised
lower quantised --out program.qbayes
inspect program.qbayes
predict float task:digits:3 --device cpu
predict program.qbayes task:digits:3
evaluate program.qbayes --draws 2
export program.qbayes program.onnx --target onnx
export program.qbayes in_c --target c
list
data list
data fetch digits
data verify digits
"""
STUDIED = """
study plan study.toml --store store
study run study.toml --store store --device cpu --workers 1 --quiet
study status store
study report store
study compare store store
study export store table.csv
demo --study study.toml --out demo --workers 1
"""
APART = {"bench", "export web"}  # what it needs is fetched by make; its tests are in test_cli_export_web
RUN = """
import shlex, sys
from qbayes.cli import main
for line in sys.stdin.read().split("\\n"):
    if line and (code := main(shlex.split(line))) != 0:
        sys.exit(f"{line}: {code}")
"""


def run(commands: str, folder: Path) -> None:
    """The commands one after the other, in a process that may not reserve more, nor may its children."""
    environment = {**os.environ, "PYTHONPATH": str(Path(qbayes.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        check=False,
        input=commands,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST)),
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_models_are_made_and_used_in_four_gigabytes(tmp_path: Path) -> None:
    run(DEPLOYED, tmp_path)


@pytest.mark.full
def test_studies_run_in_four_gigabytes(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(SMALL)
    run(STUDIED, tmp_path)


def test_no_command_is_left_out() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    groups = {name: getattr(command, "commands", {}) for name, command in commands.items()}
    names = {f"{name} {below}".strip() for name, inner in groups.items() for below in inner or [""]}
    lines = [line.split() for line in (DEPLOYED + STUDIED).splitlines() if line]
    assert names - APART == {" ".join(line[:2] if groups[line[0]] else line[:1]) for line in lines}
