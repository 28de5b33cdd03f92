"""What is promised of MNIST on integers, and which rate was chosen, is what the published rows say."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

import published
from published_choose import rates
from published_numbers import Studies, change

METHODS = ("pointwise", "mcd", "bbb", "sghmc")


@pytest.mark.parametrize(("bits", "error", "ece"), [("W8A8", 0.15, 0.5), ("W4A4", 0.3, 1.0)])
@pytest.mark.parametrize("training", ["calibrated", "trained"])
@pytest.mark.parametrize("method", METHODS)
def test_mnist_on_integers_costs_no_more_than_promised(
    bits: str, error: float, ece: float, training: str, method: str
) -> None:
    """Mean of the seeds, paired, in points; by calibration alone too."""
    pairs = Studies(published.RESULTS)["mnist"].pairs(method=method, precision=bits, training=training)
    assert len(pairs) >= 3
    assert change(pairs, "error", 100).value <= error
    assert change(pairs, "ece", 100).value <= ece


def test_the_rate_is_the_best_of_those_that_keep_the_spread() -> None:
    """Of the rates tried with as many steps: a higher one fits better, and each step up costs spread."""
    lines = [line for line in rates(Studies(published.RESULTS)) if "200 steps" in line]
    cells = {line.split(" | ")[0].strip("| ").partition(",")[0]: line.split(" | ")[1:] for line in lines}
    assert [*cells] == ["0.003", "0.01", "0.03"]
    for column in range(4):
        nll, spread = zip(
            *((float(part) for part in row[column].strip(" |").split(" / ")) for row in cells.values()),
            strict=True,
        )
        assert [*nll] == sorted(nll, reverse=True)
        assert [*spread] == sorted(spread, reverse=True)
