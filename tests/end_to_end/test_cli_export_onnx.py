"""``qbayes export --target onnx``: models for a runtime alone, and bad input refused in three parts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import needs
import qbayes as qb
from qbayes.export.onnx import open_exported
from refusal import refused

onnxruntime = needs.package("onnxruntime")
needs.package("onnx")
Cli = Callable[..., Any]
EXPORT = ("export", "--target", "onnx")


def test_a_model_answers_in_the_runtime_alone(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    told = cli(*EXPORT, digits_program, tmp_path / "m.onnx")
    assert told.code == 0, told.err
    assert "bytes" in told.out
    assert "opset 18" in told.out
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    x = np.zeros((3, 1, 8, 8), np.float32)
    mean, variance, entropy, information = session.run(None, {"x": x})
    assert mean.shape == variance.shape == (3, 10)
    np.testing.assert_allclose(mean.sum(1), 1, atol=1e-5)
    assert entropy.shape == information.shape == (3,)
    entries = session.get_modelmeta().custom_metadata_map
    assert json.loads(entries["qbayes.draws"]) == 20
    assert len(json.loads(entries["qbayes.labels"])) == 10


def test_draws_outputs_and_dialects(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    command = [*EXPORT, digits_program, path, "--dialect", "qdq", "--noise", "inputs", "--draws", "3"]
    told = cli(*command, "--outputs", "mean, entropy", "--json")
    assert told.code == 0, told.err
    assert told.json["bytes"] == {str(path): path.stat().st_size}
    model = open_exported(path)
    assert model.outputs == ("mean", "entropy")
    assert (model.metadata["dialect"], model.metadata["draws"]) == ("qdq", 3)


def test_a_quantised_folder_is_lowered_for_it(cli: Cli, digits_quantised: Path, tmp_path: Path) -> None:
    assert cli(*EXPORT, digits_quantised, tmp_path / "m.onnx", "--draws", "2").code == 0
    assert open_exported(tmp_path / "m.onnx").metadata["task"] == "digits"


def test_the_runtimes_are_backends(cli: Cli, digits_program: Path) -> None:
    exact = cli("predict", digits_program, "task:digits:4", "--backend", "reference", "--json")
    for name in ("onnxruntime", "openvino"):
        needs.package(name)
        told = cli("predict", digits_program, "task:digits:4", "--backend", name, "--json")
        assert told.code == 0, told.err
        pairs = zip(told.json["answers"], exact.json["answers"], strict=True)
        assert all(abs(one["entropy"] - other["entropy"]) < 0.05 for one, other in pairs)


def test_targets_are_listed(cli: Cli) -> None:
    assert "onnx" in cli("list", "targets", "--json").json["targets"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--target", "onxx"], ["did you mean 'onnx'?"]),
        (["--dialect", "qqd"], ["dialect", "did you mean 'qdq'?"]),
        (["--noise", "outside"], ["inside, inputs"]),
        (["--draws", "0"], ["draws", "from 1"]),
        (["--draws", "many"], ["--draws"]),
        (["--outputs", "mean,modus"], ["each output", "'modus'"]),
        (["--outputs", ""], ["each output"]),
        (["--members", "folder"], ["batch, files"]),
        (["--network", "package:Net"], ["leave it out"]),
    ],
)
def test_options_that_make_no_sense(
    cli: Cli, digits_program: Path, tmp_path: Path, changed: list[str], words: list[str]
) -> None:
    refused(cli(*EXPORT, digits_program, tmp_path / "m.onnx", *changed), *words)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_there_are_kept(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("mine")
    refused(cli(*EXPORT, digits_program, path), "must be new", "--force")
    assert path.read_text() == "mine"
    assert cli(*EXPORT, digits_program, path, "--force").code == 0
    assert path.stat().st_size > 1000


def test_targets_that_cannot_be_written(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(cli(*EXPORT, digits_program, tmp_path / "file" / "m.onnx"), "must be writable")
    refused(cli(*EXPORT, digits_program, tmp_path / "m.txt"), "must end in .onnx")
    (tmp_path / "d.onnx").mkdir()
    refused(cli(*EXPORT, digits_program, tmp_path / "d.onnx", "--force"), "must be a file")
    refused(cli(*EXPORT, tmp_path / "none.qbayes", tmp_path / "m.onnx"), "none.qbayes")


def test_a_missing_extra(
    cli: Cli, digits_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qbayes.integer.onnx.runtimes.find_spec", lambda package: None)
    refused(cli(*EXPORT, digits_program, tmp_path / "m.onnx"), "pip install 'qbayes[onnx]'")
    command = ("predict", digits_program, "task:digits:2", "--backend")
    refused(cli(*command, "onnxruntime"), "pip install 'qbayes[onnx]'")
    refused(cli(*command, "openvino"), "pip install 'qbayes[openvino]'")


def test_members_become_files(cli: Cli, tmp_path: Path) -> None:
    task = qb.load_task("digits")
    network = qb.network("mlp", task, hidden=[16])
    posterior = qb.fit(
        network,
        task,
        qb.method("sghmc", members=2, every=1),
        qb.Budget(epochs=2),
        device="cpu",
        progress=False,
    )
    quantised = qb.quantize(
        posterior, task, qb.Precision(), qb.FineTuning(epochs=0), device="cpu", progress=False
    )
    qb.lower(quantised).save(tmp_path / "p.qbayes")
    told = cli(*EXPORT, tmp_path / "p.qbayes", tmp_path / "m.onnx", "--members", "files", "--draws", "1")
    assert told.code == 0, told.err
    assert sorted(path.name for path in tmp_path.glob("*.onnx")) == ["m-0.onnx", "m-1.onnx"]
