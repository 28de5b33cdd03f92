"""Exported C, compiled on this machine and called from Python; the reference's answers beside it."""

import ctypes
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import needs
from qbayes.export.c.selftest import Recorded, record
from qbayes.export.targets.c import CTarget
from qbayes.integer.program import Program

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SEED = 11
_NUMBERS = itertools.count()


@functools.cache
def compilers() -> tuple[str, ...]:
    return tuple(name for name in ("gcc", "clang") if shutil.which(name))


needs_compiler = needs.unless(compilers(), needs.COMPILER)


def run(
    command: Sequence[str | Path], seconds: int = 300, environment: Mapping[str, str] | None = None
) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, (
        f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


def exported(program: Program, folder: Path, **options: str) -> Path:
    CTarget(**options).write(program, folder)
    return folder


@dataclass(frozen=True)
class Compiled:
    """A shared library with an exported network."""

    library: ctypes.CDLL
    program: Program
    input_type: type[np.integer]
    output_type: type[np.integer]
    inputs: int
    outputs: int
    codes: int

    def draws(self, inputs: np.ndarray, draws: int, seed: int) -> np.ndarray:
        """Codes ``(rows, draws, codes)``."""
        self.call("init", ctypes.c_uint64(seed))
        found = np.empty((len(inputs), draws, self.codes), self.output_type)
        for row, draw in itertools.product(range(len(inputs)), range(draws)):
            self.call("seek", ctypes.c_uint32(row), ctypes.c_uint32(draw))
            self.call("draw", *_array(inputs[row].astype(self.input_type)), *_array(found[row, draw]))
        return found

    def predict(self, inputs: np.ndarray, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, variance and entropy of every row."""
        self.call("init", ctypes.c_uint64(seed))
        mean = np.empty((len(inputs), self.outputs), np.int32)
        variance, entropy = np.empty(mean.shape, np.int64), np.empty(len(inputs), np.int64)
        for row, codes in enumerate(inputs):
            self.call(
                "predict",
                *_array(codes.astype(self.input_type)),
                ctypes.c_uint32(draws),
                _array(mean[row])[0],
                _array(variance[row])[0],
                _array(entropy[row : row + 1])[0],
                ctypes.c_size_t(self.outputs),
            )
        return mean, variance, entropy

    def predict_float(
        self, raw: np.ndarray, draws: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, variance and entropy in the task's units from raw inputs; built with NETWORK_FLOAT."""
        self.call("init", ctypes.c_uint64(seed))
        mean = np.empty((len(raw), self.outputs), np.float32)
        variance, entropy = np.empty_like(mean), np.empty(len(raw), np.float32)
        codes = np.empty(self.inputs, self.input_type)
        for row, x in enumerate(raw):
            self.call("quantize", *_array(x), *_array(codes))
            self.call(
                "predict_float",
                *_array(codes),
                ctypes.c_uint32(draws),
                _array(mean[row])[0],
                _array(variance[row])[0],
                _array(entropy[row : row + 1])[0],
                ctypes.c_size_t(self.outputs),
            )
        return mean, variance, entropy

    def call(self, name: str, *arguments: object) -> None:
        assert getattr(self.library, f"network_{name}")(*arguments) == 0


def _array(values: np.ndarray) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    assert values.flags.c_contiguous
    # the array must outlive the call: the pointer object holds it.
    pointer = values.ctypes.data_as(ctypes.c_void_p)
    return pointer, ctypes.c_size_t(values.size)


def compiled(program: Program, *flags: str, compiler: str = "", ram: str | None = None) -> Compiled:
    """The program, exported and built with warnings as errors."""
    target = CTarget(ram=ram)
    network = target.network(program)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, text in target.files(network).items():
            (folder / name).write_text(text, encoding="utf-8")
        # a library that is loaded twice under one name would be the first one again.
        made = folder / f"network{next(_NUMBERS)}.so"
        shared = ("-shared", "-fPIC", *(flags or ("-O1",)))
        run([compiler or compilers()[0], *STRICT, *shared, folder / "network.c", "-o", made])
        library = ctypes.CDLL(str(made))
    types = {"uint8_t": np.uint8, "uint16_t": np.uint16}
    kinds = types[network.input_type], types[network.output_type]
    inputs = len(network.grids) * int(np.prod(program.values[program.input].shape))
    return Compiled(library, program, *kinds, inputs, network.outputs, network.output_codes)


def differing(made: Compiled, raw: Tensor | None = None, rows: int = 3, draws: int = 5) -> list[str]:
    """What the C answers differently from the reference: nothing."""
    truth = record(made.program, rows, draws, SEED, raw)
    return [name for name, same in _compared(made, truth) if not same]


def _compared(made: Compiled, truth: Recorded) -> list[tuple[str, bool]]:
    inputs, draws = truth.inputs.numpy(), truth.outputs.shape[1]
    codes = made.draws(inputs, draws, truth.seed)
    mean, variance, entropy = made.predict(inputs, draws, truth.seed)
    pairs = {
        "codes": (codes, truth.outputs),
        "mean": (mean, truth.answer.mean),
        "variance": (variance, truth.answer.variance),
        "entropy": (entropy, truth.answer.entropy),
    }
    return [
        (name, torch.equal(torch.from_numpy(ours.astype(np.int64)), theirs.long()))
        for name, (ours, theirs) in pairs.items()
    ]
