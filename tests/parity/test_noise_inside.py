"""``--noise inside``: a graph that draws its own noise has the reference's distribution, and keeps it.

Limits are five standard errors: of a thousand right runs none fails.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import needs
import qbayes as qb
from deployed.probe import DIALECT_OF
from handmade.programs import Maker, every_op
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.test_exported_graphs import program_of, rows_of
from qbayes.export.onnx import Options, export_onnx, open_exported
from qbayes.export.onnx.noise import ROWS, noise_sites
from qbayes.export.onnx.program_draws import MemberDraws
from qbayes.integer.arithmetic.epsilon_table import epsilon_table
from qbayes.integer.arithmetic.fixed_point import rescale, round_shift
from qbayes.integer.onnx.dialect import dialect_of
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.runtimes import open_model
from qbayes.integer.ops import Mask, Op, Weighted
from qbayes.integer.program import Program
from qbayes.noise import keep_threshold

onnx = needs.package("onnx")
LIMIT = 5.0
ROWS_RUN, RUNS = 40, 150


@pytest.fixture(params=["onnxruntime", "openvino"])
def runtime(request: pytest.FixtureRequest) -> str:
    needs.package(request.param)
    return str(request.param)


class Watched(MemberDraws):
    """Remembers the tensors that hold the noise of each op."""

    def _draw(self, g: Graph, op: Op, *rest: Any) -> dict[str, str]:
        found = super()._draw(g, op, *rest)
        for kind, tensor in found.items():
            SEEN[f"{op.name}:{kind}"] = tensor
        return found


SEEN: dict[str, str] = {}


def drawn_noise(program: Program, runtime: str, x: Tensor, runs: int) -> dict[str, np.ndarray]:
    """What masks and sampled weights a graph drew in each run, ``(runs, …)`` by op and kind."""
    SEEN.clear()
    g = Graph()
    name = g.input("x", np.float32, (ROWS, *program.signature.input_shape))
    dialect = dialect_of(DIALECT_OF[runtime])
    Watched(program, program.members[0], dialect, 1, noise_sites(program), None).values_of_draw(g, name)
    for title, tensor in SEEN.items():
        kind = {"keep": np.bool_, "bias_steps": np.int32}.get(title.partition(":")[2], np.int8)
        shape = _shape(program, title)
        g.output(tensor, f"drawn:{title}", kind, shape)
    run = open_model(g.model("noise").SerializeToString(), runtime, {f"drawn:{title}" for title in SEEN}, 1)
    found = [run({"x": x.numpy()}) for _ in range(runs)]
    return {title: np.stack([one[f"drawn:{title}"] for one in found]) for title in SEEN}


def _shape(program: Program, title: str) -> tuple[str | int, ...]:
    op = next(op for op in program.ops if op.name == title.partition(":")[0])
    if isinstance(op, Mask):
        row = program.values[op.output].shape
        return (ROWS, row[0], *(1,) * (len(row) - 1)) if op.channelwise else (ROWS, *row)
    assert isinstance(op, Weighted)
    return op.weight_shape[:1] if title.endswith("bias_steps") else op.weight_shape


def exact_moments(op: Weighted, constants: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance of every drawn code over the 4096 equally likely entries of the table of ε."""
    table, counts = torch.unique(epsilon_table(op.weights.noise_bits), return_counts=True)
    share = counts.double() / counts.sum()
    along = (-1, *(1,) * len(op.weight_shape))
    multiplier, shift = (constants[f"noise_{name}"].long().view(along) for name in ("multiplier", "shift"))
    low, high = op.weights.limits
    codes = rescale(constants["sigma"].long()[..., None] * table.long(), multiplier, shift).clamp(low, high)
    mean = constants["mean"].long()[..., None]
    if op.weights.grids == 1:
        codes = (mean + codes).clamp(low, high)
    elif op.weights.grids == 0:
        of_mean, of_noise = constants["mix"].long()
        total = (mean - int(constants["mean_zero"])) * of_mean + codes * of_noise
        mixed = int(constants["weight_zero"]) + round_shift(total, constants["mix_shift"].long())
        codes = mixed.clamp(low, high)
    first = codes.double() @ share
    return first, (codes.double() ** 2) @ share - first**2


def test_the_rate_of_every_mask_and_the_variance_of_every_weight(runtime: str) -> None:
    make = every_op(8)
    program = make.program(make.ops[-1].output)
    drawn = drawn_noise(program, runtime, make.inputs(ROWS_RUN), RUNS)
    ops = {op.name: op for op in program.ops}
    kinds: set[str] = set()
    for title, found in drawn.items():
        name, _, kind = title.partition(":")
        kinds.add(kind)
        op = ops[name]
        assert len({one.tobytes() for one in found}) == RUNS, "no two runs draw the same"
        if isinstance(op, Mask):
            rate = keep_threshold(op.rate) / (1 << 16)
            error = np.sqrt(rate * (1 - rate) / found.size)
            assert abs(1 - found.mean() - rate) < LIMIT * error, title
        elif isinstance(op, Weighted) and kind != "bias_steps":
            mean, variance = exact_moments(op, dict(program.members[0].constants[name]))
            codes = torch.from_numpy(found).double()
            z = (codes.mean(0) - mean)[variance > 0] / (variance[variance > 0] / RUNS).sqrt()
            count = z.numel()
            assert abs(float(z.mean())) < LIMIT / count**0.5, title
            assert abs(float((z**2).mean()) - 1) < LIMIT * (2 / count) ** 0.5, title
            ratio = float(codes.var(0).sum() / variance.sum())
            assert abs(ratio - 1) < LIMIT * (2 / (RUNS * count)) ** 0.5, title
    assert kinds == {"keep", "weight", "noise", "bias_steps"}


def test_sites_do_not_draw_the_same_and_a_shared_site_does(runtime: str) -> None:
    """Two masks of one rate differ; a layer that is called twice has one draw."""
    make = Maker((64,), bits=8)
    first, second = make.mask(make.input, 0.5), make.mask(make.input, 0.5)
    program = make.program(make.linear(make.add(first, second), 2, relu=False))
    drawn = drawn_noise(program, runtime, make.inputs(16), 40)
    one, other = (drawn[f"mask{at}:keep"].astype(float).ravel() - 0.5 for at in (0, 1))
    assert abs(float(np.corrcoef(one, other)[0, 1])) < LIMIT / one.size**0.5
    shared = list(program.ops)
    shared[1] = ops_with_site(shared[1], shared[0])
    again = drawn_noise(_with_ops(program, shared), runtime, make.inputs(16), 3)
    assert np.array_equal(again["mask0:keep"], again["mask1:keep"])


def ops_with_site(op: Op, like: Op) -> Op:
    assert isinstance(op, Mask)
    assert isinstance(like, Mask)
    return Mask(op.name, op.inputs, op.output, like.site, op.rate, op.channelwise)


def _with_ops(program: Program, ops: list[Op]) -> Program:
    return Program(
        *(program.values, tuple(ops), program.input, program.outputs, program.members, program.signature)
    )


@pytest.mark.parametrize(
    ("network", "method", "draws"),
    [
        ("lenet_paper", "mcd", 500),
        ("mlp", "bbb", 500),
        pytest.param("lenet_relu", "bbb", 250, marks=pytest.mark.full),
        pytest.param("resnet18", "mcd", 500, marks=pytest.mark.full),
    ],
)
def test_two_thousand_draws_have_the_references_mean_and_variance(
    runtime: str, network: str, method: str, draws: int, tmp_path: Path
) -> None:
    program, x = program_of(network, method, "W8A8"), rows_of(network)[:6]
    options = Options(DIALECT_OF[runtime], "inside", draws, ("draws",))
    (path,) = export_onnx(program, tmp_path / "m.onnx", options)
    model = open_exported(path, runtime, threads=1)
    found = torch.from_numpy(np.concatenate([model(x)["draws"] for _ in range(2000 // draws)])).double()
    assert len({one.numpy().tobytes() for one in found}) > 1000, "draws differ"
    wanted = qb.load(program).predict(x, draws=2000, seed=5).draws.double()
    agree(found, wanted)


def agree(one: Tensor, other: Tensor) -> None:
    """Means and variances of two samples ``(draws, …)`` within their standard errors."""
    moments = [_moments(sample) for sample in (one, other)]
    (mean, variance, error), (mean2, variance2, error2) = moments
    spread = variance + variance2
    some = spread > 1e-10  # what never changes has no error
    z = ((mean - mean2) / (spread / len(one)).sqrt())[some]
    assert float(z.abs().max()) < LIMIT
    of_variance = ((variance - variance2) / (error**2 + error2**2).sqrt())[some]
    assert float(of_variance.abs().max()) < LIMIT


def _moments(sample: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance, and the standard error of the variance, ``√((κ − 1) / D) v``."""
    mean, variance = sample.mean(0), sample.var(0)
    fourth = ((sample - mean) ** 4).mean(0)
    return mean, variance, ((fourth - variance**2).clamp(min=0) / len(sample)).sqrt() + 1e-12


def test_onnx_runtimes_optimiser_keeps_every_generator(tmp_path: Path) -> None:
    """At its default level, which deletes Dropout, and at the highest."""
    onnxruntime = needs.package("onnxruntime")
    make = every_op(8)
    program = make.program(make.ops[-1].output)
    (path,) = export_onnx(program, tmp_path / "m.onnx", Options(draws=1))
    count = generators(path)
    assert count == len(noise_sites(program))
    for level in ("ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(tmp_path / f"{level}.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        assert generators(tmp_path / f"{level}.onnx") == count


def generators(path: Path) -> int:
    return sum(node.op_type == "RandomUniformLike" for node in onnx.load(str(path)).graph.node)
