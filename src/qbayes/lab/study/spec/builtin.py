"""The studies that come with qbayes, by name."""

import os
from importlib.resources import files
from pathlib import Path

from qbayes.errors import unknown_name

# in a wheel they lie inside the package, in a checkout beside its sources.
_PLACES = (Path(str(files("qbayes"))) / "studies", Path(__file__).parents[5] / "studies")


def shipped() -> dict[str, Path]:
    """The file of every study that is there."""
    return {path.stem: path for place in _PLACES if place.is_dir() for path in sorted(place.glob("*.toml"))}


def study_file(name: str | Path) -> Path:
    """A path as it is; a bare name is one of the shipped studies."""
    path = Path(name)
    if path.suffix or len(path.parts) != 1 or os.path.exists(path):
        return path
    known = shipped()
    if path.name not in known:
        raise unknown_name("study", path.name, known)
    return known[path.name]
