"""Outputs wider than a byte: where they are, that all forms of a network agree, and what they are for."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import needs
import qbayes as qb
from fine_tuned import tuning
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.integer.backends.onednn.trial import why_missing
from qbayes.integer.c_library import kernels
from qbayes.integer.compare import record_ops
from qbayes.quant.layers.base import Coded, QuantLayer
from qbayes.quant.layers.weighted import QuantWeighted
from qbayes.quant.network import QuantNetwork, Step

ROWS, DRAWS, SEED = 96, 4, 7
BACKENDS = ("reference", "onednn") if why_missing() is None else ("reference",)
METHODS: dict[str, dict[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.2},
    "bbb": {"prior_sigma": 0.3, "kl_weight": 0.1},
    "sghmc": {"members": 2, "every": 1},
}


class Heads(nn.Module):
    """Two heads of features, by any function of the module and the features."""

    def __init__(self, run: Callable[..., dict[str, Tensor]]) -> None:
        super().__init__()
        self.hidden, self.act = nn.Linear(5, 12), nn.ReLU()
        self.mean, self.noise, self.both = nn.Linear(12, 2), nn.Linear(12, 2), nn.Linear(12, 4)
        self.after = nn.Linear(2, 2)
        self.run = run

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.run(self, self.act(self.hidden(x)))


class ConvHead(nn.Module):
    """Targets that are images; one noise for each pixel is learned outside."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.head = nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.conv(x)))


@functools.cache
def task(kind: str = "rows") -> qb.Task:
    generator = torch.Generator().manual_seed(0)
    if kind == "images":
        x = torch.randn(ROWS, 1, 6, 6, generator=generator)
        y = torch.stack([x[:, 0, 1:-1, 1:-1], x[:, 0, :-2, 2:] ** 2], 1)
    else:
        x = torch.randn(ROWS, 5, generator=generator)
        y = torch.stack([x[:, 0] * x[:, 1], x.sum(1)], 1)
    return qb.Task.from_arrays(x, y, kind="regression", name=kind)


@functools.cache
def float_posterior(method: str) -> qb.NetworkPosterior:
    made = qb.method(method, **METHODS[method])
    budget = qb.Budget(epochs=2, batch_size=32, learning_rate=1e-3)
    network = qb.network("mlp", task(), hidden=(16, 16))
    return qb.fit(network, task(), made, budget, seed=0, device="cpu", progress=False)


def untrained(network: nn.Module, on: str = "rows") -> qb.NetworkPosterior:
    """A posterior of one point, as initialised."""
    budget = qb.Budget(epochs=1, batch_size=32, learning_rate=1e-6)
    return qb.fit(network, task(on), qb.method("pointwise"), budget, seed=0, device="cpu", progress=False)


def quantised(posterior: qb.NetworkPosterior, on: str = "rows", **options: Any) -> qb.NetworkPosterior:
    epochs = options.pop("epochs", 0)
    budget = tuning(epochs=epochs, batch_size=32, learning_rate=1e-3, clip=1.0)
    precision = qb.Precision(**{"input": 8, **options})  # wide ones have tests of their own
    return qb.quantize(posterior, task(on), precision, budget, seed=0, device="cpu", progress=False)


def rows(on: str = "rows") -> Tensor:
    return next(task(on).batches("train", ROWS))[0]


def answers(posterior: qb.Posterior, on: str = "rows") -> tuple[Tensor, Tensor]:
    found = posterior.predict(rows(on), draws=DRAWS, seed=SEED)
    return found.mean, found.variance


def check_same(posterior: qb.NetworkPosterior, on: str = "rows") -> qb.Program:
    """The fake-quantised network and the program on each backend answer with the same bits."""
    program = qb.lower(posterior)
    for backend in BACKENDS:
        for wanted, got in zip(answers(posterior, on), answers(qb.load(program, backend), on), strict=True):
            assert torch.equal(wanted, got), backend
    return program


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("method", METHODS)
def test_all_forms_of_a_regression_agree_bit_by_bit(method: str, bits: int) -> None:
    for output, epochs in ((16, 1), (9, 0), (13, 0)):
        made = quantised(float_posterior(method), weight=bits, activation=bits, output=output, epochs=epochs)
        program = check_same(made)
        widths = {name: program.values[name].bits for name in program.value_order()}
        inner = {"input": 8} | {name: bits for name in widths if name.startswith("hidden")}
        assert widths == widths | inner | {"mean": output, "log_variance": output}
        codes = record_ops(program, "reference", rows(), DRAWS, SEED)["mean"][0].output
        assert codes.dtype == torch.int32
        assert 255 < int(codes.max()) < 1 << output


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_the_head_may_be_a_convolution(granularity: str) -> None:
    posterior = untrained(ConvHead(), "images")
    program = check_same(quantised(posterior, "images", output=16, granularity=granularity), "images")
    assert {name: value.bits for name, value in program.values.items()} == {"input": 8, "conv": 8, "head": 16}
    if "onednn" in BACKENDS:
        report = {row.op: row for row in qb.load(program, "onednn").backend.report()}
        assert report["head"].how == "exact"
        assert report["head"].why == "int8 kernels round to bytes, not to 16 bits"
        assert report["conv"].how != "exact"


@needs.unless(kernels(), needs.COMPILER)
def test_a_small_matrix_gives_wide_codes_by_the_fast_kernel() -> None:
    program = qb.lower(quantised(float_posterior("bbb"), output=16))
    report = {row.op: row for row in qb.load(program, "onednn").backend.report()}
    assert (report["mean"].how, report["mean"].why) == ("int8", "")


PLACES: dict[str, tuple[Callable[..., dict[str, Tensor]], dict[str, int]]] = {
    "two layers": (
        lambda net, z: {"mean": net.mean(z), "log_variance": net.noise(z)},
        {"mean": 16, "log_variance": 16},
    ),
    "one layer, twice": (
        lambda net, z: dict.fromkeys(("mean", "log_variance"), net.mean(z)),
        {"mean": 16, "log_variance": 16},
    ),
    "a head that another layer reads": (
        lambda net, z: {"mean": (mean := net.mean(z)), "log_variance": net.after(mean)},
        {"mean": 8, "log_variance": 16},
    ),
    "a head that an activation reads": (
        lambda net, z: {"mean": (mean := net.mean(z)), "log_variance": torch.tanh(mean)},
        {"mean": 8, "log_variance": 8},
    ),
    "slices": (
        lambda net, z: {"mean": (both := net.both(z))[:, :2], "log_variance": both[:, 2:]},
        {"mean": 8, "log_variance": 8},
    ),
    "a sum": (
        lambda net, z: {"mean": net.mean(z) + net.noise(z), "log_variance": net.both(z)[:, :2]},
        {"mean": 8, "log_variance": 8},
    ),
    "a layer with a folded activation": (
        lambda net, z: {"mean": torch.relu(net.mean(z)), "log_variance": net.noise(z).clamp(-1, 0.5)},
        {"mean": 16, "log_variance": 16},
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_only_what_a_weighted_layer_makes_and_nothing_reads_is_wide(place: str) -> None:
    run, wanted = PLACES[place]
    program = check_same(quantised(untrained(Heads(run)), output=16))
    assert {head: program.values[name].bits for head, name in program.outputs.items()} == wanted
    # fewer than 8 bits hold for every head, as ever.
    few = qb.lower(quantised(untrained(Heads(run)), output=5))
    assert {few.values[name].bits for name in few.outputs.values()} == {5}


def test_what_is_said_of_a_head_by_name_comes_first() -> None:
    program = qb.lower(
        quantised(float_posterior("pointwise"), output=16, overrides={"mean": {"activation": 6}})
    )
    assert [program.values[name].bits for name in ("mean", "log_variance")] == [6, 16]


def test_classifiers_may_have_wide_scores_too() -> None:
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(1))
    own = qb.Task.from_arrays(x, (x[:, 0] > 0).long(), kind="classification", name="signs")
    network = qb.network("mlp", own, hidden=(8,))
    budget = qb.Budget(epochs=1, batch_size=32, learning_rate=1e-3)
    posterior = qb.fit(network, own, qb.method("mcd"), budget, seed=0, device="cpu", progress=False)
    made = qb.quantize(
        posterior, own, qb.Precision(output=12), qb.FineTuning(epochs=0), device="cpu", progress=False
    )
    program = qb.lower(made)
    assert program.values["logits"].bits == 12
    wanted = made.predict(x, draws=3, seed=1).mean
    assert all(
        torch.equal(qb.load(program, name).predict(x, draws=3, seed=1).mean, wanted) for name in BACKENDS
    )


def test_prepare_settles_the_outputs_by_the_likelihood() -> None:
    module = qb.prepare(float_posterior("pointwise"), qb.Precision(4, 4))
    assert isinstance(module, QuantNetwork)
    assert {head_layer(module, name).out.bits for name in ("mean", "log_variance")} == {16}
    eight = qb.prepare(float_posterior("pointwise"), qb.Precision(4, 4, output=8))
    assert isinstance(eight, QuantNetwork)
    assert head_layer(eight, "mean").out.bits == 8


def head_layer(module: QuantNetwork, name: str) -> QuantWeighted:
    layer = module.layer(name)
    assert isinstance(layer, QuantWeighted)
    return layer


@pytest.mark.parametrize(("asked", "wide"), [("lsq", "minmax"), ("mse", "mse"), ("ema", "ema")])
def test_a_wide_range_is_not_learned_but_seen(asked: str, wide: str) -> None:
    precision = qb.Precision(4, 4, output=16, activation_range=asked)
    module = qb.prepare(float_posterior("pointwise"), precision)
    assert isinstance(module, QuantNetwork)
    head, inner = head_layer(module, "mean").out, head_layer(module, "hidden.0").out
    assert (head.rule.name, inner.rule.name) == (wide, asked)
    assert not head.learned


def test_training_widens_the_range_of_a_wide_head() -> None:
    """Nothing is clipped: what training answers beyond the calibrated range gets codes too."""
    module = qb.prepare(float_posterior("pointwise"), qb.Precision(4, 4, output=16))
    assert isinstance(module, QuantNetwork)
    x = task().signature.transform.apply(rows())
    module.train()
    module(x)
    head = head_layer(module, "mean")
    assert isinstance(head.weights.bias, Tensor)
    head.weights.bias.data.add_(5.0)
    high = float(module(x)["mean"].detach().max())
    assert high > 5 - 1
    assert float(head.out.scale) * 65535 >= high * (1 - 1e-6)


@pytest.mark.parametrize("method", ["pointwise", "bbb"])
def test_files_and_folders_keep_wide_outputs(method: str, tmp_path: Path) -> None:
    made = quantised(float_posterior(method), weight=4, activation=4, output=16)
    program = qb.lower(made)
    again = qb.Program.open(program.save(tmp_path / "program.qbayes"))
    assert again.equals(program)
    assert again.values["mean"].bits == 16
    folder = qb.save_posterior(made, tmp_path / "posterior") or tmp_path / "posterior"
    loaded = qb.load_posterior(folder)
    for wanted, got in zip(answers(made), answers(loaded), strict=True):
        assert torch.equal(wanted, got)
    assert qb.lower(loaded).equals(program)


def test_the_table_of_a_program_shows_the_bits_and_the_same_work() -> None:
    wide, narrow = (
        str(qb.lower(quantised(float_posterior("pointwise"), output=output))).splitlines()
        for output in (16, 8)
    )
    (line,) = [one.split() for one in wide if one.startswith("mean")]
    (other,) = [one.split() for one in narrow if one.startswith("mean")]
    assert line[:4] == ["mean", "linear", "2", "16"]
    # two clamps of a byte more each; MACs, bit-operations and sums are the same.
    assert int(line[5]) == int(other[5]) + 2
    assert line[6:] == other[6:]


@torch.no_grad()
def rounding(posterior: qb.NetworkPosterior) -> float:
    """The root mean square of what the head's own rounding adds to its unrounded sums."""
    network = posterior.networks[0]
    assert isinstance(network, QuantNetwork)
    errors: list[Tensor] = []

    def watch(step: Step, layer: QuantLayer, inputs: Any, output: Coded) -> None:
        if step.name == "mean":
            assert isinstance(layer, QuantWeighted)
            exact = layer.weights.steps(inputs[0], layer.constants(inputs[0])) * layer.out.grid()[0].double()
            errors.append(output.real.double() - exact)

    # between the rows that set the ranges: what would be clipped is another error.
    generator = torch.Generator().manual_seed(0)
    one, other = (rows()[torch.randint(ROWS, (20_000,), generator=generator)] for _ in range(2))
    network.run(posterior.signature.transform.apply(0.7 * one + 0.3 * other), watch)
    return float(torch.cat(errors).square().mean().sqrt())


@pytest.mark.parametrize("bits", [8, 4])
def test_sixteen_bits_round_two_hundred_times_as_finely_as_eight(bits: int) -> None:
    """2^8 times, less a fifth: the room beyond what was seen, which a wide range has."""
    made = [
        quantised(
            float_posterior("pointwise"),
            weight=bits,
            activation=bits,
            output=output,
            activation_range="minmax",
        )
        for output in (8, 16)
    ]
    eight, sixteen = (rounding(one) for one in made)
    assert eight / 257 < sixteen < eight / 200


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_inside_clips_no_wide_answer(bits: int) -> None:
    """Ranges are those of a network whose activations are not rounded; the answers of one that rounds fit."""
    program = qb.lower(quantised(float_posterior("pointwise"), weight=bits, activation=bits, output=16))
    for name in program.outputs.values():
        codes = record_ops(program, "reference", rows(), DRAWS, SEED)[name][0].output
        assert 0 < int(codes.min()) < int(codes.max()) < 65535
