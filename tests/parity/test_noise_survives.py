"""The noise of Gaussian weights survives on coarse grids: as reported, and as drawn."""

import pytest
import torch

import qbayes as qb
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.gaussian_draws import pairs
from parity.subjects import float_posterior, quantised
from qbayes.integer.structure.cost import cost
from zoo.conftest import learnt_once  # noqa: F401  (processes share what the zoo has learnt)

KEPT = (0.8, 1.25)
DRAWS = 64
# the norm behind each layer that has one: it is folded, and scales σ.
NORMS = {"sequence": {"conv1": "norm1", "conv2": "norm2"}}
SUBJECTS = ("mlp", "lenet_relu", "sequence", "mlp_tanh")


def ratios(network: str, precision: qb.Precision) -> tuple[dict[str, float], dict[str, float]]:
    """``Var(S_w w_q) / σ²`` of each layer: what the program reports, and over drawn weights."""
    posterior = float_posterior(network, "bbb")
    # weights are compared with those of the float network: channels must keep their size.
    program = qb.lower(quantised(posterior, network, precision, equalize=False))
    reported = {op.name: op.variance_ratio for op in cost(program).ops if op.variance_ratio is not None}
    drawn: dict[str, float] = {}
    for pair in pairs(posterior, program, NORMS.get(network, {})):
        weights = torch.stack([pair.integer_weights(program, 3, draw) for draw in range(DRAWS)])
        drawn[pair.op.name] = float(weights.var(0).mean() / pair.variance.mean())
    return reported, drawn


@pytest.mark.parametrize(
    ("network", "weight"),
    [
        pytest.param(network, weight, marks=() if weight in (8, 4, 3) else pytest.mark.full)
        for network in SUBJECTS
        for weight in (8, 7, 6, 5, 4, 3, 2)
    ],
)
def test_the_variance_is_kept(network: str, weight: int) -> None:
    reported, drawn = ratios(network, qb.Precision(weight=weight))
    assert reported.keys() == drawn.keys()
    assert all(KEPT[0] <= ratio <= KEPT[1] for ratio in reported.values()), reported
    # the mean of N sample variances of 64 draws: a relative error of √(2 / 63 / N), N ≥ 96; σ differ in size.
    for name, ratio in reported.items():
        assert drawn[name] == pytest.approx(ratio, rel=0.1), name


def test_the_papers_grid_loses_what_the_default_keeps() -> None:
    """At 3 bits it swallows most of one layer's noise and inflates that of others."""
    kept, _ = ratios("lenet_relu", qb.Precision(weight=3))
    reported, drawn = ratios("lenet_relu", qb.Precision.preset("paper", weight=3, activation=8))
    lost = {name for name, ratio in reported.items() if not KEPT[0] <= ratio <= KEPT[1]}
    assert lost
    for name, ratio in reported.items():
        assert drawn[name] == pytest.approx(ratio, rel=0.1), name
    assert all(KEPT[0] <= kept[name] <= KEPT[1] for name in lost)
