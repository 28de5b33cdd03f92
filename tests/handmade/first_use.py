"""Eight threads that use the library for the first time, all at once, in a process that has done nothing yet.

``python first_use.py FOLDER FIRST``: FOLDER holds ``program.qbayes`` and the posteriors ``float`` and
``quantised``. The uses come one after the other, each by all threads at once, FIRST being the first one.
Prints JSON: what went wrong, and the different answers of each use.
"""

import hashlib
import json
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = 8
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()


def digest(posterior: Any) -> str:
    """Of two draws for three rows that are the same everywhere."""
    import torch

    shape = (3, *posterior.signature.input_shape)
    rows = torch.linspace(-2, 2, math.prod(shape)).view(shape)
    drawn = posterior.predict(rows, draws=2).draws
    # in float the last bits depend on what ran before.
    return hashlib.sha256(drawn.mul(1e4).round().to(torch.int64).numpy().tobytes()).hexdigest()


def load(backend: str) -> str:
    import qbayes as qb

    return digest(qb.load(FOLDER / "program.qbayes", backend))


def load_posterior(name: str) -> str:
    import qbayes as qb

    return digest(qb.load_posterior(FOLDER / name))


def method() -> str:
    import qbayes as qb

    return repr([qb.method("mcd", rate=0.2), qb.method("bbb"), qb.method("pointwise")])


def network() -> str:
    import qbayes as qb

    return str(qb.network("mlp", qb.load_task("digits")))


def task() -> str:
    import qbayes as qb

    return json.dumps(qb.load_task("digits").signature.to_json())


def precision() -> str:
    import qbayes as qb

    return repr(qb.Precision(weight=4, activation=5, weight_range="mse"))


def unknown() -> str:
    import qbayes as qb

    try:
        qb.method("mcdd")
    except qb.BadInput as error:
        return str(error)
    return "no error"


USES: dict[str, Callable[[], str]] = {
    "auto": lambda: load("auto"),
    "method": method,
    "network": network,
    "task": task,
    "onnxruntime": lambda: load("onnxruntime"),
    "openvino": lambda: load("openvino"),
    "reference": lambda: load("reference"),
    "float": lambda: load_posterior("float"),
    "quantised": lambda: load_posterior("quantised"),
    "precision": precision,
    "unknown": unknown,
}


def at_once(use: Callable[[], str]) -> tuple[list[str], list[str]]:
    """The errors and the different answers of all threads."""
    ready = threading.Barrier(THREADS)
    errors: list[str] = []
    answers: list[str] = []

    def go() -> None:
        ready.wait()
        try:
            answers.append(use())
        except BaseException as error:  # noqa: BLE001  (all of them are what is looked for)
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=go) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors, sorted(set(answers))


def main() -> None:
    first = sys.argv[2]
    order = [first, *(name for name in USES if name != first)]
    found = {name: at_once(USES[name]) for name in order}
    errors = {name: wrong for name, (wrong, _) in found.items() if wrong}
    answers = {name: given for name, (_, given) in found.items()}
    json.dump({"errors": errors, "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()
