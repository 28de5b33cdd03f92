"""Whole networks in C against the reference, bit for bit: the paper's, and those of the zoo; every draw and
every statistic."""

from pathlib import Path

import pytest
import torch

import qbayes as qb
from fine_tuned import tuning
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.c_build import SANITIZED, STRICT, compiled, compilers, differing, exported, needs_compiler, run
from parity.subjects import NETWORKS, float_posterior, quantised, task_of
from qbayes.export.c.selftest import record
from qbayes.integer.posterior import load
from qbayes.integer.program import Program
from qbayes.integer.statistics.summary import units
from zoo.conftest import learnt_once  # noqa: F401  (processes share what the zoo has learnt)
from zoo.tasks import METHODS, SHORT

pytestmark = needs_compiler
WIDTHS = ((8, 8), (8, 7), (4, 4), (3, 3), (2, 2))
SHORT_OF_OURS = {
    "mlp": "bbb",
    "lenet_paper": "mcd",
    "lenet_relu": "bbb",
    "resnet8": "mcd",
    "resnet18": "sghmc",
}
QUICK = [
    (network, method, *WIDTHS[index % len(WIDTHS)])
    for index, (network, method) in enumerate({**SHORT_OF_OURS, **SHORT}.items())
]
# of the zoo a few in the short run: each has ops that the others lack.
OFTEN = (
    *("mlp", "lenet_relu", "resnet8", "resnet18"),
    *("mobilenet_v2", "sequence", "mlp_silu", "unet_map", "pools"),
)


def lowered(network: str, method: str, weight: int, activation: int, preset: str = "default") -> Program:
    bits = {"weight": weight, "activation": activation}
    precision = qb.Precision(**bits) if preset == "default" else qb.Precision.preset(preset, **bits)
    return qb.lower(quantised(float_posterior(network, method), network, precision))


def rows_of(network: str, count: int) -> torch.Tensor:
    x, _ = next(iter(task_of(network).batches("test", count)))
    return x


def check(program: Program, network: str, *flags: str, draws: int = 5) -> None:
    assert differing(compiled(program, *flags), rows_of(network, 3), draws=draws) == []


@pytest.mark.parametrize(
    ("network", "method", "weight", "activation"),
    [pytest.param(*case, marks=() if case[0] in OFTEN else pytest.mark.full) for case in QUICK],
)
def test_a_network_is_bit_equal(network: str, method: str, weight: int, activation: int) -> None:
    check(lowered(network, method, weight, activation), network)


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_method_and_width_is_bit_equal(network: str, method: str) -> None:
    for at, (weight, activation) in enumerate(WIDTHS):
        compiler = compilers()[at % len(compilers())]
        made = compiled(lowered(network, method, weight, activation), "-O2", compiler=compiler)
        assert differing(made, rows_of(network, 3), draws=5) == [], (weight, activation, compiler)


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_and_method_passes_under_sanitizers(network: str, method: str, tmp_path: Path) -> None:
    """Its own self-test, in which any step beyond an array or beyond what C defines ends the program."""
    folder = exported(lowered(network, method, 4, 4), tmp_path / "c")
    made = tmp_path / "test"
    sources = [folder / "network.c", folder / "network_test.c"]
    run([compilers()[0], *STRICT, "-O0", *SANITIZED, "-DNETWORK_FLOAT", *sources, "-o", made])
    assert "the same bits" in run([made])


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", ["resnet8", "resnet18"])
def test_a_resnet_of_cifar_is_bit_equal(network: str, method: str) -> None:
    """ResNet-8 and the slim ResNet-18 on colour images: random weights are as good a test as trained ones."""
    for weight, activation in WIDTHS:
        program = of_colour_images(network, method, weight, activation)
        x = torch.randn((1, 3, 32, 32), generator=torch.Generator().manual_seed(1)) * 50 + 120
        assert differing(compiled(program, "-O3", "-march=native"), x, draws=2) == []


def of_colour_images(network: str, method: str, weight: int, activation: int) -> Program:
    draw = torch.Generator().manual_seed(0)
    x = (torch.randn((64, 3, 32, 32), generator=draw) * 50 + 120).clamp(0, 255)
    y = torch.arange(64) % 10
    task = qb.Task.from_arrays(x, y, x, y, kind="classification", name="noise")
    options = {"sghmc": {"members": 2, "every": 1}}.get(method, {})
    budget = qb.Budget(epochs=2 if method == "sghmc" else 1, batch_size=32, learning_rate=1e-3)
    posterior = qb.fit(
        qb.network(network, task), task, qb.method(method, **options), budget, device="cpu", progress=False
    )
    calibrate = tuning(epochs=0, batch_size=64)
    precision = qb.Precision(weight=weight, activation=activation)
    return qb.lower(qb.quantize(posterior, task, precision, calibrate, device="cpu", progress=False))


@pytest.mark.parametrize("method", ["pointwise", "bbb"])
@pytest.mark.parametrize("network", ["mlp", pytest.param("lenet_relu", marks=pytest.mark.full)])
def test_the_papers_own_scheme_is_bit_equal(network: str, method: str) -> None:
    """Affine weights by tensor, noise on the single grid of the weights."""
    check(lowered(network, method, 8, 7, "paper"), network)


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
def test_every_granularity_is_bit_equal(granularity: str, scheme: str) -> None:
    precision = qb.Precision(weight=5, activation=6, granularity=granularity, weight_scheme=scheme)
    program = qb.lower(quantised(float_posterior("lenet_relu", "pointwise"), "lenet_relu", precision))
    check(program, "lenet_relu")


def test_less_memory_gives_the_same_bits() -> None:
    """Where RAM is short, rows of weights are unpacked by fewer at once."""
    program = lowered("lenet_relu", "bbb", 4, 4)
    assert differing(compiled(program, ram="4400"), rows_of("lenet_relu", 2), draws=3) == []


@pytest.mark.parametrize(
    ("network", "method"), [("lenet_relu", "mcd"), ("mlp", "bbb"), ("mlp_silu", "sghmc")]
)
def test_the_integer_statistics_are_those_of_float(network: str, method: str) -> None:
    """Mean, variance and entropy in integers stand for what the library answers in float."""
    program, x = lowered(network, method, 8, 8), rows_of(network, 20)
    told = load(program, "reference").predict(x, draws=16, seed=3)
    ours = record(program, len(x), 16, seed=3, raw=x).answer
    mean, variance, entropy = ours.mean.double(), ours.variance.double(), ours.entropy.double() / 2.0**24
    target = program.signature.target
    if target is None:
        assert torch.allclose(mean / 2.0**24, told.mean.double(), atol=1e-6)
        assert torch.allclose(variance / 2.0**32, told.variance.double(), atol=1e-6)
        assert torch.allclose(entropy, told.entropy.double(), atol=1e-5)
        return
    fraction = units(program).fraction
    assert torch.allclose(mean / 2.0**fraction * target.std + target.mean, told.mean.double(), rtol=1e-4)
    assert torch.allclose(variance / 4.0**fraction * target.std**2, told.variance.double(), rtol=1e-3)
    # the Gaussian with the same moments has the largest entropy.
    assert bool((entropy + target.std.double().log().sum() >= told.entropy.double() - 1e-3).all())


@pytest.mark.parametrize(("network", "method"), [("lenet_relu", "mcd"), ("mlp", "bbb"), ("unet_map", "mcd")])
def test_the_float_variant_answers_in_the_tasks_units(network: str, method: str) -> None:
    program, x = lowered(network, method, 8, 8), rows_of(network, 6)
    told = load(program, "reference").predict(x, draws=9, seed=3)
    raw = x.float().flatten(1).contiguous().numpy()
    mean, variance, entropy = map(
        torch.from_numpy, compiled(program, "-O1", "-DNETWORK_FLOAT").predict_float(raw, 9, 3)
    )
    assert torch.allclose(mean, told.mean.flatten(1), rtol=1e-4, atol=1e-5)
    assert torch.allclose(variance, told.variance.flatten(1), rtol=2e-3, atol=1e-6)
    if program.signature.target is None:
        assert torch.allclose(entropy, told.entropy, atol=1e-4)
    else:
        assert bool((entropy >= told.entropy - 1e-2).all())
