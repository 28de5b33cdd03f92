"""``onnxruntime`` and ``openvino`` as backends against ``reference``: they pass what ``onednn`` passes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import needs
from handmade.programs import Maker, every_op
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.test_onednn import BETWEEN, bright, saturating_program
from qbayes.errors import BadInput
from qbayes.integer import ops
from qbayes.integer.backends.base import BACKENDS, choose
from qbayes.integer.backends.onnx_ops import trial
from qbayes.integer.compare import OpDistance, compare_ops
from qbayes.integer.posterior import load

needs.package("onnx")
CPU = torch.device("cpu")
RUNTIMES = [pytest.param(name, marks=needs.installed(name)) for name in ("onnxruntime", "openvino")]


def too_far(name: str, rows: list[OpDistance]) -> list[OpDistance]:
    limit = BACKENDS[name].tolerance
    return [row for row in rows if row.largest > limit.codes or row.share_equal < limit.share_equal]


def flattened(make: Maker, found: list[str]) -> list[str]:
    shapes = {name: make.values[name].shape for name in found}
    sizes = {name: int(torch.tensor(shape).prod()) for name, shape in shapes.items()}
    return [make.moved(ops.Reshape, name, shape=(sizes[name],)) for name in found]


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("options", [{}, {"grids": 1}, {"grids": 2}, {"grids": 0}, {"affine": True}])
def test_codes_that_saturate_a_naive_kernel_come_out_right(name: str, options: dict[str, object]) -> None:
    _, program = saturating_program(**options)
    assert not too_far(name, compare_ops(program, "reference", name, bright(8), draws=2, seed=0))


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize(("bits", "relu"), [(8, True), (7, False), (4, True), (2, False)])
def test_convolutions_of_all_forms(name: str, bits: int, relu: bool) -> None:
    make = Maker((6, 9, 7), bits=bits)
    forms: list[dict[str, int]] = [
        {"kernel": 3, "padding": 1},
        {"kernel": 3, "stride": 2, "padding": 2},
        {"kernel": 3, "dilation": 2, "padding": 1},
        {"kernel": 1, "stride": 2},
        {"kernel": 5, "padding": 2, "groups": 3},
        {"kernel": 3, "padding": 1, "groups": 6},
    ]
    found = [make.conv(make.input, 12, relu=relu, **form) for form in forms]  # pyright: ignore[reportArgumentType]
    program = make.program(make.linear(make.concat(*flattened(make, found)), 5, relu=False))
    assert not too_far(name, compare_ops(program, "reference", name, make.inputs(16)))


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize(
    ("shape", "geometry"),
    [
        ((33, 7, 1), {"kernel": (3, 1), "stride": (3, 3), "padding": (2, 5), "dilation": (2, 3)}),
        ((1, 1, 1), {"kernel": (3, 1), "stride": (2, 2), "padding": (5, 3), "dilation": (1, 3)}),
    ],
)
def test_windows_that_lie_wholly_in_the_padding(
    name: str, zero: int, shape: tuple[int, ...], geometry: dict[str, Any]
) -> None:
    """Where codes start at 0 OpenVINO's int8 kernel ended the process."""
    make = Maker(shape, bits=2)
    make.zeros[0]["x"] = zero
    end = make.conv(make.input, 3, relu=False, **geometry)
    program = make.program(make.linear(*flattened(make, [end]), 3, relu=False))
    assert not too_far(name, compare_ops(program, "reference", name, make.inputs(16)))


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize(("grids", "bits"), [(None, 8), (0, 3), (1, 8), (2, 3)])
def test_sequences_and_lines_of_several_axes(name: str, grids: int | None, bits: int) -> None:
    options = {} if grids is None else {"grids": grids}
    make = Maker((5, 20), bits=bits)
    a = make.conv(make.input, 8, 5, padding=2, **options)
    b = make.conv(make.max_pool(make.mask(a), 3, 2, 1), 8, 3, dilation=2, **options)
    c = make.linear(make.affine(b), 7, **options)  # along the last axis of (8, 6)
    flat = make.moved(ops.Reshape, make.avg_pool(c, adaptive=3), shape=(24,))
    program = make.program(make.linear(flat, 3, relu=False, bias_noise=True, **options))
    assert not too_far(name, compare_ops(program, "reference", name, make.inputs(12), draws=3))


@needs.installed("onnxruntime")
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("shape", [(3, 7, 6), (17, 11)])
def test_ops_between_are_bit_equal_in_onnx_runtime(between: str, shape: tuple[int, ...]) -> None:
    make = Maker(shape, bits=8)
    end = BETWEEN[between](make, make.conv(make.input, shape[0], padding=1))
    program = make.program(make.linear(*flattened(make, [end]), 2, relu=False))
    rows = compare_ops(program, "reference", "onnxruntime", make.inputs(5), draws=3, seed=4)
    assert all(row.largest == 0 for row in rows if row.kind != "conv"), rows


@pytest.mark.parametrize("name", RUNTIMES)
def test_negative_multipliers_and_weights_beyond_int8(name: str) -> None:
    """A channel may turn its sign behind the sum, and ``q_w − Z_w`` may reach ±255."""
    make = Maker((8, 5, 5), bits=8)
    turned = make.conv(make.input, 8, padding=1)
    make.constants[0]["conv0"]["multiplier"][::2] *= -1
    beyond = make.conv(turned, 8, padding=1, groups=2, affine=True, per_channel=False)
    make.constants[0]["conv1"]["weight"][0, 0, 0, 0] = -128
    make.constants[0]["conv1"]["weight_zero"][0] = 120
    program = make.program(make.linear(*flattened(make, [beyond]), 3, relu=False, affine=True))
    assert not too_far(name, compare_ops(program, "reference", name, make.inputs(16)))


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("grids", [None, 1, 2])
def test_wide_inputs_are_exact(name: str, grids: int | None) -> None:
    options = {} if grids is None else {"grids": grids}
    for bits in (16, 12):
        make = Maker((40,), bits=8, input_bits=bits)
        hidden = make.linear(make.moved(ops.Reshape, make.input, shape=(2, 20)), 30, **options)
        head = make.linear(*flattened(make, [hidden]), 2, relu=False, out_bits=16, **options)
        program = make.program(head, heads=("mean",), noise=(0.0, 0.0))
        rows = compare_ops(program, "reference", name, make.inputs(64), draws=2)
        assert all(row.largest == 0 for row in rows), rows


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_processor_whose_products_saturate_leaves_them_to_exact_integers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"qbayes.integer.backends.{name}.products_saturate", lambda: True)
    make = Maker((8, 5, 5), bits=8)
    large = make.conv(make.input, 8, padding=1, extreme=True)
    small = make.conv(large, 8, padding=1, w_bits=6)
    program = make.program(make.linear(*flattened(make, [small]), 3, relu=False, grids=1))
    report = {row.op: row for row in choose(name, program, CPU).report()}
    assert (report["conv0"].how, report["conv0"].why) == ("exact", trial.WHY)
    assert report["conv1"].how == name
    assert report["linear3"].how == "exact"
    assert not too_far(name, compare_ops(program, "reference", name, make.inputs(4)))


@pytest.mark.parametrize("name", RUNTIMES)
def test_answers_do_not_depend_on_the_batch_or_on_kept_draws(name: str) -> None:
    make = every_op(8, members=2)
    program = make.program(make.ops[-1].output)
    x = make.inputs(7)
    whole = torch.as_tensor(load(program, name).outputs(x, 4, 2))
    parts = torch.as_tensor(load(program, name, frozen_draws=4).outputs(x, 4, 2, 0, 3))
    assert torch.equal(whole, parts)


INTERRUPTED = """
import gc, os, signal
# a shell's background job is born with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from handmade.programs import every_op
from qbayes.integer.posterior import load

make = every_op(4, members=2)
program = make.program(make.ops[-1].output)
for _ in range(2):
    load(program, "openvino").outputs(make.inputs(2), 2, 0)
    gc.collect()
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("stopped")
"""


def test_ctrl_c_still_works_after_openvino() -> None:
    needs.package("openvino")
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "stopped", done.stderr


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_missing_extra_is_named_with_the_line_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Maker((4,))
    program = make.program(make.linear(make.input, 2, relu=False))
    monkeypatch.setattr("qbayes.integer.onnx.runtimes.find_spec", lambda package: None)
    extra = "onnx" if name == "onnxruntime" else "openvino"
    with pytest.raises(BadInput, match=rf"pip install 'qbayes\[{extra}\]'"):
        load(program, name)
