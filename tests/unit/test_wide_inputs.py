"""Inputs wider than a byte: where they are, that all forms of a network agree, and what they are for."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from fine_tuned import tuning
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.integer import ops
from qbayes.integer.backends.onednn.trial import why_missing
from qbayes.integer.compare import record_ops
from qbayes.integer.structure.cost import cost
from qbayes.quant.layers.base import Coded
from qbayes.quant.layers.elementwise import QuantInput
from qbayes.quant.layers.weighted import in_steps
from qbayes.quant.network import QuantNetwork

ROWS, DRAWS, SEED = 96, 4, 7
BACKENDS = ("reference", "onednn") if why_missing() is None else ("reference",)
METHODS: dict[str, dict[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.2},
    "bbb": {"prior_sigma": 0.3, "kl_weight": 0.1},
    "sghmc": {"members": 2, "every": 1},
}


class Reader(nn.Module):
    """Layers behind an input of any shape, called by any function of the module and the input."""

    def __init__(self, run: Callable[..., Tensor], *features: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(count, 6) for count in features)
        self.conv, self.pool, self.drop = nn.Conv2d(1, 2, 2), nn.MaxPool2d(2), nn.Dropout(0.1)
        self.norm = nn.BatchNorm1d(features[0])
        self.head = nn.Linear(6, 2)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.run(self, x)))


@functools.cache
def task(*shape: int) -> qb.Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, *shape, generator=generator)
    flat = x.flatten(1)
    y = torch.stack([flat[:, 0] * flat[:, 1], flat.sum(1)], 1)
    return qb.Task.from_arrays(x, y, kind="regression", name="rows")


def fitted(network: nn.Module, on: qb.Task, method: str = "pointwise", **options: Any) -> qb.NetworkPosterior:
    budget = qb.Budget(epochs=2, batch_size=32, learning_rate=1e-3)
    made = qb.method(method, **options)
    return qb.fit(network, on, made, budget, seed=0, device="cpu", progress=False)


@functools.cache
def float_posterior(method: str) -> qb.NetworkPosterior:
    return fitted(qb.network("mlp", task(5), hidden=(16, 16)), task(5), method, **METHODS[method])


def quantised(posterior: qb.NetworkPosterior, on: qb.Task, epochs: int = 0, **options: Any) -> Any:
    budget = tuning(epochs=epochs, batch_size=32, learning_rate=1e-3, clip=1.0)
    precision = qb.Precision(**options)
    return qb.quantize(posterior, on, precision, budget, seed=0, device="cpu", progress=False)


def rows(on: qb.Task) -> Tensor:
    return next(on.batches("train", ROWS))[0]


def answers(posterior: qb.Posterior, x: Tensor) -> tuple[Tensor, Tensor]:
    found = posterior.predict(x, draws=DRAWS, seed=SEED)
    return found.mean, found.variance


def check_same(posterior: qb.NetworkPosterior, on: qb.Task) -> qb.Program:
    """The fake-quantised network and the program on each backend answer with the same bits."""
    program, x = qb.lower(posterior), rows(on)
    for backend in BACKENDS:
        for wanted, got in zip(answers(posterior, x), answers(qb.load(program, backend), x), strict=True):
            assert torch.equal(wanted, got), backend
    return program


def input_bits(program: qb.Program) -> int:
    return program.values[program.input].bits


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("method", METHODS)
def test_all_forms_of_a_regression_agree_bit_by_bit(method: str, bits: int) -> None:
    on = task(5)
    for wide, output, epochs in ((16, 16, 1), (9, 8, 0), (13, 16, 0)):
        options = {"weight": bits, "activation": bits, "input": wide, "output": output}
        program = check_same(quantised(float_posterior(method), on, epochs, **options), on)
        assert (input_bits(program), program.values["hidden.0"].bits) == (wide, bits)
        codes = record_ops(program, "reference", rows(on), DRAWS, SEED)["hidden.0"][0].inputs[0]
        assert codes.dtype == torch.int32
        # no row of calibration is clipped: the range reaches an eighth further at each end.
        assert 0 < int(codes.min()) < int(codes.max()) < (1 << wide) - 1
        assert int(codes.max()) > 255


def test_every_form_of_gaussian_weights_reads_wide_codes() -> None:
    on = task(5)
    paper: dict[str, Any] = {
        "gaussian": "single", "granularity": "tensor", "weight_scheme": "affine", "weight_range": "ema",
    }  # fmt: skip
    seen: set[int] = set()
    for options in (paper, {"weight": 8, "activation": 8}, {"weight": 2, "activation": 8}):
        for posterior in (float_posterior("bbb"), narrow_posterior()):
            program = check_same(quantised(posterior, on, input=16, **options), on)
            assert input_bits(program) == 16
            seen |= {op.weights.grids for op in program.ops if isinstance(op, ops.Weighted)}
    assert seen == {0, 1, 2}


@functools.cache
def narrow_posterior() -> qb.NetworkPosterior:
    """Gaussian weights with deviations that one grid of 8 bits keeps."""
    return fitted(qb.network("mlp", task(5), hidden=(8,)), task(5), "bbb", prior_sigma=0.3, sigma_linear=0.1)


def test_prepare_and_quantize_settle_the_input_by_the_likelihood() -> None:
    assert input_bits(qb.lower(quantised(float_posterior("pointwise"), task(5)))) == 16
    for precision, wanted in ((qb.Precision(4, 4), 16), (qb.Precision(4, 4, input=8), 8)):
        assert input_layer(qb.prepare(float_posterior("pointwise"), precision)).out.bits == wanted
    paper = input_layer(qb.prepare(float_posterior("pointwise"), qb.Precision.preset("paper")))
    assert paper.out.bits == 7


def input_layer(module: nn.Module) -> QuantInput:
    assert isinstance(module, QuantNetwork)
    layer = module.layer("input")
    assert isinstance(layer, QuantInput)
    return layer


def test_what_is_said_of_the_input_by_name_comes_first() -> None:
    made = quantised(float_posterior("pointwise"), task(5), input=16, overrides={"input": {"activation": 6}})
    assert input_bits(qb.lower(made)) == 6


# shape of a row, how the layers read it, their inputs, and the bits that the input then has.
PLACES: dict[str, tuple[tuple[int, ...], Callable[..., Tensor], tuple[int, ...], int]] = {
    "a linear layer": ((5,), lambda net, x: net.layers[0](x), (5,), 16),
    "two layers": ((5,), lambda net, x: net.layers[0](x) + net.layers[1](x), (5, 5), 16),
    "an image, flattened": ((1, 4, 4), lambda net, x: net.layers[0](x.flatten(1)), (16,), 16),
    "a permutation": ((2, 3), lambda net, x: net.layers[0](x.transpose(1, 2).flatten(1)), (6,), 16),
    "slices": ((5,), lambda net, x: net.layers[0](x[:, :3]) + net.layers[1](x[:, 1:5:2]), (3, 2), 16),
    "a dropout of its own": ((5,), lambda net, x: net.layers[0](net.drop(x)), (5,), 16),
    "a convolution": ((1, 4, 4), lambda net, x: net.layers[0](torch.relu(net.conv(x)).flatten(1)), (18,), 16),
    "an activation": ((5,), lambda net, x: net.layers[0](torch.tanh(x)), (5,), 8),
    "a ReLU": ((5,), lambda net, x: net.layers[0](torch.relu(x)), (5,), 8),
    "a sum with a layer": ((6,), lambda net, x: net.layers[0](x) + x, (6,), 8),
    "a product": ((6,), lambda net, x: net.layers[0](x) * x, (6,), 8),
    "a pool": ((1, 4, 4), lambda net, x: net.layers[0](net.pool(x).flatten(1)), (4,), 8),
    "a normalisation": ((5,), lambda net, x: net.layers[0](torch.tanh(net.norm(x))), (5,), 8),
    "padding": ((5,), lambda net, x: net.layers[0](nn.functional.pad(x, (1, 1), value=0.5)), (7,), 8),
    "a layer, and a sum of the slice": (
        (6,), lambda net, x: net.layers[0](x[:, :3]) + torch.cat([x[:, :3], x[:, 3:]], 1), (3,), 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_only_what_weighted_layers_alone_read_is_wide(place: str) -> None:
    shape, run, features, wanted = PLACES[place]
    on = task(*shape)
    posterior = fitted(Reader(run, *features), on)
    program = check_same(quantised(posterior, on, input=16), on)
    assert input_bits(program) == wanted
    if "onednn" in BACKENDS:
        report = {row.op: row for row in qb.load(program, "onednn").backend.report()}
        why = {row.why for row in report.values() if "16 bits" in row.why and "read" in row.why}
        assert why == ({"int8 kernels read bytes, not codes of 16 bits"} if wanted == 16 else set())
    # fewer than 8 bits hold for any input, as ever.
    assert input_bits(qb.lower(quantised(posterior, on, input=5))) == 5


def test_a_mask_on_the_input_keeps_it_to_bytes() -> None:
    on = task(5)
    network = qb.network("mlp", on, hidden=(8,))
    posterior = fitted(network, on, "mcd", rates={"hidden.0": 0.2})
    for mask in ("exact", "product"):
        program = check_same(quantised(posterior, on, mask=mask), on)
        assert any(isinstance(op, ops.Mask) and op.inputs == (program.input,) for op in program.ops)
        assert input_bits(program) == 8


class Echo(nn.Module):
    """Answers with a layer's numbers, and with some of its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": self.mean(x), "log_variance": x[:, :2]}


def test_an_input_that_is_an_answer_is_a_byte() -> None:
    program = check_same(quantised(fitted(Echo(), task(5)), task(5)), task(5))
    assert input_bits(program) == 8
    assert {head: program.values[name].bits for head, name in program.outputs.items()} == {
        "mean": 16,
        "log_variance": 8,
    }


def test_one_layer_may_have_both_ends() -> None:
    on = task(5)
    for method in ("pointwise", "bbb"):
        program = check_same(quantised(fitted(qb.network("mlp", on, hidden=()), on, method), on), on)
        assert {value.bits for value in program.values.values()} == {16}


# features, options, bits of the input asked for and got: n · (2^bits − 1) · max|w| must stay below 2^30.
FITS: list[tuple[int, dict[str, Any], int, int]] = [
    (129, {}, 16, 16),
    (130, {}, 16, 8),
    (130, {}, 15, 15),
    (130, {"weight": 7}, 16, 16),
    (64, {"weight_scheme": "affine"}, 16, 16),
    (65, {"weight_scheme": "affine"}, 16, 8),
    (130, {"overrides": {"layers.0": {"weight": 4}}}, 16, 16),
]


@pytest.mark.parametrize(("features", "options", "asked", "got"), FITS)
def test_sums_that_could_leave_32_bits_keep_the_input_to_bytes(
    features: int, options: dict[str, Any], asked: int, got: int
) -> None:
    on = task(features)
    posterior = fitted(Reader(lambda net, x: net.layers[0](x), features), on)
    assert input_bits(check_same(quantised(posterior, on, input=asked, **options), on)) == got


def test_sums_of_wide_codes_are_rescaled_in_integers() -> None:
    """62.5 + 2^−49 rounds to 63, but float64 takes it for a tie, which rounds to 62."""
    total, multiplier, shift = (torch.tensor([n]) for n in (32367601, 1087024401, 49))
    grid = torch.tensor(1.0), torch.tensor(0.0)
    narrow, wide = (Coded(total, *grid, bits) for bits in (8, 16))
    sums = [(total.double()[None], multiplier)]
    assert float(in_steps(narrow, sums, shift, -1).round()) == 62
    assert float(in_steps(wide, sums, shift, -1)) == 63
    # two sums share the shift.
    two = [(total.double()[None] - 1, multiplier), (torch.ones(1, 1).double(), multiplier)]
    assert float(in_steps(wide, two, shift, -1)) == 63


@pytest.mark.parametrize(("asked", "wide"), [("lsq", "minmax"), ("mse", "mse"), ("ema", "ema")])
def test_a_wide_range_is_not_learned_but_seen(asked: str, wide: str) -> None:
    out = input_layer(
        qb.prepare(float_posterior("pointwise"), qb.Precision(4, 4, activation_range=asked))
    ).out
    assert (out.rule.name, out.learned) == (wide, False)


def test_rows_somewhat_beyond_the_calibrated_ones_are_not_clipped() -> None:
    on = task(5)
    made = quantised(float_posterior("pointwise"), on)
    layer, z = input_layer(made.networks[0]), made.signature.transform.apply(rows(on))
    width = float(z.max() - z.min())
    beyond = torch.stack([z.max() + width / 9, z.min() - width / 9])
    assert (layer.compute(beyond).real - beyond).abs().max() < 1e-3
    assert int(layer.compute(z.max() + width).codes) == 65535


@pytest.mark.parametrize("method", ["pointwise", "bbb"])
def test_files_and_folders_keep_wide_inputs(method: str, tmp_path: Path) -> None:
    on = task(5)
    made = quantised(float_posterior(method), on, weight=4, activation=4)
    program = qb.lower(made)
    again = qb.Program.open(program.save(tmp_path / "program.qbayes"))
    assert again.equals(program)
    assert input_bits(again) == 16
    folder = qb.save_posterior(made, tmp_path / "posterior") or tmp_path / "posterior"
    loaded = qb.load_posterior(folder)
    for wanted, got in zip(answers(made, rows(on)), answers(loaded, rows(on)), strict=True):
        assert torch.equal(wanted, got)
    assert qb.lower(loaded).equals(program)


@torch.no_grad()
def rounding(posterior: qb.NetworkPosterior, on: qb.Task) -> float:
    """The root mean square of what rounding the input adds to it, between the rows that set the range."""
    generator = torch.Generator().manual_seed(0)
    one, other = (rows(on)[torch.randint(ROWS, (20_000,), generator=generator)] for _ in range(2))
    z = posterior.signature.transform.apply(0.7 * one + 0.3 * other)
    error = input_layer(posterior.networks[0]).compute(z).real.double() - z.double()
    return float(error.square().mean().sqrt())


def test_sixteen_bits_round_two_hundred_times_as_finely_as_eight() -> None:
    """2^8 times, less a fifth: the room beyond what was seen, which a wide range has."""
    eight, sixteen = (
        rounding(
            quantised(float_posterior("pointwise"), task(5), input=bits, activation_range="minmax"), task(5)
        )
        for bits in (8, 16)
    )
    assert eight / 257 < sixteen < eight / 200


def test_a_wide_input_costs_its_bits_in_the_first_layer_alone() -> None:
    wide, narrow = (
        qb.lower(quantised(float_posterior("pointwise"), task(5), input=bits)) for bits in (16, 8)
    )
    first, *others = zip(cost(wide).ops, cost(narrow).ops, strict=True)
    assert first[0].bit_operations == 2 * first[1].bit_operations > 0
    assert all(one == other for one, other in others)
    assert "5 at 16 bits → mean, log_variance" in str(wide)


def test_bytes_may_have_wide_codes_too() -> None:
    """Pixels of a classifier: 8 bits unless more are said, and then without a table of bytes."""
    x = torch.randint(0, 256, (64, 1, 3, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    on = qb.Task.from_arrays(x, (x[:, 0, 0, 0] > 100).long(), kind="classification", name="bytes")
    posterior = fitted(qb.network("mlp", on, hidden=(8,)), on, "mcd")
    for said, bits in (({}, 8), ({"input": 12}, 12)):
        made = quantised(posterior, on, **said)
        program = qb.lower(made)
        assert input_bits(program) == bits
        wanted = made.predict(x, draws=3, seed=1).mean
        found = [qb.load(program, name).predict(x, draws=3, seed=1).mean for name in BACKENDS]
        assert all(torch.equal(one, wanted) for one in found)
