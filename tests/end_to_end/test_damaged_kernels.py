"""Compiled kernels that were cut off or damaged on disk: the next start builds them again and is right."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import qbayes
import qbayes as qb
from handmade.programs import every_op
from handmade.tiny_library import needs_compiler

pytestmark = needs_compiler
CUTS = 50
START = (
    "import hashlib, json, sys, torch\n"
    "import qbayes as qb\n"
    "from qbayes.noise import c_kernel\n"
    "from qbayes.integer import c_library\n"
    "from qbayes.posterior.reparametrize.c_draw import draw_kernels\n"
    "from qbayes.quant.kernels.c_kernels import kernels\n"
    "deployed = qb.load(sys.argv[1], 'onednn')\n"
    "rows = torch.load(sys.argv[2], weights_only=True)\n"
    "drawn = deployed.predict(rows, draws=3, seed=5).draws\n"
    "json.dump([hashlib.sha256(drawn.numpy().tobytes()).hexdigest(), c_kernel.kernel() is not None,\n"
    "           c_library.why_no_kernels(), kernels() is not None, draw_kernels() is not None],\n"
    "          sys.stdout)\n"
)


class Machine:
    """A program, and a cache in which its kernels lie as they were built."""

    def __init__(self, place: Path) -> None:
        make = every_op(8, members=2)
        rows = make.inputs(6)
        program = make.program(make.ops[-1].output)
        self.program, self.rows, self.cache = place / "program.qbayes", place / "rows.pt", place / "cache"
        program.save(self.program)
        torch.save(rows, self.rows)
        drawn = qb.load(program, "onednn").predict(rows, draws=3, seed=5).draws
        self.answer = hashlib.sha256(drawn.numpy().tobytes()).hexdigest()
        self.start()
        self.libraries = sorted((self.cache / "qbayes" / "kernels").glob("*.so"))
        self.whole = {path: path.read_bytes() for path in self.libraries}

    def start(self) -> None:
        """A fresh process has all libraries, and gives the right answer."""
        source = Path(qbayes.__file__).parents[1]
        environment = {**os.environ, "PYTHONPATH": str(source), "XDG_CACHE_HOME": str(self.cache)}
        command = [sys.executable, "-c", START, str(self.program), str(self.rows)]
        run = subprocess.run(
            command, check=False, env=environment, capture_output=True, text=True, timeout=300
        )
        assert run.returncode == 0, f"{run.returncode}: {run.stderr[-2000:]}"
        assert json.loads(run.stdout) == [self.answer, True, "", True, True]

    def check_rebuilt(self, index: int, damaged: bytes) -> None:
        """One library, in turn, is damaged, and whole again behind one start."""
        path = self.libraries[index % len(self.libraries)]
        path.write_bytes(damaged)
        self.start()
        assert path.read_bytes() == self.whole[path]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    made = Machine(tmp_path_factory.mktemp("kernels"))
    names = [path.name.partition("-")[0] for path in made.libraries]
    assert names == ["draw", "integer", "noise", "quant"]
    return made


def cut(machine: Machine, index: int, count: int) -> bytes:
    """The first cut takes all, every fifth is a flipped bit, the others leave parts of different lengths."""
    kinds = len(machine.libraries)
    whole = machine.whole[machine.libraries[index % kinds]]
    at = len(whole) * (index // kinds) // (count // kinds + 1)
    if index % 5 == 4:
        return whole[:at] + bytes([whole[at] ^ 1 << index % 8]) + whole[at + 1 :]
    return whole[:at]


def test_damaged_kernels_are_built_again(machine: Machine) -> None:
    """All at once: cut where their pages are read, which ended the process, but one with a flipped bit."""
    for path in machine.libraries[1:]:
        path.write_bytes(machine.whole[path][:4096])
    machine.check_rebuilt(0, cut(machine, 4, 10))
    assert [path.read_bytes() for path in machine.libraries] == list(machine.whole.values())


@pytest.mark.full
@pytest.mark.parametrize("index", range(CUTS))
def test_every_cut_is_built_again(machine: Machine, index: int) -> None:
    machine.check_rebuilt(index, cut(machine, index, CUTS))
