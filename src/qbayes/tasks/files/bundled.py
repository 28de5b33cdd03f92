"""Data files that come with scikit-learn, read without importing it: that would take seconds a process.

scikit-learn imports SciPy's statistics and, where it is installed, pandas; a study starts many processes.
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from qbayes.tasks.dataset import MissingFile


def bundled_file(name: str) -> Path:
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


def bundled_table(name: str, delimiter: str | None = None) -> np.ndarray:
    """The numbers of a packed table of text; None: columns stand apart by spaces."""
    with gzip.open(bundled_file(f"data/{name}.csv.gz"), "rt", encoding="utf-8") as file:
        return np.loadtxt(file, delimiter=delimiter)
