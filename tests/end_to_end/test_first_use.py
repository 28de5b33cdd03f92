"""The first use of the library by eight threads at once, each time in a fresh process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import needs
import qbayes
import qbayes as qb
from handmade import first_use
from handmade.programs import Maker
from qbayes.integer.onnx.runtimes import missing
from qbayes.integer.ops import Reshape
from qbayes.posterior.network import NetworkPosterior

PROCESSES = 50
EXTRA = [name for name in ("onnxruntime", "openvino") if missing(name) is not None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that draws masks and weights, and a posterior in float and quantised."""
    place = tmp_path_factory.mktemp("first")
    make = Maker((2, 6, 6))
    images = make.mask(make.conv(make.input, 8, padding=1))
    flat = make.moved(Reshape, images, shape=(8 * 6 * 6,))
    make.program(make.linear(flat, 4, grids=1)).save(place / "program.qbayes")
    task = qb.load_task("digits")
    plain = qb.network("mlp", task)
    network = qb.attach(plain, qb.method("bbb"))
    described = plain.architecture.to_json()  # pyright: ignore
    posterior = NetworkPosterior(network, [network.state_dict()], task.signature, architecture=described)
    qb.save_posterior(posterior, place / "float")
    quantised = qb.quantize(posterior, task, qb.Precision(), qb.FineTuning(epochs=0))
    qb.save_posterior(quantised, place / "quantised")
    return place


def used(folder: Path, first: str, cache: Path | None = None) -> dict[str, Any]:
    """What eight threads of a fresh process found; with an empty ``cache`` nothing is compiled yet."""
    environment = {**os.environ, "PYTHONPATH": str(Path(qbayes.__file__).parents[1])}
    if cache is not None:
        environment["XDG_CACHE_HOME"] = str(cache)
    command = [sys.executable, first_use.__file__, str(folder), first]
    run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


def check(folder: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No error, and every thread's answer is that of this process, whose one thread has used all before."""
    monkeypatch.setattr(first_use, "FOLDER", folder)
    assert found["errors"] == {name: found["errors"].get(name) for name in EXTRA}
    uses = {name: use for name, use in first_use.USES.items() if name not in EXTRA}
    assert {name: found["answers"][name] for name in uses} == {name: [use()] for name, use in uses.items()}


def test_eight_threads_start_at_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They load a program, and the kernels are not compiled yet either."""
    check(folder, used(folder, "auto", tmp_path), monkeypatch)


def test_eight_threads_that_begin_with_data_start_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(folder, used(folder, "task"), monkeypatch)


OPENVINO_AT_ONCE = """
import sys, threading
import numpy as np
from qbayes.integer.onnx.runtimes import core

def spin():
    while not done.is_set():
        pass

def use():
    start.wait()
    core()
    import openvino
    openvino.Type.f32.to_dtype()
    np.array(openvino.Tensor(np.zeros(3, np.float32)).data)

sys.setswitchinterval(1e-6)
start, done = threading.Barrier(16), threading.Event()
busy = [threading.Thread(target=spin) for _ in range(4)]
users = [threading.Thread(target=use) for _ in range(16)]
for thread in busy + users:
    thread.start()
for thread in users:
    thread.join()
done.set()
"""


@needs.installed("openvino")
def test_openvino_is_used_by_sixteen_threads_at_once() -> None:
    """Its table of numpy's types is made by one thread: else 36 of 40 such processes stood still."""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", OPENVINO_AT_ONCE], check=True, timeout=120)


@pytest.mark.full
def test_fifty_processes_of_eight_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(first_use.USES)
    for index in range(PROCESSES):
        check(folder, used(folder, names[index % len(names)]), monkeypatch)
