"""The budget: its checks, and the learning rate of every step in closed form."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbayes.errors import BadInput
from qbayes.training.budget import Budget, steps_in_epoch


@given(steps=st.integers(1, 500), rate=st.floats(1e-6, 10))
def test_cosine(steps: int, rate: float) -> None:
    budget = Budget(learning_rate=rate)
    rates = [budget.rate_at(step, steps) for step in range(steps)]
    assert rates == pytest.approx(
        [rate * math.cos(math.pi * step / (2 * steps)) ** 2 for step in range(steps)], rel=1e-6
    )
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == rate
    assert rates[-1] > 0


@given(
    steps=st.integers(10, 500), share=st.floats(0.05, 0.95), schedule=st.sampled_from(["cosine", "constant"])
)
def test_warm_up(steps: int, share: float, schedule: Any) -> None:
    budget = Budget(learning_rate=0.5, warmup=share, schedule=schedule)
    warm = round(share * steps)
    rates = [budget.rate_at(step, steps) for step in range(steps)]
    assert rates[:warm] == pytest.approx([0.5 * (step + 1) / warm for step in range(warm)])
    plain = Budget(learning_rate=0.5, schedule=schedule)
    assert rates[warm:] == pytest.approx([plain.rate_at(step, steps - warm) for step in range(steps - warm)])


def test_constant() -> None:
    budget = Budget(learning_rate=0.1, schedule="constant")
    assert {budget.rate_at(step, 9) for step in range(9)} == {0.1}


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": -1},
        {"epochs": 1.5},
        {"epochs": True},
        {"epochs": "3"},
        {"batch_size": 0},
        {"batch_size": None},
        {"learning_rate": 0},
        {"learning_rate": -1e-3},
        {"learning_rate": math.inf},
        {"learning_rate": math.nan},
        {"learning_rate": "0.1"},
        {"warmup": 1.0},
        {"warmup": -0.1},
        {"warmup": None},
        {"clip": -1},
        {"clip": math.nan},
        {"clip": "1"},
        {"least_steps": -1},
        {"least_steps": 1.5},
        {"bf16": "yes"},
        {"compile": 1},
        {"schedule": "cosin"},
        {"schedule": None},
        {"epoch": 3},
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(options))):
        Budget.from_options(options)


def test_nearest_spelling() -> None:
    with pytest.raises(BadInput, match="did you mean 'epochs'"):
        Budget.from_options({"epoch": 3})
    with pytest.raises(BadInput, match="did you mean 'cosine'"):
        Budget(schedule="cosin")  # pyright: ignore[reportArgumentType]


@given(rows=st.integers(0, 5000), steps=st.integers(0, 3000), epochs=st.integers(1, 50))
def test_least_steps_raise_the_epochs_and_nothing_else(rows: int, steps: int, epochs: int) -> None:
    budget = Budget(epochs=epochs, batch_size=32, least_steps=steps)
    found = budget.for_rows(rows)
    each = max(1, steps_in_epoch(rows, 32))
    assert found.epochs * each >= steps
    assert found.epochs == epochs or (found.epochs - 1) * each < steps, "no more than needed"
    assert found == Budget(epochs=found.epochs, batch_size=32)


def test_epochs_that_are_named_are_kept() -> None:
    preset = {"epochs": 10, "least_steps": 5000, "batch_size": 8}
    assert Budget.from_options(preset, epochs=3).for_rows(80).epochs == 3
    assert Budget.from_options(preset, batch_size=16).for_rows(80).epochs == 1000
    assert Budget.from_options(preset, epochs=3, least_steps=40).for_rows(80).epochs == 4


def test_json_round_trip() -> None:
    budget = Budget(epochs=3, clip=1, warmup=0.1, schedule="constant")
    assert Budget.from_options(json.loads(json.dumps(budget.to_json()))) == budget


def test_a_norm_of_nothing_is_no_limit() -> None:
    """On the command line and in TOML there is no None."""
    assert Budget(clip=0) == Budget(clip=None) == Budget()
