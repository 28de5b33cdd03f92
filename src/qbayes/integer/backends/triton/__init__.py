"""Fast and exact on a GPU: the codes of the reference, by int8 tensor cores and kernels of our own."""

import importlib.util
import os
from typing import ClassVar

import torch
from torch import Tensor

from qbayes.device import triton_works_on
from qbayes.integer.backends.base import BACKENDS, Backend, Kernel, Tolerance
from qbayes.integer.backends.exact_kernel import exact_kernel
from qbayes.integer.backends.triton import products
from qbayes.integer.ops.base import Constants, Grids, Op
from qbayes.integer.ops.mask import Mask
from qbayes.integer.ops.weighted import Weighted
from qbayes.integer.program import Program


@BACKENDS.register("triton")
class Triton(Backend):
    """Bytes in, bytes out: convolutions, products and masks are one kernel each, all else is exact torch."""

    name = "triton"
    tolerance = Tolerance(0, 1.0)
    # twice the reference's: bytes, where it has float lanes, in which some ops run here too.
    codes_at_once: ClassVar[dict[str, int]] = {"cpu": 1 << 20, "cuda": 1 << 27}

    @classmethod
    def why_not(cls, program: Program, device: torch.device) -> str | None:
        if device.type == "cpu" and _is_interpreted():
            return None
        if device.type != "cuda":
            return f"its kernels run on CUDA devices, not on {device.type}"
        return None if torch.cuda.is_available() and triton_works_on(device) else "Triton cannot compile here"

    def kernel(self, op: Op, grids: Grids, constants: Constants) -> Kernel:
        if isinstance(op, Mask) and products.serves_mask(op, self.program.values[op.inputs[0]].shape):
            return products.Masked(op, grids, constants)
        if not isinstance(op, Weighted):
            return exact_kernel(op, grids, constants)
        reason = products.why_not(op, grids)
        return (
            exact_kernel(op, grids, constants, reason) if reason else products.Products(op, grids, constants)
        )

    def arrange(self, codes: Tensor) -> Tensor:
        return codes.contiguous(memory_format=torch.channels_last) if codes.dim() == 4 else codes


def _is_interpreted() -> bool:
    """Whether Triton runs kernels in Python, on the CPU: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
