"""Fixed splits that anyone can make again from a seed: no index files are needed."""

from numbers import Integral

import numpy as np

from qbayes.errors import BadInput

_SEED = 1
# every split is found behind those before it: where nobody says how many there are, that has an end too.
_MOST_SPLITS = 1000


def fixed_split(
    rows: int, split: int, splits: int | None = None, share: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """``(training rows, test rows)`` of split number ``split``.

    One generator, seeded with 1, gives a permutation of the rows for each split in turn, of which the
    first ``round(0.9 rows)`` train. For the UCI sets these are the 20 splits of Hernández-Lobato & Adams,
    "Probabilistic backpropagation" (2015), index for index.
    """
    _check(split, _MOST_SPLITS if splits is None else splits)
    # the legacy generator: the splits were made with it, and numpy promises that its stream never changes.
    generator = np.random.RandomState(_SEED)
    for _ in range(split):
        generator.permutation(rows)
    order = generator.permutation(rows)
    first = round(share * rows)
    return order[:first], order[first:]


def fold(rows: int, number: int, folds: int) -> tuple[np.ndarray, np.ndarray]:
    """``(training rows, test rows)`` of fold ``number`` of ``folds``: shuffled once, cut evenly."""
    _check(number, folds)
    parts = np.array_split(np.random.RandomState(_SEED).permutation(rows), folds)
    return np.concatenate([part for k, part in enumerate(parts) if k != number]), parts[number]


def _check(split: int, splits: int) -> None:
    if not isinstance(split, Integral) or not 0 <= split < splits:
        raise BadInput(f"the split must be 0 … {splits - 1}", f"{split!r}", "split=0 is the first")
