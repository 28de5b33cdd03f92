"""How long does one draw take in exported C, beside the ``onednn`` backend at batch 1?

LeNet on 1×28×28 and the slim ResNet-18 on 3×32×32 pixels, at W8A8 and W4A4, random weights (time does not
depend on them). The C is built with ``-O3 -march=native`` and runs on one thread; so does the backend, called
as a user would, by ``predict`` with one draw. Both run in turn in one process; the ratio is that of the
fastest runs.

    python benchmarks/c_export.py [--seconds 3] [--compiler gcc]
"""

import argparse
import ctypes
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

from qbayes.export.c.selftest import record
from qbayes.export.targets.c import CTarget
from qbayes.integer.posterior import load
from qbayes.integer.program import Program
from qbayes.lab.bench.measure import Run, interleaved, stopwatch
from qbayes.lab.bench.subjects import make_subject
from qbayes.quant.precision import Precision

CASES = [
    (network, method, bits)
    for network in ("lenet", "resnet18-slim")
    for method in ("pointwise", "mcd", "bbb")
    for bits in (8, 4)
]
FLAGS = ("-std=c99", "-O3", "-march=native", "-shared", "-fPIC")


def c_draw(program: Program, raw: torch.Tensor, compiler: str, folder: Path) -> Run:
    """One draw by a call of the compiled network, after its codes were compared with the reference's."""
    target = CTarget()
    network = target.network(program)
    for name, text in target.files(network).items():
        (folder / name).write_text(text, encoding="utf-8")
    made = folder / "network.so"
    subprocess.run([compiler, *FLAGS, str(folder / "network.c"), "-o", str(made)], check=True)
    library = ctypes.CDLL(str(made))
    truth = record(program, 1, 1, seed=0, raw=raw)
    inputs = truth.inputs[0].numpy().astype(np.uint8)
    output = np.zeros(network.output_codes, np.uint8)
    arguments = (
        ctypes.c_void_p(inputs.ctypes.data),
        ctypes.c_size_t(inputs.size),
        ctypes.c_void_p(output.ctypes.data),
        ctypes.c_size_t(output.size),
    )
    library.network_init(ctypes.c_uint64(0))
    assert library.network_draw(*arguments) == 0
    assert (output == truth.outputs[0, 0].numpy()).all(), "the C does not give the reference's bits"
    held = (inputs, output)

    def run() -> object:
        library.network_draw(*arguments)
        return held

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--compiler", default="gcc")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'network':15} {'method':10} {'bits':5} {'C, µs':>9} {'onednn, µs':>11} {'C / onednn':>11}")
    rows = []
    for network, method, bits in CASES:
        subject = make_subject(network, method, Precision(weight=bits, activation=bits))
        raw = subject.network.rows(1, seed=1)
        posterior = load(subject.program, "onednn")
        with tempfile.TemporaryDirectory() as scratch:
            ways = {
                "c": c_draw(subject.program, raw, asked.compiler, Path(scratch)),
                "onednn": lambda p=posterior, x=raw: p.predict(x, draws=1),
            }
            turns = {name: lambda run=run: [stopwatch(run)] for name, run in ways.items()}
            times = interleaved(turns, asked.seconds, least_rounds=10)
        c, fast = (1e6 * min(times[name]) for name in ("c", "onednn"))
        row = {"network": network, "method": method, "bits": bits, "c_us": round(c, 1)}
        rows.append(row | {"onednn_us": round(fast, 1), "ratio": round(c / fast, 2)})
        print(f"{network:15} {method:10} W{bits}A{bits:<2} {c:9,.0f} {fast:11,.0f} {c / fast:11.2f}")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
