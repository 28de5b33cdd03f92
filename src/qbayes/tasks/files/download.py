"""Fetching data sets from where they are published, and checking what lies in the data folder.

Files come over HTTP(S) into ``NAME.part``, which a second run continues where the server can; a file
appears under its own name only after its checksum was right. ``QBAYES_MIRROR=https://host/path`` takes
everything from ``https://host/path/<data set>/<file>`` instead; the checksums stay the official ones.
"""

import gzip
import os
import tarfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np

from qbayes.errors import BadFile
from qbayes.tasks.dataset import Archive, DataFile, Dataset, MissingFile, find_dataset, missing
from qbayes.tasks.files.transfer import SIZE_LIMIT, Progress, Unreachable, cannot_write, download, matches

Status = Literal["official", "other", "damaged", "missing"]


def data_folder(data_dir: str | Path | None = None) -> Path:
    """``data_dir``, else ``$QBAYES_DATA``, else ``qbayes`` in the user's cache folder."""
    chosen = data_dir or os.environ.get("QBAYES_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "qbayes"


def fetch(
    dataset: str, data_dir: str | Path | None = None, progress: Progress | None = None
) -> list[tuple[str, str]]:
    """Download what is missing of a set; each file with ``fetched`` or ``kept``. Nothing is overwritten.

    ``progress(file name, bytes so far, bytes in all or None)`` is called as data comes in.
    """
    member, variant = find_dataset(dataset)
    files = member.files_of(variant)
    wanted = fetch_files(member, files, data_folder(data_dir), progress)
    return [(file.path, "fetched" if file in wanted else "kept") for file in files]


def verify(dataset: str, data_dir: str | Path | None = None) -> list[tuple[str, Status]]:
    """Each file of a set: official, other (the form is right, the bytes differ), damaged or missing."""
    member, variant = find_dataset(dataset)
    folder = member.folder(data_folder(data_dir))
    return [(file.path, status(member, file, folder)) for file in member.files_of(variant)]


def status(dataset: Dataset, file: DataFile, folder: Path) -> Status:
    place = file.find(folder)
    if place is None:
        return "missing"
    try:
        if matches(place, file.checksum):
            return "official"
        if dataset.check is not None:
            dataset.check(place)
    except BadFile:
        return "damaged"
    except OSError as error:
        raise BadFile(f"{place} must be readable", f"{error.strerror}", "change its rights") from error
    return "other"


def fetch_files(
    dataset: Dataset, files: tuple[DataFile, ...], data: Path, progress: Progress | None = None
) -> list[DataFile]:
    """Download those of ``files`` that are not there, and say which these were."""
    folder = dataset.folder(data)
    wanted = [file for file in files if _must_come(dataset, file, folder)]
    unknown = [file for file in wanted if not file.publisher()]
    if unknown:
        raise missing(dataset, unknown, data)
    try:
        for file in wanted:
            if file.archive is None:
                url = _address(dataset, file.path, file.url)
                download(url, folder / file.path, file.checksum, progress)
        for archive in {file.archive: None for file in wanted if file.archive is not None}:
            _fetch_archive(dataset, archive, wanted, folder, progress)
    except Unreachable as error:
        absent = [file for file in wanted if file.find(folder) is None]
        raise missing(dataset, absent, data, why=f"{error.must}: {error.got}") from error
    return wanted


def _must_come(dataset: Dataset, file: DataFile, folder: Path) -> bool:
    found = status(dataset, file, folder)
    if found == "damaged":
        raise BadFile(
            f"{folder / file.path} must be a file of '{dataset.name}', or not be there",
            "a damaged file, or something else under that name",
            "move it away and fetch again; it is not overwritten",
        )
    return found == "missing"


def _fetch_archive(
    dataset: Dataset, archive: Archive, wanted: list[DataFile], folder: Path, progress: Progress | None
) -> None:
    name = archive.url.rpartition("/")[2]
    place = folder / name
    if not (place.is_file() and matches(place, archive.checksum)):
        download(_address(dataset, name, archive.url), place, archive.checksum, progress)
    unpack_members(place, [file for file in wanted if file.archive == archive], folder)
    place.unlink()  # its members are in place and checked


def _address(dataset: Dataset, path: str, official: str) -> str:
    mirror = os.environ.get("QBAYES_MIRROR", "").rstrip("/")
    return f"{mirror}/{dataset.name}/{path}" if mirror else official


def unpack_members(archive: Path, files: list[DataFile], folder: Path) -> None:
    """Write ``files`` from ``archive`` under ``folder``, each checked before it gets its name.

    Members are read by their expected names and written to paths of ours: a hostile archive cannot
    choose where anything goes. Links and other kinds of members are refused.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for file in files:
                _unpack(tar, file, folder)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _refuse_archive(archive, str(error)) from error
    except OSError as error:
        raise cannot_write(folder, error) from error


def _unpack(tar: tarfile.TarFile, file: DataFile, folder: Path) -> None:
    source = Path(str(tar.name))
    try:
        member = tar.getmember(file.path)
    except KeyError as error:
        raise _refuse_archive(source, f"no member {file.path}") from error
    stream = tar.extractfile(member) if member.isreg() and member.size <= SIZE_LIMIT else None
    if stream is None:
        raise _refuse_archive(source, f"{file.path} is a link, a folder, or far too large")
    place = folder / file.path
    part = place.with_name(place.name + ".part")
    place.parent.mkdir(parents=True, exist_ok=True)
    with stream, part.open("wb") as out:
        while chunk := stream.read(2**20):
            out.write(chunk)
    if not matches(part, file.checksum):
        part.unlink()
        raise _refuse_archive(source, f"{file.path} does not have the checksum {file.checksum}")
    os.replace(part, place)


def _refuse_archive(archive: Path, why: str) -> BadFile:
    return BadFile(f"{archive.name} must be the published archive", why, "delete it and fetch again")


def file_of_scikit_learn(name: str) -> Path:
    """A file below ``sklearn/datasets``."""
    package = find_spec("sklearn")
    places = (package.submodule_search_locations if package else None) or []
    for place in places:
        path = Path(place) / "datasets" / name
        if path.is_file():
            return path
    raise MissingFile(
        "scikit-learn must be installed with its data sets",
        f"no datasets/{name} in {', '.join(places) or 'this environment'}",
        "install it anew: pip install --force-reinstall scikit-learn",
    )


def table_of_scikit_learn(name: str, delimiter: str | None = None) -> np.ndarray:
    """The numbers of a packed table of text; None: columns stand apart by spaces."""
    with gzip.open(file_of_scikit_learn(f"data/{name}.csv.gz"), "rt", encoding="utf-8") as file:
        return np.loadtxt(file, delimiter=delimiter)
