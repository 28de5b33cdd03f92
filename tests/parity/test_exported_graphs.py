"""Exported graphs in ONNX Runtime and OpenVINO against the reference, op by op and end to end.

At every op, fed the codes that the runtime itself made: at most one code apart, equal on 99.9 % of codes; and
the products that bytes can hold ran on integer kernels.
"""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import needs
import qbayes as qb
from deployed.probe import DIALECT_OF, graph_distances
from deployed.profile import FLOAT, INTEGER, narrow_ops, openvino_kernels, ort_kernels
from handmade.programs import Maker, every_op
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.subjects import NETWORKS, float_posterior, quantised, strays, task_of
from qbayes.export.onnx import Options, export_onnx, noise_feeds, onnx_model, open_exported
from qbayes.integer import ops
from zoo.conftest import learnt_once  # noqa: F401  (processes share what the zoo has learnt)

needs.package("onnx")
RUNTIMES = ("onnxruntime", "openvino")
PRECISIONS = {"W8A8": (8, 8), "W8A7": (8, 7), "W4A4": (4, 4)}
METHODS = ("pointwise", "mcd", "bbb", "sghmc")
SHORT = {
    ("mlp", "pointwise", "W8A8"),
    ("mlp", "bbb", "W4A4"),
    ("lenet_paper", "mcd", "W8A7"),
    ("lenet_relu", "bbb", "W8A8"),
    ("resnet18", "sghmc", "W4A4"),
}
CASES = [
    pytest.param(*case, marks=() if case in SHORT else pytest.mark.full)
    for network in NETWORKS
    for method in METHODS
    for precision in PRECISIONS
    for case in [(network, method, precision)]
]


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    needs.package(request.param)
    return str(request.param)


@functools.cache
def program_of(network: str, method: str, precision: str) -> qb.Program:
    weight, activation = PRECISIONS[precision]
    asked = qb.Precision(weight=weight, activation=activation)
    return qb.lower(quantised(float_posterior(network, method), network, asked))


@functools.cache
def rows_of(network: str, count: int = 32) -> Tensor:
    return next(iter(task_of(network).batches("test", count)))[0].float()


@pytest.mark.parametrize(
    ("shape", "pooling"),
    [
        ((4, 1, 3), {"kernel": 2, "stride": (3, 2), "dilation": (2, 1), "ceil_mode": True}),
        ((6, 22), {"kernel": 3, "stride": 3, "padding": 1, "dilation": 2, "ceil_mode": True}),
        # the second window along the first axis reads nothing but padding
        ((3, 1, 1), {"kernel": 2, "stride": 3, "padding": (0, 1), "dilation": (2, 1), "ceil_mode": True}),
        ((2, 6), {"kernel": 4, "padding": 2, "dilation": 3, "stride": 1}),
    ],
)
def test_dilated_windows_that_reach_far_beyond_an_axis(
    runtime: str, shape: tuple[int, ...], pooling: dict[str, Any]
) -> None:
    """ONNX Runtime moves padding into the pooling, and then refuses padding as wide as the kernel."""
    make = Maker(shape, bits=8)
    end = make.max_pool(make.conv(make.input, shape[0], 1), **pooling)
    size = math.prod(make.values[end].shape)
    flat = make.moved(ops.Reshape, end, shape=(size,))
    program = make.program(make.linear(flat, 3, relu=False))
    rows = {row.op: row for row in graph_distances(program, runtime, make.inputs(7), draws=1, seed=0)}
    assert [row.largest for name, row in rows.items() if name.startswith("max_pool")] == [0]
    assert not strays(list(rows.values()))


@pytest.mark.parametrize(("network", "method", "precision"), CASES)
def test_every_op_of_a_network(runtime: str, network: str, method: str, precision: str) -> None:
    program = program_of(network, method, precision)
    rows = graph_distances(program, runtime, rows_of(network), draws=2, seed=0)
    assert [row.op for row in rows] == [op.name for op in program.ops]
    assert not strays(rows)


@pytest.mark.parametrize("bits", [8, 4])
def test_every_op_there_is(runtime: str, bits: int) -> None:
    make = every_op(bits, members=2)
    program = make.program(make.ops[-1].output)
    rows = graph_distances(program, runtime, make.inputs(24), draws=2, seed=1)
    assert not strays(rows)
    if runtime == "onnxruntime":  # but for the rescaling of QLinearConv, its arithmetic is exact
        assert all(row.largest == 0 for row in rows if row.kind != "conv")


@pytest.mark.parametrize(
    ("network", "method"),
    [
        ("lenet_relu", "bbb"),
        pytest.param("resnet18", "mcd", marks=pytest.mark.full),
        pytest.param("resnet18", "bbb", marks=pytest.mark.full),
        pytest.param("mobilenet_v2", "mcd", marks=pytest.mark.full),
        pytest.param("wavenet", "pointwise", marks=pytest.mark.full),
    ],
)
def test_products_run_on_integer_kernels(runtime: str, network: str, method: str, tmp_path: Path) -> None:
    program, x = program_of(network, method, "W8A8"), rows_of(network)
    # as it is deployed: values that are handed out keep a compiler from joining nodes.
    model = onnx_model(program, Options(DIALECT_OF[runtime], "inputs", 1, ("codes",)))
    wanted = narrow_ops(program)
    assert len(wanted) >= 3
    if runtime == "onnxruntime":
        feeds = {"x": x.numpy(), **noise_feeds(program, len(x), [0])}
        ran = ort_kernels(model, feeds, tmp_path)
        for name in wanted:
            kinds = {kind for node, kind in ran if f"{name}/" in node}
            assert kinds & INTEGER, name
            assert not kinds & FLOAT, name
    else:
        ran = openvino_kernels(model)
        for name in wanted:
            kernels = [kernel for nodes, kernel in ran if f"{name}/" in nodes]
            assert kernels, name
            assert all(kernel.lower().endswith("i8") for kernel in kernels), (name, kernels)


@pytest.mark.parametrize(
    ("network", "method", "precision"),
    [("mlp", "bbb", "W4A4"), ("lenet_paper", "mcd", "W8A7"), ("resnet18", "sghmc", "W4A4")],
)
def test_answers_are_those_of_the_reference(
    runtime: str, network: str, method: str, precision: str, tmp_path: Path
) -> None:
    """With the same noise as inputs: the same statistics, from one call."""
    program, x = program_of(network, method, precision), rows_of(network)
    names = ("mean", "variance", "entropy", "mutual_information", "draws")
    options = Options(DIALECT_OF[runtime], "inputs", 5, names)
    (path,) = export_onnx(program, tmp_path / "m.onnx", options)
    found = open_exported(path, runtime, threads=1)(x, noise_feeds(program, len(x), range(5), seed=3))
    wanted = qb.load(program, "reference").predict(x, draws=5, seed=3)
    for name in names:
        one, other = found[name], getattr(wanted, name).numpy()
        size = max(1.0, float(np.abs(other).max()))
        if runtime == "onnxruntime":
            np.testing.assert_allclose(one, other, atol=2e-6 * size, rtol=1e-5)
        else:  # a code may differ by one here and there
            assert np.mean(np.abs(one - other) > 0.01 * size) <= 0.01, name


def test_onnx_runtime_can_turn_the_weights_to_bytes_of_no_sign() -> None:
    """The way out on processors whose products of a byte and an int8 saturate gives the same codes."""
    onnxruntime = needs.package("onnxruntime")
    program, x = program_of("lenet_paper", "mcd", "W8A7"), rows_of("lenet_paper")
    model = onnx_model(program, Options("qoperator", "inputs", 2, ("codes",)))
    feeds = {"x": x.numpy(), **noise_feeds(program, len(x), range(2))}
    found: list[np.ndarray] = []
    for entry in ("0", "1"):
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.x64quantprecision", entry)
        found += onnxruntime.InferenceSession(model, options).run(None, feeds)
    assert np.array_equal(*found)


def test_onnx_runtime_gives_the_references_codes_end_to_end(tmp_path: Path) -> None:
    needs.package("onnxruntime")
    for case in (("mlp", "pointwise", "W8A8"), ("mlp", "bbb", "W4A4")):
        program, x = program_of(*case), rows_of(case[0])
        options = Options("qoperator", "inputs", 3, ("codes",))
        (path,) = export_onnx(program, tmp_path / "m.onnx", options, force=True)
        found = open_exported(path, threads=1)(x, noise_feeds(program, len(x), range(3), seed=1))
        heads = qb.load(program, "reference").outputs(x, 3, 1)
        assert isinstance(heads, dict)
        for head, value in program.outputs.items():
            real = (torch.from_numpy(found[f"codes.{head}"]).float() - program.members[0].zeros[value]).mul(
                program.members[0].scales[value]
            )
            assert torch.equal(real, heads[head])
