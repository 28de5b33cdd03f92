"""Shifts: exact cases, scipy as oracle, and commuting with standardisation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from qbayes.errors import BadInput
from qbayes.posterior.signature import Standardize
from qbayes.tasks.shifts import LEVELS, rotate, shift

ZERO, WHITE = torch.zeros(1, 1, 1), torch.full((1, 1, 1), 255.0)


def images(rows: int = 3, channels: int = 2, height: int = 9, width: int = 9, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, channels, height, width), generator=generator).float()


def test_levels_are_those_of_the_paper() -> None:
    assert LEVELS == {
        "rotation": (15, 30, 45, 60, 75),
        "brightness": (1.5, 2.0, 2.5, 3.0, 3.5),
        "horizontal_shift": (0.1, 0.2, 0.3, 0.4, 0.5),
    }


@pytest.mark.parametrize("quarters", [-1, 0, 1, 2, 3])
def test_quarter_turns_are_exact_and_counter_clockwise(quarters: int) -> None:
    x = images()
    expected = torch.rot90(x, quarters, dims=(-2, -1))
    torch.testing.assert_close(rotate(x, 90.0 * quarters, ZERO, WHITE), expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("degrees", LEVELS["rotation"])
@pytest.mark.parametrize(("height", "width"), [(9, 9), (8, 8), (6, 11)])
def test_rotation_agrees_with_scipy(degrees: float, height: int, width: int) -> None:
    x = images(1, 1, height, width)
    expected = ndimage.rotate(
        x[0, 0].double().numpy(), degrees, reshape=False, order=1, mode="grid-constant", cval=0.0
    )
    got = rotate(x, degrees, ZERO, WHITE)[0, 0]
    torch.testing.assert_close(got.double(), torch.from_numpy(expected), atol=5e-3, rtol=0)


@pytest.mark.parametrize("factor_level", range(1, 6))
def test_brightness_multiplies_and_clips(factor_level: int) -> None:
    x = torch.tensor([0.0, 10.0, 100.0, 255.0]).view(1, 1, 2, 2)
    factor = LEVELS["brightness"][factor_level - 1]
    expected = np.minimum(np.array([0.0, 10.0, 100.0, 255.0]) * factor, 255.0)
    assert shift(x, "brightness", factor_level, 0, 255).flatten().tolist() == expected.tolist()


def test_horizontal_shift_moves_right_in_whole_pixels_and_fills_black() -> None:
    x = torch.arange(10.0).view(1, 1, 1, 10)
    assert shift(x, "horizontal_shift", 3, -7.0, 9.0).flatten().tolist() == [-7, -7, -7, 0, 1, 2, 3, 4, 5, 6]
    # 0.1 of 28 pixels is 2.8: three.
    wide = torch.ones(1, 1, 1, 28)
    assert shift(wide, "horizontal_shift", 1, 0.0, 1.0).sum() == 25


@pytest.mark.parametrize("name", LEVELS)
def test_level_0_changes_nothing(name: str) -> None:
    x = images()
    assert shift(x, name, 0, 0, 255) is x


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(LEVELS)),
    level=st.integers(1, 5),
    mean=st.lists(st.floats(-50, 300), min_size=2, max_size=2),
    std=st.lists(st.floats(0.5, 100), min_size=2, max_size=2),
    seed=st.integers(0, 100),
)
def test_shifting_commutes_with_standardising(
    name: str, level: int, mean: list[float], std: list[float], seed: int
) -> None:
    x = images(seed=seed).double()
    scale = Standardize(torch.tensor(mean), torch.tensor(std))
    low = (0.0 - scale.mean) / scale.std
    high = (255.0 - scale.mean) / scale.std
    of_raw = scale.apply(shift(x.float(), name, level, 0.0, 255.0))
    of_standardised = shift(scale.apply(x), name, level, low, high)
    torch.testing.assert_close(of_raw, of_standardised, atol=2e-2 / min(std), rtol=1e-4)


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("level", [1, 5])
def test_uint8_stays_uint8_and_is_the_rounded_float_result(name: str, level: int) -> None:
    x = images()
    got = shift(x.to(torch.uint8), name, level, 0, 255)
    assert got.dtype == torch.uint8
    assert torch.equal(got.float(), shift(x, name, level, 0, 255).round().clamp(0, 255))


@pytest.mark.parametrize("name", LEVELS)
def test_each_image_is_shifted_by_itself(name: str) -> None:
    x = images(rows=4)
    together = shift(x, name, 2, 0, 255)
    for row in range(4):
        torch.testing.assert_close(together[row : row + 1], shift(x[row : row + 1], name, 2, 0, 255))


@pytest.mark.parametrize(
    ("x", "name", "level", "said"),
    [
        (torch.zeros(2, 1, 4, 4), "rotaton", 1, "did you mean 'rotation'"),
        (torch.zeros(2, 1, 4, 4), "rotation", 6, "0 … 5"),
        (torch.zeros(2, 1, 4, 4), "rotation", -1, "0 … 5"),
        (torch.zeros(2, 16), "rotation", 1, "images"),
    ],
)
def test_bad_requests(x: torch.Tensor, name: str, level: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        shift(x, name, level, 0, 1)


def test_black_levels_must_fit_the_channels() -> None:
    with pytest.raises(BadInput, match="3 channels"):
        shift(torch.zeros(1, 3, 4, 4), "brightness", 1, torch.zeros(2), 1.0)
