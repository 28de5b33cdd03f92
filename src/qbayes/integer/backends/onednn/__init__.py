"""Fast int8 on the CPU: oneDNN for convolutions and matrix products, C for everything between them.

Sums are exact int32. Their rescaling is one float32 product instead of the reference's 31-bit integer one.
Codes of up to 5 bits, and those of few sums, are the same all the same, as long as sums stay below 2^24
(``float_rounding``); of others one within about 2^−15 of a rounding edge may differ by one.
``Kernel.is_exact`` tells which it is. Where oneDNN cannot be right the op runs in exact integers, and
``report`` says why.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qbayes.integer.backends import layout
from qbayes.integer.backends.base import BACKENDS, Backend, Kernel, Tolerance
from qbayes.integer.backends.c_kernels import kernel_in_c
from qbayes.integer.backends.exact_kernel import exact_kernel
from qbayes.integer.backends.onednn.conv_linear import int8_kernel, why_not_bytes
from qbayes.integer.backends.onednn.small_linear import LinesKernel, WideLines, draws_few, is_small
from qbayes.integer.backends.onednn.trial import keep_freed_memory, why_missing
from qbayes.integer.c_library import kernels, threads_for, why_no_kernels
from qbayes.integer.ops.base import Constants, Grids, Op
from qbayes.integer.ops.weighted import Weighted
from qbayes.integer.program import Program


@BACKENDS.register("onednn")
class OneDnn(Backend):
    """int8 kernels for x86 and ARM processors."""

    name = "onednn"
    tolerance = Tolerance(1, 0.999)

    def __init__(self, program: Program, device: torch.device) -> None:
        super().__init__(program, device)
        keep_freed_memory()

    @classmethod
    def why_not(cls, program: Program, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"oneDNN's int8 kernels run on CPUs, not on {device.type}"
        return why_missing()

    def kernel(self, op: Op, grids: Grids, constants: Constants) -> Kernel:
        shapes = [self.program.values[name].shape for name in op.inputs]
        c = kernels()
        wide = why_not_bytes(grids)
        if isinstance(op, Weighted) and wide is not None and draws_few(op):
            return WideLines(op, grids, constants, wide)
        if isinstance(op, Weighted) and wide is None and c is not None and is_small(op):
            return LinesKernel(op, grids, constants, c)
        if isinstance(op, Weighted):
            return int8_kernel(op, grids, constants, shapes[0])
        return self._between(op, grids, constants, shapes)

    def arrange(self, codes: Tensor) -> Tensor:
        return codes.contiguous(memory_format=torch.channels_last) if codes.dim() == 4 else codes

    def codes_of_bytes(self, x: Tensor, table: Tensor) -> Tensor | None:
        c = kernels()
        if c is None:
            return None
        raw, last = x.contiguous(), x.dim() == 4
        out = layout.empty(tuple(raw.shape), last)
        rows, channels = raw.shape[:2]
        c.bytes(
            *(out.data_ptr(), raw.data_ptr(), rows, channels, raw.numel() // (rows * channels), last),
            *(table.data_ptr(), threads_for(raw.numel())),
        )
        return out

    def _between(
        self, op: Op, grids: Grids, constants: Constants, shapes: Sequence[tuple[int, ...]]
    ) -> Kernel:
        c = kernels()
        made = None if c is None else kernel_in_c(op, grids, constants, shapes, c)
        if made is not None:
            return made
        return exact_kernel(op, grids, constants, why_no_kernels())
