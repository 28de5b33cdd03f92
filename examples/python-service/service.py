"""A service around an exported model; it needs Python, numpy and onnxruntime, and no qbayes.

    qbayes export mcd.qbayes mcd.onnx --target onnx --draws 20
    python service.py mcd.onnx --port 8000

``GET /`` says what the model is. ``POST /predict`` takes ``{"x": [row, …]}``, each row nested as the model's
input is, or flat, and gives one answer a row: the prediction and how sure it is. Every call draws anew.
"""

import argparse
import hashlib
import json
import math
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as errors

LARGEST_BODY = 16 << 20
# the runtime has an error of its own for each way in which a file can be wrong.
WRONG_FILE = (
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NotImplemented,
    errors.RuntimeException,
)
WANTED = ("mean", "variance", "entropy", "mutual_information")


class Refused(Exception):
    """What came cannot be answered; the text says why."""


class Model:
    """An exported model and what its metadata says."""

    def __init__(self, path: Path, sha256: str | None) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Refused(f"the model {path} cannot be read: {error.strerror}") from None
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise Refused(f"the model {path} is damaged, or another one: its sha256 is not the one given")
        try:
            self.session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        except WRONG_FILE as error:
            raise Refused(f"{path} is no model that runs: {str(error).splitlines()[0][:200]}") from None
        entries = self.session.get_modelmeta().custom_metadata_map
        if "qbayes.task" not in entries:
            raise Refused(f"{path} is not a model that qbayes exported")
        if entries.get("qbayes.noise") != "inside":
            raise Refused(f"{path} wants its noise as inputs: export it with --noise inside")
        self.outputs = [output.name for output in self.session.get_outputs() if output.name in WANTED]
        if "mean" not in self.outputs:
            raise Refused(f"{path} has no output 'mean': export it with --outputs mean,entropy")
        self.task, self.labels = entries["qbayes.task"], json.loads(entries["qbayes.labels"])
        self.kind = json.loads(entries["qbayes.likelihood"])["kind"]
        self.shape = tuple(self.session.get_inputs()[0].shape[1:])

    def about(self) -> dict[str, Any]:
        return {"task": self.task, "shape": self.shape, "labels": self.labels, "outputs": self.outputs}

    def rows(self, body: bytes) -> np.ndarray:
        """The inputs of a request, checked."""
        try:
            x = np.array(json.loads(body)["x"], dtype=np.float32)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise Refused('the body must be JSON {"x": [row, …]} with rows of equal length') from None
        count = math.prod(self.shape)
        if x.ndim < 2 or len(x) == 0 or x[0].size != count or x.shape[1:] not in (self.shape, (count,)):
            raise Refused(
                f"rows must have the shape {list(self.shape)}, or {count} numbers; got {list(x.shape)}"
            )
        if not np.isfinite(x).all():
            raise Refused("rows must be finite: NaN or infinity came")
        return x.reshape(-1, *self.shape)

    def answers(self, x: np.ndarray) -> list[dict[str, Any]]:
        found = dict(zip(self.outputs, self.session.run(self.outputs, {"x": x}), strict=True))
        told: list[dict[str, Any]] = []
        for at in range(len(x)):
            one = {name: np.asarray(values[at]).tolist() for name, values in found.items()}
            if self.kind == "categorical":
                best = int(found["mean"][at].argmax())
                one = {"label": self.labels[best], "confidence": float(found["mean"][at][best]), **one}
            told.append(one)
        return told


class Handler(BaseHTTPRequestHandler):
    """One request; ``model`` is set before the server starts."""

    model: Model
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/":
            self.reply(HTTPStatus.OK, self.model.about())
        else:
            self.reply(HTTPStatus.NOT_FOUND, {"error": "there is GET / and POST /predict"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/predict":
            self.close_connection = True
            self.reply(HTTPStatus.NOT_FOUND, {"error": "there is GET / and POST /predict"})
        elif not length.isdigit() or int(length) > LARGEST_BODY:
            self.close_connection = True
            self.reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"at most {LARGEST_BODY} bytes"})
        else:
            try:
                answers = self.model.answers(self.model.rows(self.rfile.read(int(length))))
                self.reply(HTTPStatus.OK, {"answers": answers})
            except Refused as refused:
                self.reply(HTTPStatus.BAD_REQUEST, {"error": str(refused)})

    def reply(self, status: HTTPStatus, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> int:
    parser = argparse.ArgumentParser(description="Serve an exported model.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--sha256", help="refuse the file unless it has this hash")
    given = parser.parse_args()
    try:
        Handler.model = Model(given.model, given.sha256)
        server = ThreadingHTTPServer((given.host, given.port), Handler)
    except (Refused, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"serving '{Handler.model.task}' on http://{given.host}:{server.server_port}\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
