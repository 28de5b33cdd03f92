"""A target turns a program into files that run without qbayes; its options are the fields of its class."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qbayes.errors import BadInput, nearest
from qbayes.integer.program import Program
from qbayes.registry import Shelf


@dataclass(frozen=True)
class Written:
    """What a target wrote: the files, facts for machines, and lines that tell people the same."""

    files: tuple[Path, ...]
    facts: Mapping[str, Any]
    lines: tuple[str, ...]


class Target(ABC):
    """A member of the shelf is a frozen dataclass: its fields are what a user may choose."""

    @abstractmethod
    def write(self, program: Program, place: Path, *, overwrite: bool = False) -> Written:
        """Write the program to ``place``; ``overwrite`` may replace what an earlier export left there."""


TARGETS: Shelf[type[Target]] = Shelf("export target", "qbayes.export")


def make_target(name: str, /, **options: Any) -> Target:
    """The target of that name with these options; refuses options that it does not have."""
    kind = TARGETS[name]
    known = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    for option in options:
        if option not in known:
            raise BadInput(
                f"an option must be one that the target '{name}' has", f"'{option}'", nearest(option, known)
            )
    return kind(**options)
