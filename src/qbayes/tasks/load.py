"""``load_task``: a task by its name, or from a ``.npz`` file."""

import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qbayes.errors import BadFile, nearest
from qbayes.tasks.base import Task
from qbayes.tasks.dataset import check_options, find_dataset
from qbayes.tasks.files.download import data_folder

_NPZ_OPTIONS: dict[str, Any] = {
    "kind": None,
    "validation": None,
    "seed": 0,
    "standardize": True,
    "labels": None,
    "input_range": None,
    "shifts": None,
}
_NPZ_NEEDED = ("x_train", "y_train")
# bytes of a zip archive's last record, and the count in it that means: elsewhere.
_ZIP_END, _ZIP_MANY = 22, 0xFFFF
_NPZ_PAIRS = (("x_test", "y_test"), ("x_validation", "y_validation"))
_NPZ_ARRAYS = (*_NPZ_NEEDED, "x_test", "y_test", "x_validation", "y_validation", "x_confusion")
# all that numpy is known to raise on damaged bytes, pickles, and single arrays under this name.
NUMPY_ERRORS = (
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    KeyError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    MemoryError,
)
_VALIDATION = 0.1  # of the training rows, for classification

# A task, or the name of one.
TaskLike = Task | str


def resolve_task(task: TaskLike) -> Task:
    """The task that a name stands for, as ``load_task`` has it; anything else as it is."""
    return load_task(task) if isinstance(task, str) else task


def load_task(name: str, data_dir: str | Path | None = None, **options: Any) -> Task:
    """A task by name, or from a ``.npz`` file.

    Nothing is downloaded; ``qbayes data fetch`` does that.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits", validation=0.2)
        >>> task.train_rows, task.confusion_name
        (1078, 'photographs')

    Args:
        name: ``digits``, ``mnist``, ``uci/boston``, …, or the path of a file that ends in ``.npz``.
        data_dir: The folder of the data files; by default ``$QBAYES_DATA``, else the cache folder.
        **options: Options of the data set, such as ``validation`` or ``seed``; ``qbayes list tasks`` shows
            them.

    Returns:
        The task; its ``provenance`` holds all options.

    Raises:
        BadFile: A file is missing or damaged.
        BadInput: The name or an option is unknown.
    """
    # numpy's own numbers are no JSON, and options are recorded.
    options = {
        key: value.item() if isinstance(value, np.generic) else value for key, value in options.items()
    }
    if name.endswith(".npz"):
        return _from_npz(Path(name).expanduser(), options)
    dataset, variant = find_dataset(name)
    check_options(name, dataset.options(), options)
    task = dataset.load(data_folder(data_dir), variant, **options)
    resolved = {**dataset.options(), **options}
    confusion = task.confusion_name
    if confusion is None and resolved.get("confusion") == "auto":
        confusion = f"none: the files of {dataset.confusion} were not there"
    provenance = {
        "task": task.name,
        "options": resolved,
        "fingerprint": task.fingerprint,
        "confusion": confusion,
    }
    return replace(task, provenance=provenance)


def _from_npz(path: Path, options: dict[str, Any]) -> Task:
    check_options(path.name, _NPZ_OPTIONS, options)
    resolved = {**_NPZ_OPTIONS, **options}
    arrays = _read_npz(path)
    if resolved["kind"] is None:
        resolved["kind"] = "classification" if arrays["y_train"].dtype.kind in "iub" else "regression"
    if resolved["validation"] is None:
        share = resolved["kind"] == "classification" and "x_validation" not in arrays
        resolved["validation"] = _VALIDATION if share else 0.0
    task = Task.from_arrays(
        arrays["x_train"],
        arrays["y_train"],
        arrays.get("x_test"),
        arrays.get("y_test"),
        x_validation=arrays.get("x_validation"),
        y_validation=arrays.get("y_validation"),
        x_confusion=arrays.get("x_confusion"),
        name=path.stem,
        **resolved,
    )
    return replace(task, provenance={**task.provenance, "task": str(path), "options": resolved})


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        written = _entries(path)
    except NUMPY_ERRORS as error:
        raise _bad_npz(path, f"it cannot be read: {error}") from error
    except OSError as error:
        raise BadFile(
            f"{path} must be a readable file", f"{error.strerror or error}", "check its path and rights"
        ) from error
    if written not in (None, len(arrays)):
        raise _bad_npz(path, f"{len(arrays)} arrays of the {written} that were written: it is damaged")
    for name in arrays:
        if name not in _NPZ_ARRAYS:
            raise BadFile(f"{path} must hold known arrays only", f"'{name}'", nearest(name, _NPZ_ARRAYS))
    absent = [name for name in _NPZ_NEEDED if name not in arrays]
    if absent:
        raise _bad_npz(path, f"no array {' or '.join(absent)}")
    for pair in _NPZ_PAIRS:
        held = [name for name in pair if name in arrays]
        if len(held) == 1:
            raise _bad_npz(path, f"{held[0]} without the other of {' and '.join(pair)}")
    return arrays


def _entries(path: Path) -> int | None:
    """How many arrays the archive's last record counts, where it says so.

    A wrong length in the directory hides those behind it, and Python's reader does not count them.
    """
    with path.open("rb") as file:
        file.seek(-min(_ZIP_END, file.seek(0, os.SEEK_END)), os.SEEK_END)
        record = file.read()
    count = int.from_bytes(record[10:12], "little")
    return count if record.startswith(b"PK\x05\x06") and count < _ZIP_MANY else None


def _bad_npz(path: Path, got: str) -> BadFile:
    return BadFile(
        f"{path} must be an .npz file of plain arrays {', '.join(_NPZ_ARRAYS)} (nothing is unpickled)",
        got,
        "write it with np.savez(path, x_train=…, y_train=…, x_test=…, y_test=…)",
    )
