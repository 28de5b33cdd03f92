"""``qbayes export --target web``: the folder it writes, and bad input refused in three parts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import needs
import qbayes as qb
from qbayes.cli import main, vendor_web
from qbayes.errors import BadFile, BadInput
from qbayes.export.web import runtime_files
from refusal import refused

needs.package("onnx")
Cli = Callable[..., Any]
EXPORT = ("export", "--target", "web")


@pytest.fixture
def vendored() -> None:
    needs.require(runtime_files.is_vendored(), needs.WEB_RUNTIME)


@pytest.fixture(scope="module")
def diabetes_program(diabetes_posterior: Path) -> Path:
    folder = diabetes_posterior.with_name("diabetes-w8a8")
    command = ["quantize", str(diabetes_posterior), "--precision", "W8A8", "--epochs", "0", "--quiet"]
    assert main([*command, "--out", str(folder)]) == 0
    return folder


@pytest.mark.usefixtures("vendored")
def test_a_folder_for_a_static_server(
    cli: Cli, digits_program: Path, digits_posterior: Path, tmp_path: Path
) -> None:
    place = tmp_path / "new" / "page"
    command = [*EXPORT, digits_program, place, "--beside", digits_program, "--draws", "30", "--examples", "4"]
    told = cli(*command, "--float-posterior", digits_posterior)
    assert told.code == 0, told.err
    assert "http.server" in told.out
    held = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert {"index.html", "app.js", "manifest.json", "models/float.onnx", "models/w4a4.onnx"} <= held
    assert {"runtime/ort.wasm.bundle.min.js", "runtime/LICENSE.txt"} <= held
    manifest = json.loads((place / "manifest.json").read_text())
    # two programs of the same bits are told apart.
    assert [model["name"] for model in manifest["models"]] == ["float", "W4A4", "W4A4 (2)"]
    assert (manifest["draws"], manifest["kind"], len(manifest["examples"])) == (30, "classification", 5)
    # nothing is asked of another server.
    texts = [path.read_text() for path in place.glob("*") if path.suffix in (".html", ".css", ".js")]
    assert not any("//cdn" in text or "https://" in text for text in texts)


@pytest.mark.usefixtures("vendored")
def test_what_is_there_is_kept(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine too")
    refused(cli(*EXPORT, digits_program, tmp_path), "new or an empty folder", "--force")
    assert (tmp_path / "index.html").read_text() == "mine"
    told = cli(*EXPORT, digits_program, tmp_path, "--force", "--json")
    assert told.code == 0, told.err
    assert told.json["models"].keys() == {"W4A4"}
    assert (tmp_path / "index.html").read_text() != "mine"
    assert (tmp_path / "notes.txt").read_text() == "mine too"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--draws", "0"], ["draws", "from 1 to 200"]),
        (["--draws", "201"], ["draws"]),
        (["--pixels", "0"], ["--pixels must be two numbers"]),
        (["--pixels", "255,0"], ["must rise"]),
        (["--pixels", "nan,1"], ["must rise"]),
        (["--pixels", "0,inf"], ["finite"]),
        (["--examples", "0"], ["--examples must be from 1"]),
        (["--beside", "none.qbayes"], ["none.qbayes"]),
        (["--float-posterior", "nowhere"], ["posterior is a folder"]),
        (["--dialect", "qdq"], ["the target 'web' has", "'dialect'"]),
        (["--runtime", "nowhere"], ["ONNX Runtime Web", "nowhere", "onnxruntime-web@"]),
    ],
)
def test_options_that_make_no_sense(
    cli: Cli, digits_program: Path, tmp_path: Path, changed: list[str], words: list[str]
) -> None:
    refused(cli(*EXPORT, digits_program, tmp_path / "page", *changed), *words)
    assert list(tmp_path.iterdir()) == []


def test_models_of_two_tasks_are_refused(
    cli: Cli, digits_program: Path, diabetes_program: Path, diabetes_posterior: Path, tmp_path: Path
) -> None:
    place = tmp_path / "page"
    refused(cli(*EXPORT, digits_program, place, "--beside", diabetes_program), "the same inputs")
    refused(cli(*EXPORT, digits_program, place, "--float-posterior", diabetes_posterior), "the same inputs")
    refused(cli(*EXPORT, digits_program, place, "--float-posterior", diabetes_program), "float posterior")
    assert not place.exists()


def test_options_of_a_page_are_no_others(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    command = ("export", "--target", "onnx", digits_program, tmp_path / "m.onnx")
    refused(cli(*command, "--beside", digits_program), "the target 'onnx' has", "'beside'")
    refused(cli(*command, "--outputs", "draw_variances"), "output of a regression")


def test_places_that_cannot_be_written(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(cli(*EXPORT, digits_program, tmp_path / "file"), "must be a folder")
    refused(cli(*EXPORT, digits_program, tmp_path / "file" / "page"), "folder")


def test_a_missing_extra(
    cli: Cli, digits_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qbayes.integer.onnx.runtimes.find_spec", lambda package: None)
    refused(cli(*EXPORT, digits_program, tmp_path / "page"), "pip install 'qbayes[onnx]'")


def test_without_the_runtime_it_says_how_to_get_it(
    cli: Cli, digits_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_files, "VENDORED", tmp_path / "none")
    words = ("python -m qbayes.cli.vendor_web", "--runtime")
    refused(cli(*EXPORT, digits_program, tmp_path / "page"), *words)
    assert not (tmp_path / "page").exists()


@pytest.mark.usefixtures("vendored")
def test_another_runtime_is_not_taken_for_ours(tmp_path: Path) -> None:
    shutil.copytree(runtime_files.VENDORED, tmp_path / "dist")
    assert runtime_files.runtime_files(tmp_path / "dist").keys() == runtime_files.SHA256.keys()
    with (tmp_path / "dist" / runtime_files.BINARY).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(BadFile, match="another sha256"):
        runtime_files.runtime_files(tmp_path / "dist")


@pytest.mark.usefixtures("vendored")
def test_what_is_vendored_is_not_fetched_again_unless_it_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert vendor_web.main() == 0
    monkeypatch.setattr(runtime_files, "VENDORED", tmp_path)
    assert vendor_web.main() == 2
    assert "npm is needed" in capsys.readouterr().err


def test_vendoring_needs_npm_and_checks_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BadInput, match="npm is needed"):
        runtime_files.vendor(tmp_path / "runtime")
    monkeypatch.undo()
    forged = tmp_path / "npm"
    forged.write_text("#!/bin/sh\necho forged > onnxruntime-web.tgz\n")
    forged.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(forged))
    with pytest.raises(BadFile, match="the sha256 recorded here"):
        runtime_files.vendor(tmp_path / "runtime")
    assert not (tmp_path / "runtime").exists()
    forged.write_text("#!/bin/sh\necho no such package >&2\nexit 1\n")
    with pytest.raises(qb.RunFailed, match="no such package"):
        runtime_files.vendor(tmp_path / "runtime")
