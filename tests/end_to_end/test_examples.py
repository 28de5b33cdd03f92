"""The examples that run exported models without qbayes: a service in Python, a program in C++."""

import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import needs
import qbayes as qb

onnxruntime = needs.package("onnxruntime")
needs.package("onnx")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SERVICE = EXAMPLES / "python-service" / "service.py"


@pytest.fixture(scope="module")
def digits_model(digits_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from qbayes.export.onnx import Options, export_onnx

    place = tmp_path_factory.mktemp("models") / "digits.onnx"
    return export_onnx(qb.Program.open(digits_program), place, Options(draws=50))[0]


@pytest.fixture(scope="module")
def service(digits_model: Path) -> Iterator[str]:
    command = [sys.executable, str(SERVICE), str(digits_model), "--port", "0"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    found = re.search(r"http://\S+", running.stdout.readline())
    assert found is not None
    yield found[0]
    running.terminate()
    running.wait(10)
    running.stdout.close()


def asked(address: str, body: bytes | None = None) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body), timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_service_answers_as_the_library_does(service: str, digits_program: Path) -> None:
    x, _ = next(qb.load_task("digits").batches("test", 4))
    status, told = asked(f"{service}/predict", json.dumps({"x": x.tolist()}).encode())
    assert status == 200
    wanted = qb.load(qb.Program.open(digits_program), backend="reference").predict(x, draws=400)
    for at, one in enumerate(told["answers"]):
        # 50 draws beside 400: five deviations of their means.
        bound = 5 * wanted.variance[at].sqrt().numpy() * np.sqrt(1 / 50 + 1 / 400) + 1e-2
        assert (np.abs(np.array(one["mean"]) - wanted.mean[at].numpy()) < bound).all()
        assert one["label"] == str(int(np.argmax(one["mean"])))
        assert one["entropy"] >= one["mutual_information"] >= 0
    flat = asked(f"{service}/predict", json.dumps({"x": x.flatten(1).tolist()}).encode())
    assert len(flat[1]["answers"]) == 4


def test_the_service_says_what_it_is(service: str) -> None:
    status, told = asked(f"{service}/")
    assert (status, told["task"], told["shape"]) == (200, "digits", [1, 8, 8])
    assert asked(f"{service}/else")[0] == 404


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no json", "must be JSON"),
        (b"{}", "must be JSON"),
        (b'{"x": [[1, 2], [3]]}', "equal length"),
        (b'{"x": [["a"]]}', "must be JSON"),
        (b'{"x": []}', "64 numbers"),
        (b'{"x": [[1, 2, 3]]}', "64 numbers; got [1, 3]"),
        (json.dumps({"x": [[float("nan")] * 64]}).encode(), "finite"),
        (b'{"x": 1}', "64 numbers"),
    ],
)
def test_the_service_refuses_wrong_inputs_in_words(service: str, body: bytes, words: str) -> None:
    status, told = asked(f"{service}/predict", body)
    assert status == 400
    assert words in told["error"]


def failed_start(*arguments: object) -> str:
    command = [sys.executable, str(SERVICE), *map(str, arguments), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def test_the_service_refuses_damaged_and_foreign_models(digits_model: Path, tmp_path: Path) -> None:
    assert "cannot be read" in failed_start(tmp_path / "none.onnx")
    (tmp_path / "m.onnx").write_bytes(digits_model.read_bytes()[:5000])
    assert "no model that runs" in failed_start(tmp_path / "m.onnx")
    content = bytearray(digits_model.read_bytes())
    wanted = hashlib.sha256(content).hexdigest()
    content[len(content) // 2] ^= 1
    (tmp_path / "m.onnx").write_bytes(content)
    assert "damaged" in failed_start(tmp_path / "m.onnx", "--sha256", wanted)


def test_the_service_wants_noise_inside(digits_program: Path, tmp_path: Path) -> None:
    from qbayes.export.onnx import Options, export_onnx

    (path,) = export_onnx(
        qb.Program.open(digits_program), tmp_path / "m.onnx", Options(noise="inputs", draws=2)
    )
    assert "--noise inside" in failed_start(path)


@pytest.fixture(scope="module")
def answer_in_cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, compiled against the headers here and the library of the Python package."""
    include = Path(os.environ.get("ORT_INCLUDE", "/usr/include/onnxruntime"))
    needs.require((include / "onnxruntime_cxx_api.h").is_file(), needs.ORT_HEADERS)
    needs.program("make", "c++")
    held = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    needs.require(held, needs.ORT_LIBRARY)
    folder = tmp_path_factory.mktemp("cpp")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / name).symlink_to(held[0])
    command = ["make", "-C", str(EXAMPLES / "onnx-cpp"), f"ORT_INCLUDE={include}", f"BUILD={folder}"]
    subprocess.run(
        [*command, f"ORT_LIB={folder / 'libonnxruntime.so'}", "CXX=c++"], check=True, capture_output=True
    )
    return folder / "answer"


def ran(program: Path, model: Path, text: str) -> subprocess.CompletedProcess[str]:
    command = [str(program), str(model)]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def test_cpp_answers_as_python_does(answer_in_cpp: Path, tmp_path: Path) -> None:
    """A network without noise, so that the numbers are equal and not only likely."""
    from qbayes.export.onnx import Options, export_onnx, open_exported

    task = qb.load_task("digits")
    posterior = qb.fit(
        qb.network("mlp", task, hidden=[16]),
        task,
        qb.method("pointwise"),
        qb.Budget(epochs=2),
        device="cpu",
        progress=False,
    )
    quantised = qb.quantize(
        posterior, task, qb.Precision(), qb.FineTuning(epochs=0), device="cpu", progress=False
    )
    (path,) = export_onnx(qb.lower(quantised), tmp_path / "m.onnx", Options(draws=1))
    x, _ = next(task.batches("test", 1))
    done = ran(answer_in_cpp, path, " ".join(str(n) for n in x.flatten().tolist()))
    assert done.returncode == 0, done.stderr
    wanted = open_exported(path)(x.float().numpy())
    best = int(wanted["mean"][0].argmax())
    assert f"answer {best} of 10: {wanted['mean'][0, best]:.6f}" in done.stdout
    assert f"entropy {wanted['entropy'][0]:.6f} nats" in done.stdout


def test_cpp_refuses_in_words(answer_in_cpp: Path, digits_model: Path, tmp_path: Path) -> None:
    assert "must have 64 numbers: got 2" in ran(answer_in_cpp, digits_model, "1 2").stderr
    assert "got 'three'" in ran(answer_in_cpp, digits_model, "1 2 three").stderr
    (tmp_path / "m.onnx").write_bytes(digits_model.read_bytes()[:5000])
    for model in (tmp_path / "m.onnx", tmp_path / "none.onnx"):
        done = ran(answer_in_cpp, model, "1")
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
