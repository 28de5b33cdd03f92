"""The C noise kernel, compiled once per user; without a compiler the torch version is used instead.

Both give the same bits (a test compares them), so only the speed depends on the compiler.
``QBAYES_NOISE_KERNEL=off`` keeps to the torch version.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from qbayes.native.folder import NoLibrary
from qbayes.native.functions import I32, I64, PTR, U32, U64, Functions
from qbayes.native.library import Source, load
from qbayes.threads import once

_SOURCE = Source(
    "noise",
    Path(__file__).with_name("philox.c"),
    included=(),
    flags=(("-std=gnu99", "-O3", "-fPIC"),),
    switch="QBAYES_NOISE_KERNEL",
)


_SIGNATURES: dict[str, tuple[object, ...]] = {
    "masks": (PTR, PTR, *(I64,) * 4, U64, U32, U32),
    "uniforms": (PTR, PTR, I64, I64, U64, U32),
    "epsilon": (PTR, PTR, I64, I64, U64, U32, PTR),
    "sample": (PTR, *(I64,) * 4, U64, U32, *(PTR,) * 5, I64, I32, I32),
}


class Kernel:
    """Typed calls into the shared library; the tensors are allocated here and filled there."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._c = Functions(library, _SIGNATURES)

    def masks(
        self, draws: Tensor, shape: tuple[int, ...], seed: int, site: int, first_row: int, threshold: int
    ) -> Tensor:
        out = torch.empty(shape, dtype=torch.bool)
        ids = draws.to(torch.int64).contiguous()
        rows, elements = shape[-2:]
        self._c.masks(
            out.data_ptr(), ids.data_ptr(), ids.numel(), first_row, rows, elements, seed, site, threshold
        )
        return out

    def uniforms(self, draws: Tensor, elements: int, seed: int, site: int) -> Tensor:
        out = torch.empty((draws.numel(), elements), dtype=torch.float32)
        ids = draws.to(torch.int64).contiguous()
        self._c.uniforms(out.data_ptr(), ids.data_ptr(), ids.numel(), elements, seed, site)
        return out

    def epsilon(self, draws: Tensor, elements: int, seed: int, site: int, table: Tensor) -> Tensor:
        """Codes of ε, int8 ``(draws, elements)``, through a table of 4096 codes."""
        out = torch.empty((draws.numel(), elements), dtype=torch.int8)
        ids = draws.to(torch.int64).contiguous()
        self._c.epsilon(
            out.data_ptr(), ids.data_ptr(), ids.numel(), elements, seed, site, table.contiguous().data_ptr()
        )
        return out

    def sampler(
        self,
        out: Tensor,
        mean: Tensor | None,
        sigma: Tensor,
        multiplier: Tensor,
        shift: Tensor,
        limits: tuple[int, int],
        table: Tensor,
        seed: int,
        site: int,
        draw: int,
    ) -> Callable[[int, int], None]:
        """``fill(first, count)``: draws that range of ``out``. Threads may fill ranges side by side."""
        means = None if mean is None else mean.to(torch.int8).contiguous()
        deviations = sigma.to(torch.uint8).contiguous()
        multipliers, shifts = multiplier.to(torch.int32).contiguous(), shift.to(torch.uint8).contiguous()
        row_length = max(sigma[0].numel(), 1)
        per_channel = int(multipliers.numel() > 1)

        def fill(first: int, count: int) -> None:
            self._c.sample(
                *(out.data_ptr(), draw, first, count, row_length, seed, site),
                *(None if means is None else means.data_ptr(), deviations.data_ptr(), table.data_ptr()),
                *(multipliers.data_ptr(), shifts.data_ptr(), per_channel, *limits),
            )

        return fill


@once
def kernel() -> Kernel | None:
    """The compiled kernel, or None where there is no compiler, no safe cache, or it is switched off."""
    try:
        return Kernel(load(_SOURCE))
    except NoLibrary:
        return None
