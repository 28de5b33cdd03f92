"""What every backend keeps to: its stated tolerance, determinism, and clear words where it cannot."""

import math

import pytest
import torch
from _pytest.mark.structures import ParameterSet

from handmade.programs import Maker, every_op
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.errors import BadInput
from qbayes.integer.backends.base import BACKENDS, able, choose
from qbayes.integer.compare import compare_ops, distances, record_ops
from qbayes.integer.onnx.extras import EXTRA_OF, missing
from qbayes.integer.ops import OPS
from qbayes.integer.posterior import load
from qbayes.integer.program import Program
from qbayes.integer.verify import verify

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def every_backend() -> list[ParameterSet]:
    """The shelf; what stands on an extra that is not installed is skipped, and says so."""
    reasons = {name: missing(name) if name in EXTRA_OF else None for name in sorted(BACKENDS)}
    return [
        pytest.param(name, marks=pytest.mark.skip(reason=reason) if reason else ())
        for name, reason in reasons.items()
    ]


def made(bits: int, out_bits: int | None = None) -> tuple[Maker, Program]:
    make = every_op(bits, members=2, out_bits=out_bits)
    return make, make.program(make.ops[-1].output)


def test_the_shelf_holds_the_backends() -> None:
    assert {"reference", "onednn", "onnxruntime", "openvino"} <= set(BACKENDS)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_programs_of_these_tests_are_right(bits: int) -> None:
    _, program = made(bits)
    verify(program)
    assert {op.kind for op in program.ops} == set(OPS)


@pytest.mark.parametrize("name", every_backend())
@pytest.mark.parametrize("bits", range(2, 9))
def test_every_op_stays_within_the_stated_tolerance(name: str, bits: int) -> None:
    make, program = made(bits)
    tolerance = BACKENDS[name].tolerance
    rows = compare_ops(program, "reference", name, make.inputs(24), draws=4, seed=1)
    assert [row.op for row in rows] == [op.name for op in program.ops]
    apart = [row for row in rows if row.largest > tolerance.codes or row.share_equal < tolerance.share_equal]
    assert not apart


@pytest.mark.parametrize("name", every_backend())
@pytest.mark.parametrize("out_bits", [9, 16])
@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("grids", [None, 0, 1, 2])
def test_wide_outputs_are_exact(name: str, out_bits: int, kind: str, grids: int | None) -> None:
    """Few lines and many, point weights and Gaussian ones; a tolerance of one code is for bytes."""
    make = Maker((20,) if kind == "linear" else (6, 5, 5), bits=8, members=2)
    options = {"out_bits": out_bits, "relu": False} | ({} if grids is None else {"grids": grids})
    head = make.linear(make.input, 30, **options) if kind == "linear" else make.conv(make.input, 4, **options)
    noise = (0.0,) * math.prod(make.values[head].shape)
    program = make.program(head, heads=("mean",), noise=noise)
    verify(program)
    for rows in (3, 900):
        (row,) = compare_ops(program, "reference", name, make.inputs(rows), draws=4, seed=1)
        assert (row.largest, row.share_equal) == (0, 1.0)
    codes = record_ops(program, name, make.inputs(50), 2, 0)[program.ops[0].name][0].output
    assert codes.dtype == torch.int32
    assert 255 < int(codes.max()) < 1 << out_bits


@pytest.mark.parametrize("name", every_backend())
def test_draws_differ_and_come_again(name: str) -> None:
    make, program = made(8)
    deployed = load(program, name)
    x = make.inputs(4)
    first, again = (torch.as_tensor(deployed.outputs(x, 6, 3)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first[0], first[2])  # both of member 0
    assert not torch.equal(first, torch.as_tensor(deployed.outputs(x, 6, 4)))


@pytest.mark.parametrize("name", every_backend())
def test_a_backend_tells_how_it_runs_every_op(name: str) -> None:
    _, program = made(4)
    backend = choose(name, program, CPU)
    assert {row.op for row in backend.report()} == {op.name for op in program.ops}
    assert all(op.name in backend.describe() for op in program.ops)


def test_auto_is_the_fast_one_on_a_cpu_and_the_exact_one_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    _, program = made(4)
    expected = "onednn" if BACKENDS["onednn"].why_not(program, CPU) is None else "reference"
    assert choose("auto", program, CPU).name == expected
    assert able(program, CUDA) == ["reference"]
    monkeypatch.setattr("qbayes.integer.backends.onednn.why_missing", lambda: "no int8 here")
    assert choose("auto", program, CPU).name == "reference"


def test_a_backend_that_cannot_says_why_and_names_one_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    _, program = made(4)
    with pytest.raises(BadInput, match="run on CPUs, not on cuda") as caught:
        choose("onednn", program, CUDA)
    assert "backend='reference'" in caught.value.do
    with pytest.raises(BadInput, match="not for meta"):
        choose("reference", program, torch.device("meta"))
    monkeypatch.setattr("qbayes.integer.backends.onednn.why_missing", lambda: "no int8 here")
    with pytest.raises(BadInput, match="no int8 here"):
        choose("onednn", program, CPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("bits", "out_bits"), [(8, None), (4, None), (8, 16)])
def test_the_reference_gives_the_same_integers_on_a_gpu(bits: int, out_bits: int | None) -> None:
    make, program = made(bits, out_bits)
    x = make.inputs(16)
    on_cpu = torch.as_tensor(load(program, "reference").outputs(x, 4, 1))
    on_gpu = torch.as_tensor(load(program, "auto", device="cuda").outputs(x, 4, 1))
    assert torch.equal(on_cpu, on_gpu)


def test_the_comparison_finds_a_code_that_differs() -> None:
    make, program = made(4)
    record = record_ops(program, "reference", make.inputs(3), 2, 0)
    other = {name: [seen.output.clone() for seen in calls] for name, calls in record.items()}
    name = program.ops[3].name
    other[name][1].view(-1)[5] += 3
    rows = {row.op: row for row in distances(program, record, other)}
    assert rows[name].largest == 3
    assert rows[name].share_equal == 1 - 1 / rows[name].codes
    assert all(row.largest == 0 and row.share_equal == 1 for op, row in rows.items() if op != name)
