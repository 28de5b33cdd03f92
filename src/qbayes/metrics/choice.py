"""A fixed choice of rows: the same in every run, whatever the order of the data.

The place of a row in the choice is a random word of its index alone (Philox, as the noise). So the first
1,000 of a choice are among its first 2,000, and data that are sorted by class give all classes.
"""

from collections.abc import Iterable, Iterator
from numbers import Integral

import torch
from torch import Tensor

from qbayes import noise
from qbayes.errors import BadInput

# keys the choice; any other number would do, but it must stay: it decides which rows published scores are of.
_SEED = 0x726F7773


def check_count(name: str, rows: object) -> None:
    """Refuse a number of rows that is none; None stands for all."""
    if rows is None:
        return
    if isinstance(rows, bool) or not isinstance(rows, Integral) or rows < 1:
        raise BadInput(
            f"{name} must be a whole number of at least 1", f"{rows!r}", f"leave {name} out for all rows"
        )


def check_enough(name: str, rows: int, there: int, where: str) -> None:
    """Refuse a choice of more rows than there are."""
    if rows > there:
        raise BadInput(
            f"{name} must be at most the number of rows that there are",
            f"{rows:,} of {there:,} rows of {where}",
            f"give {there} or fewer, or leave {name} out for all rows",
        )


def choose_rows(there: int, rows: int) -> Tensor:
    """The indices of ``rows`` of ``there`` rows, sorted.

    Example:
        >>> from qbayes.metrics.choice import choose_rows
        >>> set(choose_rows(100, 3).tolist()) <= set(choose_rows(100, 10).tolist())
        True

    Args:
        there: How many rows there are.
        rows: How many of them are chosen.
    """
    words = noise.words(_SEED, 0, torch.zeros(1, dtype=torch.int64), torch.arange(there), 1)
    return words.flatten().argsort(stable=True)[:rows].sort().values


def take(batches: Iterable[tuple[Tensor, ...]], kept: Tensor) -> tuple[Tensor, ...]:
    """The rows ``kept`` (sorted indices) out of all batches, in order."""
    parts = list(_parts(batches, kept))
    return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))


def _parts(batches: Iterable[tuple[Tensor, ...]], kept: Tensor) -> Iterator[tuple[Tensor, ...]]:
    first = 0
    for batch in batches:
        rows = len(batch[0])
        low, high = torch.searchsorted(kept, torch.tensor([first, first + rows])).tolist()
        # copied, so that a batch is not held for the sake of a few of its rows.
        yield tuple(column[kept[low:high] - first] for column in batch)
        first += rows
