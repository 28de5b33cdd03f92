"""``qbayes`` as a function: the exit code, standard output and standard error of one command line."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import needs
from qbayes.cli import main

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# A small network and a few epochs: enough for a posterior, not for a good one.
SMALL = ["--network", "mlp", "--network-set", "hidden=[16]", "--epochs", "2", "--quiet"]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def digits_posterior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("posteriors") / "digits"
    assert main(["fit", "digits", "--method", "mcd", "--out", str(folder), *SMALL]) == 0
    return folder


@pytest.fixture(scope="session")
def digits_quantised(digits_posterior: Path) -> Path:
    folder = digits_posterior.with_name("digits-w4a4")
    command = ["quantize", str(digits_posterior), "--precision", "W4A4", "--epochs", "0", "--quiet"]
    assert main([*command, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def digits_program(digits_quantised: Path) -> Path:
    file = digits_quantised.with_suffix(".qbayes")
    assert main(["lower", str(digits_quantised), "--out", str(file), "--json"]) == 0
    return file


@pytest.fixture(scope="session")
def diabetes_posterior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("posteriors") / "diabetes"
    command = ["fit", "diabetes", "--method", "bbb", "--task-set", "split=2", "--out", str(folder), *SMALL]
    assert main(command) == 0
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium."""
    driver = needs.package("playwright.sync_api")
    with driver.sync_playwright() as tools:
        own = Path(tools.chromium.executable_path)
        found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
        needs.require(found or own.exists(), needs.CHROMIUM)
        # the sandbox of Chromium does not start for the superuser.
        flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        running = tools.chromium.launch(executable_path=found, args=flags)
        yield running
        running.close()
