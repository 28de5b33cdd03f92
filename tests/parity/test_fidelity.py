"""Fidelity: the fake-quantised network in evaluation, the reference and the fast backend agree code by code.

At every op, fed the same codes: at most one code apart, and equal on 99.9 % of codes. End to end: predictive
means more than 0.01 apart on at most 1 % of rows. Where the fast backend says that an op is exact, all codes
are equal; where all ops are, so are all means.
"""

from typing import Any

import pytest
import torch

import qbayes as qb
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.subjects import (
    NETWORKS,
    OURS,
    backend_strays,
    exact_ops,
    fake_against_reference,
    fitted,
    float_posterior,
    quant_network,
    quantised,
    rows_apart,
    strays,
    task_of,
)
from qbayes.integer.backends.onednn.trial import why_missing
from qbayes.integer.ops import Weighted
from zoo.conftest import learnt_once  # noqa: F401  (processes share what the zoo has learnt)
from zoo.tasks import METHODS, SHORT

SEED = 5
DRAWS = 4  # as many as the zoo's SGHMC has members
ROWS, ALL_ROWS = 24, 400
FAST = why_missing() is None


def bits(weight: int, activation: int, **options: Any) -> qb.Precision:
    return qb.Precision(weight=weight, activation=activation, **options)


def check(posterior: qb.NetworkPosterior, network: str) -> qb.Program:
    """All that fidelity means, for one quantised posterior."""
    x, _ = next(iter(task_of(network).batches("test", ALL_ROWS)))
    program = qb.lower(posterior)
    reference = qb.load(program, "reference")
    for index, module in enumerate(posterior.networks):
        mine = quant_network(module).layer("input").compute(posterior.signature.transform.apply(x))  # pyright: ignore[reportArgumentType]
        assert torch.equal(mine.codes, reference.interpreter.input_codes(x, program.members[index]).float())
    assert strays(fake_against_reference(posterior, program, x[:ROWS], DRAWS, SEED)) == []
    assert rows_apart(posterior, reference, x, DRAWS, SEED) <= 0.01
    if FAST:
        assert backend_strays(program, x[:ROWS], DRAWS, SEED) == []
        limit = 0.0 if len(exact_ops(program)) == len(program.ops) else 0.01
        fast = qb.load(program, "onednn")
        assert rows_apart(reference, fast, x, DRAWS, SEED, by_more_than=limit) <= limit
    return program


WIDTHS = (bits(8, 8), bits(8, 7), bits(4, 4), bits(2, 2), bits(3, 3), bits(5, 6))
SHORT_OF_OURS = {
    "mlp": "bbb",
    "lenet_paper": "mcd",
    "lenet_relu": "bbb",
    "resnet8": "mcd",
    "resnet18": "sghmc",
}
# each network once: its method of the short run, the widths in turn.
QUICK = [
    (network, method, WIDTHS[index % 4])
    for index, (network, method) in enumerate({**SHORT, **SHORT_OF_OURS}.items())
]


@pytest.mark.parametrize(("network", "method", "precision"), QUICK, ids=lambda v: getattr(v, "label", v))
def test_every_network_is_faithful(network: str, method: str, precision: qb.Precision) -> None:
    check(quantised(float_posterior(network, method), network, precision), network)


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_method_and_width_is_faithful(network: str, method: str) -> None:
    posterior = float_posterior(network, method)
    for precision in WIDTHS:
        check(quantised(posterior, network, precision), network)


# other grids than the default's, the paper's among them.
PAPER = qb.Precision.preset("paper")
VARIANTS = {
    "paper": PAPER,
    "paper-W4A4": qb.Precision.preset("paper", weight=4, activation=4),
    "product": bits(4, 4, mask="product"),
    "tensor": bits(6, 6, granularity="tensor"),
    "symmetric-activations": bits(5, 5, activation_scheme="symmetric"),
    "minmax": bits(8, 8, weight_range="minmax", activation_range="minmax"),
    "percentile": bits(4, 4, weight_range="percentile", activation_range="percentile"),
    "mse": bits(4, 4, weight_range="mse", activation_range="mse"),
    "narrow-ends": bits(4, 3, input=None, output=None, sigma=3, noise=4),
}
# Gaussian weights that keep their noise are symmetric: not for bbb.
AFFINE = {
    "affine": bits(7, 8, weight_scheme="affine"),
    "affine-tensor": bits(4, 4, weight_scheme="affine", granularity="tensor"),
}


@pytest.mark.parametrize(
    ("network", "method", "variant"),
    [("lenet_paper", "mcd", "paper"), ("mlp_tanh", "bbb", "paper-W4A4"), ("sequence", "bbb", "narrow-ends")],
)
def test_other_grids_are_faithful(network: str, method: str, variant: str) -> None:
    check(quantised(float_posterior(network, method), network, VARIANTS[variant]), network)


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_is_faithful_on_other_grids(network: str, variant: str) -> None:
    """The paper's masks and weights with all they touch; other grids with one method each, in turn."""
    paper = variant.startswith("paper")
    for method in ("mcd", "bbb") if paper else (in_turn(METHODS, network, variant),):
        check(quantised(float_posterior(network, method), network, VARIANTS[variant]), network)


@pytest.mark.full
@pytest.mark.parametrize("variant", AFFINE)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_is_faithful_with_affine_weights(network: str, variant: str) -> None:
    method = in_turn(("pointwise", "mcd", "sghmc"), network, variant)
    check(quantised(float_posterior(network, method), network, AFFINE[variant]), network)


@pytest.mark.full
@pytest.mark.parametrize("precision", [bits(4, 4), PAPER], ids=["W4A4", "paper"])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_is_faithful_after_training_on(network: str, precision: qb.Precision) -> None:
    """Learned steps, and weights that moved on the grid."""
    method = in_turn(METHODS, network, precision.label)
    check(quantised(float_posterior(network, method), network, precision, epochs=1), network)


def in_turn(methods: tuple[str, ...], network: str, what: str) -> str:
    return methods[(NETWORKS.index(network) + len(what)) % len(methods)]


OWN_BIAS = [*OURS, "sequence", "mobilenet_v2", "shared_layer"]


@pytest.mark.parametrize(
    "network", [pytest.param(n, marks=() if n == "lenet_relu" else pytest.mark.full) for n in OWN_BIAS]
)
def test_a_gaussian_bias_is_faithful(network: str) -> None:
    posterior = fitted(network, "bbb", gaussian_bias=True)
    for precision in (bits(8, 8), bits(3, 3), PAPER):
        program = check(quantised(posterior, network, precision), network)
        with_bias = [op.name for op in program.ops if isinstance(op, Weighted) and op.weights.bias_site]
        # lenet's paper style and the ResNet have no biases to be Gaussian.
        assert bool(with_bias) == (network not in ("lenet_paper", "resnet18")), with_bias


@pytest.mark.parametrize(
    ("network", "method"),
    [
        ("mlp", "bbb"),
        pytest.param("sequence", "bbb", marks=pytest.mark.full),
        pytest.param("densenet", "bbb", marks=pytest.mark.full),
        pytest.param("resnet18", "bbb", marks=pytest.mark.full),
        pytest.param("unet", "mcd", marks=pytest.mark.full),
        pytest.param("mlp_tanh", "sghmc", marks=pytest.mark.full),
    ],
)
def test_an_ensemble_is_faithful(network: str, method: str) -> None:
    """Members have codes, scales and zero-points of their own in one list of ops."""
    posterior = fitted(network, method, chains=2)
    for precision in (bits(8, 8), bits(3, 3), bits(2, 2)):
        program = check(quantised(posterior, network, precision), network)
        first, second = program.members[:2]
        assert first.scales != second.scales
        assert any(
            not torch.equal(one, second.constants[op][name])
            for op, constants in first.constants.items()
            for name, one in constants.items()
        )


@pytest.mark.parametrize("precision", [bits(8, 8), bits(3, 3), PAPER], ids=["W8A8", "W3A3", "paper"])
def test_a_norm_with_a_negative_gain_turns_the_noise_round(precision: qb.Precision) -> None:
    program = check(quantised(float_posterior("sequence", "bbb"), "sequence", precision), "sequence")
    multipliers = program.members[0].constants["conv1"]["noise_multiplier"]
    assert bool((multipliers < 0).any())
    assert bool((multipliers > 0).any())
