"""The C kernels of a Gaussian layer's draw in training on a CPU, compiled once per user.

Without a compiler torch's operations stand in. ``QBAYES_DRAW_KERNELS=off`` keeps to torch.
"""

from pathlib import Path

from qbayes.native.functions import F32, I32, I64, PTR, Functions, load_or_warn, training_source
from qbayes.threads import once

_SOURCE = training_source("draw", Path(__file__).with_name("draw.c"), "QBAYES_DRAW_KERNELS")
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "draw": (PTR, PTR, PTR, PTR, I32, I64, F32, I32),
    "differentiate_draw": (PTR, PTR, PTR, PTR, I32, I64, F32, I32),
    "differentiate_square": (PTR, PTR, PTR, I32, I64, I32),
}


@once
def compiled_draws() -> Functions | None:
    """The compiled kernels; None without a compiler or a safe cache, which is said, or switched off."""
    library = load_or_warn(_SOURCE, "training of Gaussian weights")
    return None if library is None else Functions(library, _SIGNATURES)
