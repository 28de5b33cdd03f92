"""ONNX Runtime on the CPU: every op as a model in the dialect QOperator.

Convolutions of bytes are ``QLinearConv``: int32 sums, one product in float32, so that a code next to a
rounding edge may differ by one. All other ops give exactly the reference's codes.
"""

import functools

import torch

from qbayes.integer.backends.base import BACKENDS, Backend, Kernel, Tolerance
from qbayes.integer.backends.exact_kernel import exact_kernel
from qbayes.integer.backends.onnx_ops.kernel import RuntimeKernel, bare_site
from qbayes.integer.backends.onnx_ops.trial import WHY, may_saturate, saturates
from qbayes.integer.onnx.dialect import QOPERATOR
from qbayes.integer.onnx.runtimes import missing
from qbayes.integer.ops.base import Constants, Grids, Op
from qbayes.integer.program import Program


@BACKENDS.register("onnxruntime")
class OnnxRuntime(Backend):
    """Integer kernels of ONNX Runtime."""

    name = "onnxruntime"
    tolerance = Tolerance(1, 0.999)

    @classmethod
    def why_not(cls, program: Program, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"ONNX Runtime is used on CPUs here, not on {device.type}"
        return missing("onnx", "onnxruntime")

    def kernel(self, op: Op, grids: Grids, constants: Constants) -> Kernel:
        if type(op) not in QOPERATOR.writers:
            return exact_kernel(op, grids, constants, f"nothing writes a {op.kind} as ONNX")
        shapes = [self.program.values[name].shape for name in op.inputs]
        if may_saturate(bare_site(op, grids, constants, shapes)) and products_saturate():
            return exact_kernel(op, grids, constants, WHY)
        return RuntimeKernel(op, grids, constants, shapes, QOPERATOR, "onnxruntime")


@functools.cache
def products_saturate() -> bool:
    return saturates(QOPERATOR, "onnxruntime")
