"""OpenVINO on the CPU: convolutions and matrix products as models in the dialect QDQ, run in int8.

Ops between them run in the compiled kernels of ``onednn``: they are the same integers, and OpenVINO takes a
tenth of a second to compile a model, however small. An exported file runs them in OpenVINO too.
"""

import functools
import threading
from typing import Any

import numpy as np
import torch

from qbayes.integer.backends.base import BACKENDS, Backend, Kernel, Tolerance
from qbayes.integer.backends.reference import exact_kernel
from qbayes.integer.compiled import compiled_kernel
from qbayes.integer.kernels_build import kernels, why_no_kernels
from qbayes.integer.onnx.dialect import QDQ
from qbayes.integer.onnx.extras import missing
from qbayes.integer.onnx.kernel import Feeds, Run, RuntimeKernel, bare_site
from qbayes.integer.onnx.saturation import WHY, may_saturate, saturates
from qbayes.integer.onnx.single import OUTPUT
from qbayes.integer.onnx.trial import is_right
from qbayes.integer.ops.base import Constants, Grids, Op
from qbayes.integer.ops.weighted import Weighted
from qbayes.integer.program import Program
from qbayes.threads import once

# bfloat16, the default on some processors, would not hold the codes.
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
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
            return self._weighted(op, grids, constants, shapes)
        c = kernels()
        made = None if c is None else compiled_kernel(op, grids, constants, shapes, c)
        return made or exact_kernel(op, grids, constants, why_no_kernels())

    def _weighted(
        self, op: Weighted, grids: Grids, constants: Constants, shapes: list[tuple[int, ...]]
    ) -> Kernel:
        def make(grids: Grids, constants: Constants) -> Kernel:
            return RuntimeKernel(op, grids, constants, shapes, QDQ, compiled, "openvino")

        made = make(grids, constants)
        if is_right(make, made, shapes[0], self.tolerance.codes):
            return made
        return exact_kernel(op, grids, constants, WRONG)


@functools.cache
def products_saturate() -> bool:
    return saturates(QDQ, compiled)


@once
def core() -> Any:
    """OpenVINO itself, once for the process and never let go.

    Each of its cores gives the thread a stack for signals; when several of them end in another order than
    they began, the thread is left with one that is gone, and the next signal (Ctrl-C) ends the process.
    """
    import openvino

    return openvino.Core()


def compiled(model: bytes) -> Run:
    """A compiled model that any thread may run: each has a request of its own."""
    options = {**EXACT, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    made: Any = core().compile_model(core().read_model(model, b""), "CPU", options)
    own = threading.local()

    def run(feeds: Feeds) -> np.ndarray:
        if not hasattr(own, "request"):
            own.request = made.create_infer_request()
        found = own.request.infer(dict(feeds), share_inputs=True)
        return np.array(found[OUTPUT])

    return run
