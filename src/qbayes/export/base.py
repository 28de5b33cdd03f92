"""What every target of an export has: a name, the ops it knows, and files that are never lost."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from qbayes.errors import BadFile, BadInput
from qbayes.integer.ops import OPS, Op
from qbayes.integer.program import Program
from qbayes.registry import Shelf


@dataclass(frozen=True)
class Written:
    """What an export left on disk, and what a user should know of it."""

    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


class Target(ABC):
    """A form in which programs leave the library."""

    name: ClassVar[str]
    summary: ClassVar[str]
    # the options of the command line that it takes; all others must be left out.
    options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def ops(self) -> frozenset[str]:
        """The kinds of ops that it can express."""

    @abstractmethod
    def export(self, program: Program, path: Path, options: Mapping[str, Any], *, force: bool) -> Written:
        """Write the program; ``options`` are those that the user gave."""


TARGETS: Shelf[type[Target]] = Shelf("target", "qbayes.export.targets")


def require_ops(program: Program, target: str, known: set[type[Op]]) -> None:
    """Raise where the program has an op that the target lacks, with the targets that have it."""
    for op in program.ops:
        if type(op) not in known:
            able = [name for name in TARGETS if op.kind in TARGETS[name]().ops()]
            do = f"export to {' or '.join(able)}" if able else "change the layer; no target has this op"
            raise BadInput(
                f"every op of the program must be one that the target '{target}' has",
                f"'{op.name}', a {op.kind}",
                do,
            )


def kinds(known: set[type[Op]]) -> frozenset[str]:
    return frozenset(kind for kind, op in OPS.items() if op in known)


def check_new_files(paths: Sequence[Path], *, force: bool) -> None:
    """Raise unless all files can be written without losing anything."""
    for path in paths:
        if path.is_dir():
            raise BadFile("the target must be a file", f"the folder {path}", "choose another path")
        if path.exists() and not force:
            raise BadFile(
                "the target file must be new", f"{path} exists", "choose another path, or pass --force"
            )
