"""Standardisation: fitted moments, exact inverses, and columns that cannot be divided by."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qbayes.errors import BadInput
from qbayes.posterior.likelihood import Categorical, Gaussian
from qbayes.posterior.signature import Signature, Standardize


@pytest.mark.parametrize("shape", [(50, 3), (50, 3, 7), (50, 3, 4, 5)])
def test_fitted_data_has_mean_zero_and_deviation_one(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape) * 5 + torch.arange(3.0).view(1, 3, *(1,) * (len(shape) - 2)) * 10
    z = Standardize.fit(x).apply(x).transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(z.mean(1), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(z.std(1, correction=0), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0)


def test_vector_targets() -> None:
    y = torch.tensor([1.0, 3.0, 5.0])
    scale = Standardize.fit(y)
    assert scale.mean.tolist() == [3.0]
    assert scale.std.item() == pytest.approx((8 / 3) ** 0.5)
    assert scale.apply(y).shape == (3,)
    torch.testing.assert_close(scale.invert(scale.apply(y)), y)


@given(offset=st.floats(-1e4, 1e4), spread=st.floats(1e-2, 1e4))
def test_invert_undoes_apply(offset: float, spread: float) -> None:
    x = torch.randn(20, 2) * spread + offset
    scale = Standardize.fit(x)
    torch.testing.assert_close(scale.invert(scale.apply(x)), x, rtol=1e-5, atol=1e-5 * (abs(offset) + spread))


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -3e7, 1e30])
def test_constant_column_has_deviation_one(value: float) -> None:
    x = torch.stack([torch.full((30,), value), torch.randn(30)], 1)
    scale = Standardize.fit(x)
    assert scale.std[0] == 1
    assert torch.equal(scale.apply(x)[:, 0], torch.zeros(30))


def test_small_variation_on_a_large_offset_is_kept() -> None:
    x = torch.full((100, 1), 1e6)
    x[::2] += 1
    assert Standardize.fit(x).std.item() == pytest.approx(0.5)


def test_bytes_are_read_as_numbers() -> None:
    x = torch.randint(0, 256, (10, 3, 4, 4), dtype=torch.uint8)
    z = Standardize.fit(x).apply(x)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z, Standardize.fit(x.float()).apply(x.float()))


def test_identity_changes_nothing() -> None:
    x = torch.randn(4, 3, 2)
    assert torch.equal(Standardize.identity(3).apply(x), x)


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ([0.0], [0.0]),
        ([0.0], [-1.0]),
        ([0.0, 0.0], [1.0]),
        ([float("nan")], [1.0]),
        ([0.0], [float("inf")]),
        ([[0.0]], [[1.0]]),
    ],
)
def test_bad_scales(mean: list[float], std: list[float]) -> None:
    with pytest.raises(BadInput, match="std"):
        Standardize(torch.tensor(mean), torch.tensor(std))


@given(
    numbers=st.lists(
        st.tuples(st.floats(-(2.0**99), 2.0**99, width=32), st.floats(2.0**-40, 2.0**99, width=32)),
        min_size=1,
        max_size=4,
    )
)
def test_signature_round_trips_to_the_bit(numbers: list[tuple[float, float]]) -> None:
    mean, std = torch.tensor(numbers, dtype=torch.float32).T
    signature = Signature(
        "t", (len(numbers), 2), Standardize(mean, std), Gaussian((2,)), Standardize.identity(2), ("a", "b")
    )
    again = Signature.from_json(signature.to_json())
    assert torch.equal(again.transform.mean, mean)
    assert torch.equal(again.transform.std, std)
    assert again.to_json() == signature.to_json()


def test_signature_of_a_classifier() -> None:
    signature = Signature("t", (3,), Standardize.identity(3), Categorical(2), None, ("no", "yes"))
    again = Signature.from_json(signature.to_json())
    assert again.target is None
    assert again.labels == ("no", "yes")
    assert again.likelihood == Categorical(2)
