"""The fixed splits are those of Hernández-Lobato & Adams; folds partition the rows."""

import hashlib
from typing import Any

import numpy as np
import pytest

from qbayes.errors import BadInput
from qbayes.tasks.base import fold, split_rows

# sha256 over the training and test indices (int64, little-endian) of splits 0 … 19 as they were published
# beside each table, for its number of rows.
PUBLISHED = {
    506: "3a0f9d6fd12975eb9ec1aad334038e1dd6ecae021b4f14037f307b282942fd29",  # bostonHousing
    1030: "53e07118dc99dae5a0c6777cb98187d1709d3a52f815116a31dab2aca8fd0d09",  # concrete
    768: "f31dbf17d6e9061396b9e6d151d41d73c99674ac73da7f107358c51f633b6bd3",  # energy
    9568: "86afc4ab79af4eccfc740e8b1ac3557b96b2fb7cbfcaa62e10fe0fe3e9fb6522",  # power-plant
    1599: "2321a34fc862e7f7c721e5732d84278e97b93432d6ae2c61f9cde20dbacd5819",  # wine-quality-red
    308: "28ca596560b98361cb8eb5e2696b48929ad65c748ce5ff1a4ca96c2d71b46635",  # yacht
}


@pytest.mark.parametrize("rows", PUBLISHED)
def test_the_twenty_splits_are_the_published_ones(rows: int) -> None:
    digest = hashlib.sha256()
    for split in range(20):
        for part in split_rows(rows, split, splits=20):
            digest.update(part.astype("<i8").tobytes())
    assert digest.hexdigest() == PUBLISHED[rows]


def test_a_split_may_be_a_number_of_numpy() -> None:
    for ours, numpys in zip(split_rows(50, 3), split_rows(50, np.int64(3)), strict=True):
        assert np.array_equal(ours, numpys)


def test_the_first_split_of_yacht_by_eye() -> None:
    train, test = split_rows(308, 0)
    assert train[:5].tolist() == [73, 304, 228, 238, 259]
    assert test[:5].tolist() == [121, 115, 286, 216, 264]
    assert (len(train), len(test)) == (277, 31)


@pytest.mark.parametrize("rows", [20, 101, 308])
def test_splits_and_folds_partition_the_rows(rows: int) -> None:
    everything = np.arange(rows)
    for split in range(3):
        assert np.array_equal(np.sort(np.concatenate(split_rows(rows, split))), everything)
    tests = [fold(rows, k, 10)[1] for k in range(10)]
    assert np.array_equal(np.sort(np.concatenate(tests)), everything)
    for k in range(10):
        assert np.array_equal(np.sort(np.concatenate(fold(rows, k, 10))), everything)
    # shuffled: the first fold is not the first rows.
    assert not np.array_equal(np.sort(tests[0]), everything[: len(tests[0])])


@pytest.mark.parametrize("split", [-1, 20, 1.5, "3"])
def test_split_numbers_are_checked(split: Any) -> None:
    with pytest.raises(BadInput, match="0 … 19"):
        split_rows(100, split, splits=20)
