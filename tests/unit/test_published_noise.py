"""What docs/results/noise.md says in words is what its rows say."""

import csv
import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

import published
from published_noise import TABLES
from published_numbers import Studies, change

NAT = 0.002  # what the page calls no difference: a fiftieth of the networks' NLL


@pytest.fixture(scope="module")
def studies() -> Studies:
    return Studies(published.RESULTS)


def loss(studies: Studies, scheme: str, metric: str = "nll", **more: str) -> float:
    pairs = studies["noise-bits"].pairs(training="calibrated", scheme=f"default, {scheme}", **more)
    assert len(pairs) == 3, scheme
    return change(pairs, metric).value


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
def test_two_bits_do_for_the_noise_and_three_for_the_deviation(studies: Studies, bits: int) -> None:
    assert loss(studies, f"noise={bits}") <= loss(studies, "noise=8") + NAT
    if bits > 2:
        assert loss(studies, f"sigma={bits}") <= loss(studies, "sigma=8") + NAT


def test_one_bit_does_for_the_mask(studies: Studies) -> None:
    assert loss(studies, "mask=exact", precision="W4A2") < 0.01
    assert loss(studies, "mask=product", precision="W4A2") > 0.05


@pytest.mark.parametrize("method", ["mcd", "bbb", "sghmc"])
@pytest.mark.parametrize("bits", ["float", "W8A8", "W4A4"])
def test_a_hundred_draws_gain_nothing_over_twenty(studies: Studies, method: str, bits: str) -> None:
    twenty, hundred = (
        statistics.mean(
            row["nll"] for row in studies["draws"].done(method=method, precision=bits, draws=count)
        )
        for count in (20, 100)
    )
    assert abs(twenty - hundred) <= 0.0025


def test_three_bits_were_worse_where_the_last_layer_drew_on_a_grid_that_clips() -> None:
    """Within each seed, by the old end of the grid: networks on one grid are worse on average."""
    with (published.RESULTS / "noise-grids.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["layer"] == "logits"]
    old = [row for row in rows if row["end"] == "means"]
    for seed in ("0", "1", "2"):
        one, two = (
            [float(row["nll"]) for row in old if (row["seed"], row["grids"]) == (seed, grids)]
            for grids in ("1", "2")
        )
        if len(one) < 5 and len(two) < 5:
            assert statistics.mean(one) > statistics.mean(two)
    new = [row for row in rows if row["end"] == "drawn"]
    assert {row["grids"] for row in new} == {"1"}
    assert all(0.9 <= float(row["kept"]) <= 1.1 for row in new)
    for seed in ("0", "1", "2"):
        found = {row["noise"]: float(row["nll"]) for row in new if row["seed"] == seed}
        assert abs(found["3"] - found["8"]) < 2 * NAT


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_table_comes_from_the_rows(studies: Studies, name: str) -> None:
    lines = TABLES[name](studies)
    assert any(line.startswith("| --- ") for line in lines)
    assert not any("nan" in line for line in lines)
