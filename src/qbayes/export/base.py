"""A target turns a program into files that run without qbayes; its options are the fields of its class."""

import dataclasses
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from qbayes.errors import BadFile, BadInput, nearest
from qbayes.integer.ops import OPS, Op
from qbayes.integer.program import Program
from qbayes.posterior.network import NetworkPosterior
from qbayes.registry import Registry
from qbayes.tasks import Task

_FLAG = "flag"


@dataclass(frozen=True)
class Written:
    """What a target wrote: the files, facts for machines, and lines that tell people the same."""

    files: tuple[Path, ...]
    facts: Mapping[str, Any]
    lines: tuple[str, ...]


class Reader(Protocol):
    """What the command line opens for targets whose options are files, or rows of a task."""

    def program(self, path: Path) -> Program:
        """A program beside the exported one."""
        ...

    def float_posterior(self, folder: Path) -> NetworkPosterior:
        """A saved posterior that is not quantised."""
        ...

    def task(self) -> Task:
        """The task that the exported program was made on."""
        ...

    def span(self, text: str) -> tuple[float, float]:
        """Two numbers: ``0,255``."""
        ...


@dataclass(frozen=True)
class Flag:
    """What the command line says of a target's option.

    Attributes:
        help: One sentence.
        kind: The type of what is written there.
        metavar: What stands for it in the help; None where its type does.
    """

    help: str
    kind: Any
    metavar: str | None


def flag(default: Any, help: str, kind: Any = str, metavar: str | None = None) -> Any:
    """A field of a target that is an option of the command line, too.

    Args:
        default: The value where nobody gives one.
        help: One sentence for the command line.
        kind: The type of what is written there; ``Target.read`` makes the value of it.
        metavar: What stands for it in the help; by default its type.

    Returns:
        The field, typed ``Any``: the annotation beside it says the type.
    """
    return dataclasses.field(default=default, metadata={_FLAG: Flag(help, kind, metavar)})


class Target(ABC):
    """A form in which programs leave the library.

    A registered target is a frozen dataclass: its fields are what a user may choose. Those that are a
    ``flag`` are options of ``qbayes export``.

    Example:
        >>> "linear" in make_target("onnx", draws=5).ops()
        True
    """

    summary: ClassVar[str]

    @classmethod
    @abstractmethod
    def ops(cls) -> frozenset[str]:
        """The kinds of ops that it can express."""

    @classmethod
    def read(cls, words: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
        """The options from what the command line has for them; by default as they are.

        Args:
            words: What was given, by the name of the option.
            reader: Opens what the words name.
        """
        return dict(words)

    @abstractmethod
    def write(self, program: Program, place: Path, *, overwrite: bool = False) -> Written:
        """Write the program to a place.

        Args:
            program: The program.
            place: A file or a folder, as the target has it.
            overwrite: Whether it may replace what an earlier export left there; it may not by default.

        Returns:
            The files, facts for machines, and lines that tell people the same.

        Raises:
            BadInput: The program has an op that the target lacks.
            BadFile: The place cannot take the files.
        """


TARGETS: Registry[type[Target]] = Registry("export target", "qbayes.export.targets")


def make_target(name: str, /, **options: Any) -> Target:
    """The target of that name with these options; refuses options that it does not have."""
    check_options(name, options)
    return TARGETS[name](**options)


def flags() -> dict[str, dict[str, Flag]]:
    """The options of all targets on the command line, by name, and for each the targets that have it."""
    found: dict[str, dict[str, Flag]] = {}
    for target in TARGETS:
        for field in dataclasses.fields(TARGETS[target]):  # pyright: ignore[reportArgumentType]
            if _FLAG in field.metadata:
                found.setdefault(field.name, {})[target] = field.metadata[_FLAG]
    return found


def check_options(name: str, options: Iterable[str]) -> None:
    """Raise where the target of that name lacks one of the options."""
    kind = TARGETS[name]
    known = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    for option in options:
        if option not in known:
            raise BadInput(
                f"an option must be one that the target '{name}' has", f"'{option}'", nearest(option, known)
            )


def require_ops(program: Program, target: str, known: Collection[type[Op]]) -> None:
    """Raise where the program has an op that the target lacks, with the targets that have it."""
    for op in program.ops:
        if type(op) not in known:
            raise refuse_op(op, target)


def refuse_op(op: Op, target: str) -> BadInput:
    """That a target cannot express an op, with the targets that can."""
    able = [name for name in TARGETS if op.kind in TARGETS[name].ops()]
    return BadInput(
        f"every op of the program must be one that the target '{target}' has",
        f"'{op.name}', a {op.kind}",
        f"export to {' or '.join(able)}" if able else "change the layer; no target has this op",
    )


def kinds(known: Collection[type[Op]]) -> frozenset[str]:
    """The kinds of ops that have an emitter among ``known``."""
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


def check_folder(place: Path, *, overwrite: bool) -> None:
    """Raise unless the export can be written to ``place`` without losing anything."""
    try:
        is_folder = place.is_dir()
        is_other = not is_folder and place.exists()
        is_full = is_folder and any(os.scandir(place))
        # seen here, before any work: below a file no folder can be made.
        above = next(parent for parent in place.absolute().parents if parent.exists())
        is_below_a_file = not above.is_dir()
    except (OSError, ValueError) as error:
        raise _unwritable(place, error) from None
    if is_other:
        raise BadFile("the target must be a folder", f"the file {place}", "choose another path")
    if is_below_a_file:
        raise BadFile(
            "the target folder must be writable", f"{above} on the way to it is a file", "choose another path"
        )
    if is_full and not overwrite:
        raise BadFile(
            "the target must be a new or an empty folder",
            f"{place} holds files",
            "choose another path, or pass --force to write over them",
        )


def write_folder(place: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """All files of a new folder or none; into a folder that is there they are moved one by one.

    A name may have folders in it: ``models/w8a8.onnx``.
    """
    try:
        new = not place.exists()
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent if new else place, prefix=".qbayes-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for name, content in files.items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).write_bytes(content)
            if new:
                made.rename(place)
            else:
                for name in files:
                    (place / name).parent.mkdir(parents=True, exist_ok=True)
                    (made / name).replace(place / name)
    except (OSError, ValueError) as error:
        raise _unwritable(place, error) from None
    return tuple(place / name for name in files)


def _unwritable(place: Path, error: OSError | ValueError) -> BadFile:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return BadFile(
        "the target folder must be writable", f"{str(place)[:200]!r}: {why}", "choose another path"
    )
