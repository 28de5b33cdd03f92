"""The size of a program's file against ``bits / 32`` of its float32 weights (two codes a Gaussian weight)."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from qbayes.integer.structure.cost import cost
from qbayes.lab.bench.subjects import make_subject
from qbayes.quant.precision import Precision

BITS = (8, 4, 3)
ALLOWED = 1.05
# Below this many weights the list of ops counts for more than the weights.
LEAST_WEIGHTS = 100_000


@dataclass(frozen=True)
class Size:
    """The file of one program."""

    network: str
    method: str
    bits: int
    weights: int
    codes: int
    file_bytes: int

    @property
    def float_bytes(self) -> int:
        """Its weights in float32; a Gaussian weight has two numbers."""
        return 4 * self.weights * self.codes

    @property
    def ratio(self) -> float:
        """The file over ``bits / 32`` of the float32 weights: 1 is what the codes alone would take."""
        return self.file_bytes / (self.float_bytes * self.bits / 32)

    @property
    def passes(self) -> bool | None:
        """Whether at most 5 % come on top; None for networks too small for the rule."""
        return None if self.weights < LEAST_WEIGHTS else self.ratio <= ALLOWED


def measure_size(network: str, method: str, bits: int) -> Size:
    """Save the program of one network at ``bits`` for weights and activations, and look at its file."""
    program = make_subject(network, method, Precision(weight=bits, activation=bits), members=1).program
    with tempfile.TemporaryDirectory() as folder:
        path = program.save(Path(folder) / "program.qbayes")
        written = path.stat().st_size
    codes = 2 if method == "bbb" else 1
    return Size(network, method, bits, cost(program, variance=False).weights, codes, written)
