"""The registry of data sets: what each one is, where its files are published, and how it is loaded."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from qbayes.errors import BadFile, BadInput, nearest, unknown_name
from qbayes.registry import Registry
from qbayes.tasks.arrays import Kind
from qbayes.tasks.base import Task

Confusion = bool | Literal["auto"]


class MissingFile(BadFile):
    """Files of a data set are not in the data folder."""


@dataclass(frozen=True)
class Archive:
    """A published tar file and its checksum, ``md5:…`` or ``sha256:…``."""

    url: str
    checksum: str


@dataclass(frozen=True)
class DataFile:
    """A file that a loader reads.

    ``path`` is relative to the data set's folder and ``also`` lists other places where it may lie. The
    ``checksum`` is ``md5:…`` or ``sha256:…``. It is published at ``url``, or as a member of ``archive``;
    a user's own file has neither.
    """

    path: str
    checksum: str = ""
    url: str = ""
    archive: Archive | None = None
    also: tuple[str, ...] = ()

    def find(self, folder: Path) -> Path | None:
        places = (folder / place for place in (self.path, *self.also))
        return next((place for place in places if place.is_file()), None)

    def publisher(self) -> str:
        return self.archive.url if self.archive else self.url


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A registered data set.

    Example:
        >>> digits = DATASETS["digits"]
        >>> digits.kind, digits.options()["validation"]
        ('classification', 0.1)

    Attributes:
        name: The name of the set, and of its folder in the data folder.
        summary: One line for lists.
        kind: ``classification`` or ``regression``.
        terms: Under which terms the data may be used.
        load: ``load(data_folder, variant, **options)`` makes the task: its keyword-only parameters are the
            options.
        files: The files that it reads; none by default.
        check: ``check(path)`` raises ``BadFile`` unless a file has the right form; None: nothing is checked.
        lend: ``lend(data_folder)`` gives test inputs that serve as confusion data of another set; None: it
            lends none.
        confusion: The set that lends it confusion data; None by default.
        variants: Short names of folders, where one set holds several (``uci/boston``); none by default.
    """

    name: str
    summary: str
    kind: Kind
    terms: str
    load: Callable[..., Task]
    files: tuple[DataFile, ...] = ()
    check: Callable[[Path], None] | None = None
    lend: Callable[[Path], Tensor] | None = None
    confusion: str | None = None
    variants: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """The options that ``load_task`` takes for this set, with their defaults."""
        parameters = inspect.signature(self.load).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}

    def folder(self, data_folder: Path) -> Path:
        """The folder of its files.

        Args:
            data_folder: The folder of all data sets.
        """
        return data_folder / self.name

    def files_of(self, variant: str) -> tuple[DataFile, ...]:
        """The files of one variant, or all of them; a variant of the user's own has just its table.

        Args:
            variant: Its short name, or nothing for all files.
        """
        if not variant:
            return self.files
        inside = self.variants.get(variant, variant)
        known = tuple(file for file in self.files if file.path.startswith(f"{inside}/"))
        return known or (DataFile(f"{inside}/data.txt", also=(f"{inside}/data/data.txt",)),)

    def need(self, data_folder: Path, *paths: str) -> list[Path]:
        """Where files lie, or an error that says how to get them.

        Args:
            data_folder: The folder of all data sets.
            *paths: The files by their path in the set's folder; all by default.

        Raises:
            MissingFile: One of them is not there.
        """
        wanted = [file for file in self.files if not paths or file.path in paths]
        places = [file.find(self.folder(data_folder)) for file in wanted]
        found = [place for place in places if place is not None]
        if len(found) < len(wanted):
            absent = [file for file, place in zip(wanted, places, strict=True) if place is None]
            raise missing(self, absent, data_folder)
        return found


DATASETS: Registry[Dataset] = Registry("data set", "qbayes.tasks.datasets")


def missing(dataset: Dataset, files: list[DataFile], data_folder: Path, why: str = "") -> MissingFile:
    """The error that names the files, where they go, where they are published and their checksums."""
    folder = dataset.folder(data_folder)
    listed = "".join(
        f"\n         {folder / file.path}  {file.checksum or '(any)'}  from {file.publisher() or 'you'}"
        for file in files
    )
    return MissingFile(
        f"the files of '{dataset.name}' must be in {folder}",
        f"{why}{'; ' if why else ''}{len(files)} of them missing:{listed}",
        f"run 'qbayes data fetch {dataset.name}', or put them there by hand "
        "(another data folder: --data-dir or QBAYES_DATA)",
    )


def find_dataset(name: str) -> tuple[Dataset, str]:
    """``uci/boston`` → the set ``uci`` and its variant ``boston``; ``mnist`` → the set and ''."""
    head, _, variant = name.partition("/")
    if head not in DATASETS:
        raise unknown_name("data set", name, [*DATASETS, *(f"uci/{v}" for v in DATASETS["uci"].variants)])
    dataset = DATASETS[head]
    if variant and not dataset.variants:
        raise BadInput(f"'{head}' has no parts", f"'{name}'", f"use '{head}'")
    if "/" in variant or variant in {".", ".."} or "\\" in variant:
        raise BadInput(
            "the name must be set/folder", f"'{name}'", f"for example '{head}/{min(dataset.variants)}'"
        )
    return dataset, variant


def check_options(dataset: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    for option in given:
        if option not in known:
            raise BadInput(
                f"the options of '{dataset}' must be known ones", f"'{option}'", nearest(option, known)
            )


def borrow(lender: str, data_folder: Path, wanted: Confusion) -> tuple[Tensor | None, str | None]:
    """Confusion inputs and their name. ``auto``: none where their files are missing; True: then an error."""
    if wanted not in (True, False, "auto"):
        raise BadInput("confusion must be 'auto', True or False", f"{wanted!r}", "leave it out for 'auto'")
    lend = DATASETS[lender].lend
    if wanted is False or lend is None:
        return None, None
    try:
        return lend(data_folder), lender
    except MissingFile:
        if wanted == "auto":
            return None, None
        raise
