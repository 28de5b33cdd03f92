"""The reference: ``Op.run`` for everything, exact integers on CPU and CUDA; the definition of truth."""

import torch

from qbayes.integer.backends.base import BACKENDS, Backend, Kernel, Tolerance
from qbayes.integer.backends.exact_kernel import exact_kernel
from qbayes.integer.ops.base import Constants, Grids, Op
from qbayes.integer.program import Program


@BACKENDS.register("reference")
class Reference(Backend):
    """Exact integers, in float lanes where a bound proves them exact."""

    name = "reference"
    tolerance = Tolerance(0, 1.0)

    @classmethod
    def why_not(cls, program: Program, device: torch.device) -> str | None:
        if device.type not in cls.codes_at_once:
            return f"exact integers in float lanes are proven for CPU and CUDA only, not for {device.type}"
        return None

    def kernel(self, op: Op, grids: Grids, constants: Constants) -> Kernel:
        return exact_kernel(op, grids, constants)
