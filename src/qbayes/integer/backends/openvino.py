"""OpenVINO on the CPU: convolutions and matrix products as models in the dialect QDQ, run in int8.

Ops between them run in the compiled kernels of ``onednn``: they are the same integers, and OpenVINO takes a
tenth of a second to compile a model, however small. An exported file runs them in OpenVINO too.
"""

import functools

import torch

from qbayes.integer.backends.base import BACKENDS, Backend, Kernel, Tolerance
from qbayes.integer.backends.c_kernels import kernel_in_c
from qbayes.integer.backends.exact_kernel import exact_kernel
from qbayes.integer.backends.onnx_ops.kernel import RuntimeKernel, bare_site
from qbayes.integer.backends.onnx_ops.trial import WHY, is_right, may_saturate, saturates
from qbayes.integer.c_library import kernels, why_no_kernels
from qbayes.integer.onnx.dialect import QDQ
from qbayes.integer.onnx.runtimes import missing
from qbayes.integer.ops.base import Constants, Grids, Op
from qbayes.integer.ops.weighted import Weighted
from qbayes.integer.program import Program

WRONG = "OpenVINO's kernel for it fails its trial on this processor"


@BACKENDS.register("openvino")
class OpenVino(Backend):
    """int8 kernels of OpenVINO."""

    name = "openvino"
    tolerance = Tolerance(1, 0.999)

    @classmethod
    def why_not(cls, program: Program, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"OpenVINO is used on CPUs here, not on {device.type}"
        return missing("onnx", "openvino")

    def kernel(self, op: Op, grids: Grids, constants: Constants) -> Kernel:
        shapes = [self.program.values[name].shape for name in op.inputs]
        if may_saturate(bare_site(op, grids, constants, shapes)) and products_saturate():
            return exact_kernel(op, grids, constants, WHY)
        if isinstance(op, Weighted):
            return self._weighted_kernel(op, grids, constants, shapes)
        c = kernels()
        made = None if c is None else kernel_in_c(op, grids, constants, shapes, c)
        return made or exact_kernel(op, grids, constants, why_no_kernels())

    def _weighted_kernel(
        self, op: Weighted, grids: Grids, constants: Constants, shapes: list[tuple[int, ...]]
    ) -> Kernel:
        def make(grids: Grids, constants: Constants) -> Kernel:
            return RuntimeKernel(op, grids, constants, shapes, QDQ, "openvino")

        made = make(grids, constants)
        if is_right(make, made, shapes[0], self.tolerance.codes):
            return made
        return exact_kernel(op, grids, constants, WRONG)


@functools.cache
def products_saturate() -> bool:
    return saturates(QDQ, "openvino")
