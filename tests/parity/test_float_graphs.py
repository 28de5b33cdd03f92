"""The float model: fed the noise that ``predict`` draws, it gives the float posterior's answers."""

import numpy as np
import pytest
import torch
from torch import nn

import needs
import qbayes as qb
from parity.subjects import NETWORKS, OPTIONS, OURS, task_of
from qbayes.errors import BadInput
from qbayes.noise import gaussians, keep_masks, keep_threshold
from qbayes.posterior.likelihood import ConstantNoise, Gaussian
from zoo.tasks import ZOO

needs.package("onnxruntime")
needs.package("onnx")

from qbayes.export.float_onnx import (  # noqa: E402  (behind the skip)
    OUTPUT,
    float_model,
    float_noise_sites,
    float_pass,
)
from qbayes.export.onnx import Options  # noqa: E402
from qbayes.integer.onnx.runtimes import open_model  # noqa: E402

ROWS, SEED = 3, 11
OUTPUTS = ("mean", "variance", "draws")


def untrained(name: str, method: str) -> qb.NetworkPosterior:
    """The network with its sites as it begins, its norms moved off the identity; two states for SGHMC."""
    task = task_of(name)
    torch.manual_seed(3)
    plain = ZOO[name].build() if name in ZOO else OURS[name][1](task)
    network = qb.attach(plain, qb.method(method, **OPTIONS[method]), task.example(2))
    likelihood = task.signature.likelihood
    if isinstance(likelihood, Gaussian) and not isinstance(network(task.example(2)), dict):
        network = ConstantNoise(network, likelihood.shape)
    states = []
    for _ in range(2 if method == "sghmc" else 1):
        with torch.no_grad():
            for module in network.modules():
                if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                    module.running_mean.normal_(0, 0.2)
                    module.running_var.uniform_(0.5, 1.5)
            for parameter in network.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        states.append({key: value.clone() for key, value in network.state_dict().items()})
    return qb.Posterior.from_trained(network, task.signature, members=states)


def feeds_of(posterior: qb.NetworkPosterior, draws: int) -> dict[str, np.ndarray]:
    ids = torch.arange(draws)
    found: dict[str, np.ndarray] = {}
    for site in float_noise_sites(posterior).values():
        if site.kind == "mask":
            keep = keep_masks(ids, SEED, site.site, 0, ROWS, site.shape[0], keep_threshold(site.rate))
            found[site.name] = keep.to(torch.uint8).numpy()
        else:
            found[site.name] = gaussians(SEED, site.site, ids, site.shape).numpy()
    return found


def answers(model: bytes, outputs: tuple[str, ...], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return open_model(model, "onnxruntime", outputs, 1)(feeds)


# masks and Gaussian weights run every layer; members and points add nothing but time.
@pytest.mark.parametrize(
    "method", ["mcd", "bbb", *(pytest.param(name, marks=pytest.mark.full) for name in ("pointwise", "sghmc"))]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_noise_gives_the_same_answers(name: str, method: str) -> None:
    posterior = untrained(name, method)
    x, _ = next(task_of(name).batches("test", ROWS))
    x = x.float()
    for draws in (1, 3):
        model = float_model(posterior, Options(noise="inputs", draws=draws, outputs=OUTPUTS))
        got = answers(model, OUTPUTS, {"x": x.numpy(), **feeds_of(posterior, draws)})
        wanted = posterior.predict(x, draws=draws, seed=SEED)
        size = float(wanted.draws.abs().max())
        for output in OUTPUTS:
            bound = 2e-5 * max(size, 1.0) * (max(size, 1.0) if output == "variance" else 1.0)
            np.testing.assert_allclose(got[output], getattr(wanted, output).numpy(), atol=bound, rtol=2e-4)


@pytest.mark.parametrize("method", ["mcd", "bbb"])
def test_noise_inside_has_the_right_spread(method: str) -> None:
    """Over many draws mean and variance are those of the library's own, within Monte-Carlo error."""
    posterior = untrained("mlp", method)
    x, _ = next(task_of("mlp").batches("test", ROWS))
    draws = 2000
    model = float_model(posterior, Options(draws=draws, outputs=("draws",)))
    got = answers(model, ("draws",), {"x": x.float().numpy()})["draws"][..., 0]
    wanted = posterior.predict(x, draws=draws, seed=SEED).draws.numpy()[..., 0]
    error = wanted.std(0) * np.sqrt(2 / draws)
    assert (np.abs(got.mean(0) - wanted.mean(0)) < 5 * error).all()
    np.testing.assert_allclose(got.std(0), wanted.std(0), rtol=0.15)


def passed(model: bytes, x: torch.Tensor, runs: int = 1) -> list[dict[str, np.ndarray]]:
    """What the heads of a pass give by name, in every run of one session."""
    run = open_model(model, "onnxruntime", (OUTPUT, "mean", "log_variance"))
    return [run({"x": x.float().numpy()}) for _ in range(runs)]


@pytest.mark.parametrize("name", ["mlp", "lenet_relu", "resnet8", "resnet18"])
def test_a_pass_is_one_member_in_network_units(name: str) -> None:
    posterior = untrained(name, "sghmc")
    x, _ = next(task_of(name).batches("test", ROWS))
    z = posterior.signature.transform.apply(x.float())
    for member in (0, 1):
        with torch.no_grad():
            wanted = posterior.networks[member].eval()(z)
        named = wanted if isinstance(wanted, dict) else {OUTPUT: wanted}
        (found,) = passed(float_pass(posterior, member), x)
        assert set(found) == set(named)
        for head, values in found.items():
            np.testing.assert_allclose(values, named[head].numpy(), atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("method", ["mcd", "bbb"])
def test_every_run_of_a_pass_is_a_draw_of_its_own(method: str) -> None:
    posterior = untrained("lenet_relu", method)
    x, _ = next(task_of("lenet_relu").batches("test", ROWS))
    one, other = passed(float_pass(posterior), x, runs=2)
    assert not np.array_equal(one[OUTPUT], other[OUTPUT])


def test_layers_are_the_operators_that_runtimes_fuse() -> None:
    import onnx

    model = onnx.load_from_string(float_pass(untrained("resnet18", "pointwise")))
    kinds = {node.op_type for node in model.graph.node}
    # what an operator stands for is not spelled out.
    assert not kinds & {"Mul", "MatMul", "Transpose"}
    assert {"BatchNormalization", "GlobalAveragePool", "Gemm"} <= kinds


class Odd(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10), nn.Hardshrink())


def test_what_has_no_form_in_float_is_named() -> None:
    task = task_of("lenet_relu")
    network = qb.attach(Odd(), qb.method("pointwise"))
    posterior = qb.Posterior.from_trained(network, task.signature)
    with pytest.raises(BadInput, match="Hardshrink"):
        float_model(posterior)


def test_options_without_meaning_in_float_are_refused() -> None:
    posterior = untrained("mlp", "pointwise")
    with pytest.raises(BadInput, match="codes"):
        float_model(posterior, Options(outputs=("codes",)))
    with pytest.raises(BadInput, match="members"):
        float_model(posterior, Options(members="files"))
