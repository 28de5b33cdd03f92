"""Programs on the backends: what our own engines write and read."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from qbayes.bench.engines.base import Answer, Engine
from qbayes.bench.subjects import Subject
from qbayes.integer.posterior import load


class ProgramEngine(Engine):
    """The program's file on one backend, noise included."""

    numbers = "int8"
    ours = True
    backend: ClassVar[str]

    def write(self, subject: Subject, folder: Path, draws: int) -> list[Path]:
        program = replace(subject.program, members=subject.program.members[:draws])
        return [program.save(self.file(folder))]

    def open(self, folder: Path) -> Answer:
        deployed = load(self.file(folder), self.backend)
        return lambda x, draws: deployed.predict(x, draws).draws

    def file(self, folder: Path) -> Path:
        return folder / "program.qbayes"
