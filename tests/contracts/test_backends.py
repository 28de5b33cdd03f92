"""What every backend keeps to: its stated tolerance, determinism, and clear words where it cannot."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet

import needs
from handmade.programs import Maker, every_op
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.errors import BadInput
from qbayes.integer.backends.base import BACKENDS, Backend, able, choose
from qbayes.integer.compare import OpDistance, distances, record_ops, replay
from qbayes.integer.onnx.runtimes import EXTRA_OF
from qbayes.integer.ops import OPS, Conv
from qbayes.integer.posterior import load
from qbayes.integer.program import Program
from qbayes.integer.proof.verify import verify

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def every_backend() -> list[ParameterSet]:
    """The registered backends; what needs an extra or a device that is not there is skipped, and says so."""
    marks = {"triton": needs.triton, **{name: needs.installed(name) for name in EXTRA_OF}}
    return [pytest.param(name, marks=marks.get(name, ())) for name in sorted(BACKENDS)]


def is_exact(name: str) -> bool:
    return BACKENDS[name].tolerance.codes == 0


def device_of(name: str) -> torch.device:
    return CUDA if name == "triton" and needs.ON_GPU else CPU


def rows_for(name: str, rows: int) -> int:
    """A tenth of them in Triton's interpreter, which takes a second for a hundred."""
    return max(3, rows // 10) if name == "triton" and not needs.ON_GPU else rows


def compared(program: Program, name: str, x: torch.Tensor) -> list[OpDistance]:
    """Every op of a backend, on the device it is for, against the reference on the CPU."""
    record = record_ops(program, "reference", x, 4, 1)
    return distances(program, record, replay(program, name, record, device_of(name)))


def made(bits: int, out_bits: int | None = None) -> tuple[Maker, Program]:
    make = every_op(bits, members=2, out_bits=out_bits)
    return make, make.program(make.ops[-1].output)


def test_the_registry_holds_the_backends() -> None:
    assert {"reference", "onednn", "onnxruntime", "openvino", "triton"} <= set(BACKENDS)


@pytest.mark.parametrize(
    ("name", "imported"), [("reference", {"reference"}), ("onednn", {"onednn"}), ("auto", {"onednn"})]
)
def test_loading_on_a_backend_imports_that_backend_alone(
    tmp_path: Path, name: str, imported: set[str]
) -> None:
    """In a new interpreter, through the public name."""
    made(8)[1].save(tmp_path / "program.qbayes")
    code = (
        "import sys, qbayes as qb; qb.load(sys.argv[1], sys.argv[2]);"
        "print(*(name for name in sys.modules if name.startswith('qbayes.integer.backends.')))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "program.qbayes", name],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = {module.split(".")[3] for module in run.stdout.split()}
    assert modules & set(BACKENDS) == imported


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
    rows = compared(program, name, make.inputs(rows_for(name, 24)))
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
        (row,) = compared(program, name, make.inputs(rows_for(name, rows)))
        assert (row.largest, row.share_equal) == (0, 1.0)
    record = record_ops(program, name, make.inputs(50), 2, 0, device=device_of(name))
    codes = record[program.ops[0].name][0].output
    assert codes.dtype == torch.int32
    assert 255 < int(codes.max()) < 1 << out_bits


@pytest.mark.parametrize("name", every_backend())
def test_draws_differ_and_come_again(name: str) -> None:
    make, program = made(8)
    deployed = load(program, name, device=device_of(name))
    x = make.inputs(4)
    first, again = (torch.as_tensor(deployed.outputs(x, 6, 3)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first[0], first[2])  # both of member 0
    assert not torch.equal(first, torch.as_tensor(deployed.outputs(x, 6, 4)))


@pytest.mark.parametrize("name", every_backend())
def test_a_backend_tells_how_it_runs_every_op(name: str) -> None:
    _, program = made(4)
    backend = choose(name, program, device_of(name))
    assert {row.op for row in backend.report()} == {op.name for op in program.ops}
    assert all(op.name in backend.describe() for op in program.ops)


@pytest.mark.parametrize("name", [one for one in every_backend() if is_exact(str(one.values[0]))])
def test_whole_answers_of_an_exact_backend_are_the_references_in_pieces_too(name: str) -> None:
    """From raw inputs to the head: every op reads what the backend's own ops wrote, in their layout."""
    make, program = made(8)
    x = make.inputs(5)
    expected = torch.as_tensor(load(program, "reference").outputs(x, 4, 1, first_row=3))
    deployed = load(program, name, device=device_of(name))
    assert torch.equal(torch.as_tensor(deployed.outputs(x, 4, 1, first_row=3)), expected)
    assert torch.equal(torch.as_tensor(deployed.outputs(x, 4, 1, first_row=3, batch_size=2)), expected)


def test_auto_is_the_fast_one_of_the_device_or_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, program = made(4)
    expected = "onednn" if BACKENDS["onednn"].why_not(program, CPU) is None else "reference"
    assert choose("auto", program, CPU).name == expected
    monkeypatch.setattr("qbayes.integer.backends.onednn.why_missing", lambda: "no int8 here")
    assert choose("auto", program, CPU).name == "reference"
    assert set(able(program, CUDA)) == ({"reference", "triton"} if needs.ON_GPU else {"reference"})
    # only the choice counts: constants stay where they are, as there may be no GPU to hold them.
    monkeypatch.setattr(Backend, "_place", lambda self, constants: constants)
    for reason, taken in ((None, "triton"), ("no compiler here", "reference")):
        found = classmethod(lambda cls, program, device, reason=reason: reason)
        monkeypatch.setattr(BACKENDS["triton"], "why_not", found)
        assert choose("auto", program, CUDA).name == taken


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
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BadInput, match="run on CUDA devices, not on cpu") as caught:
        choose("triton", program, CPU)
    assert "backend='reference'" in caught.value.do
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(BadInput, match="Triton cannot compile here"):
        choose("triton", program, CUDA)


def test_triton_tells_which_ops_it_leaves_to_the_exact_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weighted ops and masks only the convolution in groups; how an op runs is settled without a GPU."""
    _, program = made(8)
    monkeypatch.setattr(BACKENDS["triton"], "why_not", classmethod(lambda cls, program, device: None))
    kinds = {"conv", "linear", "mask"}
    rows = [row for row in choose("triton", program, CPU).report() if row.kind in kinds]
    assert len(rows) == sum(op.kind in kinds for op in program.ops)
    grouped = [op.name for op in program.ops if isinstance(op, Conv) and op.groups > 1]
    assert [(row.op, row.why) for row in rows if row.how == "exact"] == [
        (name, "it is no plain 2-D convolution") for name in grouped
    ]
    assert len(grouped) == 1


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("reference", marks=needs.gpu),
        pytest.param("triton", marks=needs.triton),
        pytest.param("auto", marks=needs.gpu),
    ],
)
@pytest.mark.parametrize(("bits", "out_bits"), [(8, None), (4, None), (8, 16)])
def test_a_gpu_gives_the_same_integers(name: str, bits: int, out_bits: int | None) -> None:
    make, program = made(bits, out_bits)
    x = make.inputs(16)
    on_cpu = torch.as_tensor(load(program, "reference").outputs(x, 4, 1))
    on_gpu = torch.as_tensor(load(program, name, device=device_of("triton")).outputs(x, 4, 1))
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
