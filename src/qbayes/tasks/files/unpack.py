"""Taking the expected members out of a downloaded tar file, and nothing else."""

import gzip
import os
import tarfile
import zlib
from pathlib import Path

from qbayes.errors import BadFile
from qbayes.tasks.dataset import DataFile
from qbayes.tasks.files.transfer import SIZE_LIMIT, cannot_write, matches


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
        raise _damaged(archive, str(error)) from error
    except OSError as error:
        raise cannot_write(folder, error) from error


def _unpack(tar: tarfile.TarFile, file: DataFile, folder: Path) -> None:
    source = Path(str(tar.name))
    try:
        member = tar.getmember(file.path)
    except KeyError as error:
        raise _damaged(source, f"no member {file.path}") from error
    stream = tar.extractfile(member) if member.isreg() and member.size <= SIZE_LIMIT else None
    if stream is None:
        raise _damaged(source, f"{file.path} is a link, a folder, or far too large")
    place = folder / file.path
    part = place.with_name(place.name + ".part")
    place.parent.mkdir(parents=True, exist_ok=True)
    with stream, part.open("wb") as out:
        while chunk := stream.read(2**20):
            out.write(chunk)
    if not matches(part, file.checksum):
        part.unlink()
        raise _damaged(source, f"{file.path} does not have the checksum {file.checksum}")
    os.replace(part, place)


def _damaged(archive: Path, why: str) -> BadFile:
    return BadFile(f"{archive.name} must be the published archive", why, "delete it and fetch again")
