"""An export target in one file: its class gives it a name, and its options on the command line."""

import subprocess
import sys
from pathlib import Path

from handmade.programs import Maker

TARGET = """
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qbayes.export.base import TARGETS, Target, Written, flag
from qbayes.integer.ops import OPS


@TARGETS.register("listing")
@dataclass(frozen=True)
class Listing(Target):
    summary: ClassVar[str] = "the names of the ops"

    separator: str = flag(",", "what stands between the names.")
    times: int = flag(1, "how often the list is written.", int)

    @classmethod
    def ops(cls):
        return frozenset(OPS)

    def write(self, program, place, *, overwrite=False):
        text = self.separator.join(op.name for op in program.ops)
        Path(place).write_text(self.times * (text + "\\n"))
        return Written((place,), {"target": "listing"}, (text,))


from qbayes.cli import main

sys.exit(main(sys.argv[1:]))
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TARGET, *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_a_target_of_a_file_of_its_own_is_on_the_command_line(tmp_path: Path) -> None:
    make = Maker((4,))
    program = make.program(make.linear(make.linear(make.input, 5), 3, relu=False))
    path = program.save(tmp_path / "program.qbayes")
    place = tmp_path / "ops.txt"
    done = run("export", str(path), str(place), "--target", "listing", "--separator", ";", "--times", "2")
    assert done.returncode == 0, done.stderr
    assert place.read_text() == 2 * (";".join(op.name for op in program.ops) + "\n")
    assert "listing: how often the list is written." in " ".join(run("export", "--help").stdout.split())
    assert "the names of the ops" in run("list", "targets").stdout
    wrong = run("export", str(path), str(place), "--target", "c", "--times", "2")
    assert wrong.returncode != 0
    assert "an option must be one that the target 'c' has" in wrong.stderr
