"""What an exported model holds: draws in order, members, statistics, metadata; and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import needs
import qbayes as qb
from handmade.programs import Maker, every_op
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.errors import BadFile, BadInput
from qbayes.integer import ops
from qbayes.integer.onnx.dialect import QDQ, QOPERATOR, dialect_of
from qbayes.integer.onnx.op_context import WRITERS
from qbayes.integer.ops import OPS
from qbayes.integer.program import Program

onnx = needs.package("onnx")
needs.package("onnxruntime")

from qbayes.export import TARGETS  # noqa: E402  (behind the skip)
from qbayes.export.onnx import (  # noqa: E402
    ExportedModel,
    Options,
    export_onnx,
    noise_feeds,
    onnx_model,
    open_exported,
)

ALL = ("mean", "variance", "entropy", "mutual_information", "draws", "codes")


def classifier(members: int = 1, *, drawn: bool = True) -> tuple[Maker, Program]:
    make = Maker((6,), bits=8, members=members)
    hidden = make.linear(make.input, 16)
    hidden = make.linear(make.mask(hidden), 12, grids=1, bias_noise=True) if drawn else hidden
    return make, make.program(make.linear(hidden, 4, relu=False))


def regression(heads: tuple[str, ...] = ("mean", "log_variance"), targets: int = 2) -> tuple[Maker, Program]:
    make = Maker((6,), bits=8, input_bits=16)
    hidden = make.mask(make.linear(make.input, 16, grids=1), 0.4)
    outputs = [make.linear(hidden, targets, relu=False, out_bits=16) for _ in heads]
    program = make.program(*outputs, heads=heads, noise=(0.1, -0.3)[:targets])
    small = dict.fromkeys(outputs, 3e-5)  # so that variances are sane
    for member in program.members:
        member.scales.update(small)  # pyright: ignore[reportAttributeAccessIssue]
    constant = {} if len(heads) == 2 else program.constant_heads
    made = (program.values, program.ops, program.input, program.outputs, program.members, program.signature)
    return make, Program(*made, constant_heads=constant)


def exported(program: Program, folder: Path, options: Options) -> list[ExportedModel]:
    return [open_exported(path, threads=1) for path in export_onnx(program, folder / "m.onnx", options)]


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("draws", [1, 2, 7])
@pytest.mark.parametrize("drawn", [True, False])
def test_statistics_and_draws_of_a_classifier(members: int, draws: int, drawn: bool, tmp_path: Path) -> None:
    """Draw d is of member d mod M, with the noise of draw d; also with fewer draws than members."""
    make, program = classifier(members, drawn=drawn)
    x = make.inputs(9)
    (model,) = exported(program, tmp_path, Options(noise="inputs", draws=draws, outputs=ALL))
    found = model(x, noise_feeds(program, 9, range(draws), seed=2))
    wanted = qb.load(program, "reference").predict(x, draws=draws, seed=2)
    for name in ALL[:-1]:
        np.testing.assert_allclose(found[name], getattr(wanted, name).numpy(), atol=1e-6, err_msg=name)
    assert found["codes"].dtype == np.uint8


@pytest.mark.parametrize("heads", [("mean", "log_variance"), ("mean",)])
@pytest.mark.parametrize("draws", [1, 6])
@pytest.mark.parametrize("targets", [1, 2])
def test_statistics_of_a_regression(heads: tuple[str, ...], draws: int, targets: int, tmp_path: Path) -> None:
    make, program = regression(heads, targets)
    x = make.inputs(5)
    (model,) = exported(program, tmp_path, Options(noise="inputs", draws=draws, outputs=ALL))
    found = model(x, noise_feeds(program, 5, range(draws), seed=1))
    wanted = qb.load(program, "reference").predict(x, draws=draws, seed=1)
    for name in ALL[:-1]:
        other = getattr(wanted, name).numpy()
        np.testing.assert_allclose(found[name], other, rtol=1e-5, atol=2e-6, err_msg=name)
    assert {f"codes.{head}" for head in heads} <= set(found)
    assert found["codes.mean"].dtype == np.int32


def test_members_in_files_are_those_of_the_batch(tmp_path: Path) -> None:
    make, program = classifier(3)
    x = make.inputs(4)
    options = Options(noise="inputs", draws=2, outputs=("codes",), members="files")
    paths = export_onnx(program, tmp_path / "m.onnx", options)
    assert [path.name for path in paths] == ["m-0.onnx", "m-1.onnx", "m-2.onnx"]
    (whole,) = exported(program, tmp_path / "all", Options(noise="inputs", draws=6, outputs=("codes",)))
    codes = whole(x, noise_feeds(program, 4, range(6)))["codes"]
    for index, path in enumerate(paths):
        single = open_exported(path, threads=1)
        assert single.metadata["members"] == {"held": [index], "of": 3}
        mine = single(x, noise_feeds(program, 4, [index, index + 3]))["codes"]
        assert np.array_equal(mine, codes[index::3])


def test_rows_of_a_later_batch_have_their_own_noise(tmp_path: Path) -> None:
    make, program = classifier()
    x = make.inputs(8)
    (model,) = exported(program, tmp_path, Options(noise="inputs", draws=2, outputs=("codes",)))
    whole = model(x, noise_feeds(program, 8, range(2)))["codes"]
    rest = model(x[5:], noise_feeds(program, 3, range(2), first_row=5))["codes"]
    assert np.array_equal(whole[:, 5:], rest)


@pytest.mark.parametrize("dialect", ["qoperator", "qdq"])
def test_the_model_says_what_it_is(dialect: str, tmp_path: Path) -> None:
    make = every_op(4, members=2)
    program = make.program(make.ops[-1].output)
    model = onnx.load_model_from_string(onnx_model(program, Options(dialect=dialect)))
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert {node.domain for node in model.graph.node} == {""}
    entries = {entry.key: entry.value for entry in model.metadata_props}
    assert entries["qbayes.dialect"] == dialect
    assert json.loads(entries["qbayes.bits"])["x"] == 4
    assert json.loads(entries["qbayes.preprocessing"])["mean"] == [100.0] * 3
    wanted = {"labels", "likelihood", "precision", "provenance", "noise", "draws", "members", "sha256"}
    assert {f"qbayes.{name}" for name in wanted} <= set(entries)


def test_the_same_program_makes_the_same_file() -> None:
    _, program = classifier(2)
    assert onnx_model(program, Options()) == onnx_model(program, Options())


def test_every_op_has_a_spelling_in_both_dialects() -> None:
    for dialect in (QOPERATOR, QDQ):
        assert set(dialect.writers) == set(OPS.values())
    assert TARGETS["onnx"].ops() == frozenset(OPS)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate"])
@pytest.mark.parametrize("dialect", ["qoperator", "qdq"])
def test_padding_that_cuts_and_mirrors(mode: str, dialect: str, tmp_path: Path) -> None:
    make = Maker((2, 5, 6), bits=8)
    padded = make.moved(ops.Pad, make.input, amounts=((0, 0), (2, -1), (-2, 3)), mode=mode)
    upper = make.moved(ops.Upsample, padded, factors=(1, 2))
    flat = make.moved(ops.Reshape, upper, shape=(2 * 6 * 14,))
    program = make.program(make.linear(flat, 3, relu=False))
    x = make.inputs(3)
    (model,) = exported(program, tmp_path, Options(dialect, "inputs", 1, ("draws",)))
    wanted = qb.load(program, "reference").predict(x, draws=1).draws.numpy()
    np.testing.assert_allclose(model(x)["draws"], wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"dialect": "qlinear"}, "dialect"),
        ({"noise": "input"}, "did you mean 'inputs'"),
        ({"draws": 0}, "from 1 to"),
        ({"draws": True}, "from 1 to"),
        ({"outputs": ()}, "must have an output"),
        ({"outputs": ("mean", "entropie")}, "did you mean 'entropy'"),
        ({"outputs": ("mean", "mean")}, "once"),
        ({"members": "file"}, "did you mean 'files'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        Options(**options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="qoperator or qdq"):
        dialect_of("nothing")


def test_an_op_that_the_target_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make = every_op(8)
    program = make.program(make.ops[-1].output)
    monkeypatch.delitem(WRITERS["qoperator"], ops.Lookup)
    with pytest.raises(BadInput, match=r"'lookup\d+', a lookup") as caught:
        export_onnx(program, tmp_path / "m.onnx")
    assert caught.value.do == "export to c"
    with pytest.raises(BadInput, match="the target 'web' has") as caught:
        TARGETS["web"]().write(program, tmp_path / "page")
    assert caught.value.do == "export to c"
    assert not (tmp_path / "page").exists()
    monkeypatch.setattr(TARGETS["c"], "ops", classmethod(lambda cls: frozenset()))
    with pytest.raises(BadInput, match=r"'lookup\d+', a lookup") as caught:
        export_onnx(program, tmp_path / "m.onnx")
    assert "no target has" in caught.value.do


def test_draws_and_their_variances_are_the_whole_mixture(tmp_path: Path) -> None:
    """Of a regression: the variance is the spread of the draws and the mean of what they say of the noise."""
    make, program = regression()
    outputs = ("draws", "draw_variances", "variance")
    (path,) = export_onnx(program, tmp_path / "m.onnx", Options(draws=7, outputs=outputs))
    found = open_exported(path)(make.inputs(3))
    assert found["draw_variances"].shape == found["draws"].shape == (7, 3, 2)
    together = found["draws"].var(0, ddof=1) + found["draw_variances"].mean(0)
    np.testing.assert_allclose(together, found["variance"], rtol=1e-5)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"\x80\x04K*." * 20,
        lambda content: content[:-900] + bytes([content[-900] ^ 1]) + content[-899:],
        lambda content: content.replace(b"handmade", b"handm4de"),
    ],
    ids=["cut", "empty", "pickle", "a bit", "a name"],
)
def test_a_damaged_model_is_not_run(damage: object, tmp_path: Path) -> None:
    _, program = classifier()
    (path,) = export_onnx(program, tmp_path / "m.onnx")
    path.write_bytes(damage(path.read_bytes()))  # pyright: ignore[reportCallIssue]
    with pytest.raises(BadFile) as caught:
        open_exported(path)
    assert str(path) in caught.value.got
    assert "again" in caught.value.do


def test_files_that_are_no_models_of_ours(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="readable"):
        open_exported(tmp_path / "none.onnx")
    node = onnx.helper.make_node("Identity", ["a"], ["b"])
    ends = [onnx.helper.make_tensor_value_info(name, 1, [1]) for name in "ab"]
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([node], "g", ends[:1], ends[1:])), tmp_path / "f.onnx"
    )
    with pytest.raises(BadFile, match="qbayes exported"):
        open_exported(tmp_path / "f.onnx")
    with pytest.raises(BadInput, match="did you mean 'openvino'"):
        open_exported(tmp_path / "f.onnx", "openvin")


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_inputs_that_do_not_fit(runtime: str, tmp_path: Path) -> None:
    needs.package(runtime)
    make, program = classifier()
    dialect = "qoperator" if runtime == "onnxruntime" else "qdq"
    (path,) = export_onnx(program, tmp_path / "m.onnx", Options(dialect, "inputs", 2, ("mean",)))
    model, x = open_exported(path, runtime, threads=1), make.inputs(3).numpy()
    noise = noise_feeds(program, 3, range(2))
    assert model(x, noise)["mean"].shape == (3, 4)
    mask = next(name for name in noise if name.endswith("keep"))
    wrong = [
        (x[:, :5], noise, r"float32 of shape \(rows, 6\)"),
        (x[0], noise, r"shape \(6,\)"),
        (x.astype(np.float64), noise, "got: float64"),
        (x.astype(np.uint8), noise, "astype"),
        (x.tolist(), noise, "got: list"),
        (x[:0], noise, r"shape \(0, 6\)"),
        (np.full_like(x, np.nan), noise, "finite"),
        (x, None, "no such input"),
        (x, {**noise, mask: noise[mask][:, :2]}, r"shape \(2, 2, 16\)"),
        (x, {**noise, mask: noise[mask].astype(bool)}, "uint8"),
        (x, {**noise, "maks": noise[mask]}, "one of the model's"),
    ]
    for given, drawn, words in wrong:
        with pytest.raises(BadInput, match=words):
            model(given, drawn)  # pyright: ignore[reportArgumentType]


def test_existing_files_are_kept(tmp_path: Path) -> None:
    _, program = classifier(2)
    options = Options(members="files", draws=1)
    (tmp_path / "m-1.onnx").write_text("mine")
    with pytest.raises(BadFile, match="must be new") as caught:
        export_onnx(program, tmp_path / "m.onnx", options)
    assert "--force" in caught.value.do
    assert [path.name for path in tmp_path.iterdir()] == ["m-1.onnx"]
    assert len(export_onnx(program, tmp_path / "m.onnx", options, force=True)) == 2
    assert open_exported(tmp_path / "m-1.onnx")(np.zeros((1, 6), np.float32))["mean"].shape == (1, 4)
    (tmp_path / "d.onnx").mkdir()
    with pytest.raises(BadFile, match="must be a file"):
        export_onnx(program, tmp_path / "d.onnx")
    with pytest.raises(BadInput, match=r"must end in \.onnx"):
        export_onnx(program, tmp_path / "m.bin")


def test_a_missing_extra_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, program = classifier()
    monkeypatch.setattr("qbayes.integer.onnx.runtimes.find_spec", lambda package: None)
    with pytest.raises(BadInput, match=r"pip install 'qbayes\[onnx\]'"):
        export_onnx(program, tmp_path / "m.onnx")
    with pytest.raises(BadInput, match=r"pip install 'qbayes\[openvino\]'"):
        open_exported(tmp_path / "m.onnx", "openvino")
