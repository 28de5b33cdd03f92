"""A target that is a folder: nothing in it is lost without a word, and a new one appears whole or not."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from qbayes.errors import BadFile


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
