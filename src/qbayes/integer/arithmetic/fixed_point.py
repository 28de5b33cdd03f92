"""Real multipliers as integers: ``M ≈ m · 2^−s`` with a 31-bit ``m``, and rounding shifts, ties to even.

A requantisation ``round(v · M)`` then needs one product in int64 and one shift (Jacob et al., *Quantization
and training of neural networks for efficient integer-arithmetic-only inference*, CVPR 2018), here with round
half to even, so that it is unbiased and equals ``torch.round`` on the exact product.
"""

import torch
from torch import Tensor

from qbayes.errors import BadInput

MULTIPLIER_BITS = 31
SHARED_BITS = 30  # a sum of two products int32 · m stays below 2^62
LARGEST_SHIFT = 62


def fixed_point(multipliers: Tensor) -> tuple[Tensor, Tensor]:
    """``(m, s)`` in int32 with ``M ≈ m · 2^−s``: ``2^30 ≤ |m| < 2^31`` unless ``s`` would leave 0 … 62.

    A tiny M keeps ``s = 62`` and a smaller m; what rounds to nothing is ``(0, 0)``.
    """
    real_multipliers = _check(multipliers)
    shift = _shift_for(real_multipliers, MULTIPLIER_BITS)
    codes = _scale(real_multipliers, shift)
    overflown = codes.abs() == 1 << MULTIPLIER_BITS  # the mantissa rounded up to the next power of two
    shift = torch.where(overflown, shift - 1, shift)
    codes = torch.where(overflown, codes // 2, codes)
    if bool((shift < 0).any()) or bool((codes.abs() >= 1 << MULTIPLIER_BITS).any()):
        raise _too_large(multipliers)
    return codes.to(torch.int32), torch.where(codes == 0, 0, shift).to(torch.int32)


def shared_shifts(multipliers: Tensor) -> tuple[Tensor, Tensor]:
    """``(m, s)`` for multipliers ``(k, …)`` whose k rows share a shift: m like M, s without the first axis.

    The largest |M| of each column gets up to 30 bits, so that a sum of two products with int32 stays below
    2^62.
    """
    real_multipliers = _check(multipliers)
    shift = _shift_for(real_multipliers.abs().amax(0), SHARED_BITS).clamp(min=0)
    codes = _scale(real_multipliers, shift.expand_as(real_multipliers))
    if bool((codes.abs() >= 1 << MULTIPLIER_BITS).any()):
        raise _too_large(multipliers)
    return codes.to(torch.int32), torch.where((codes == 0).all(0), 0, shift).to(torch.int32)


def shared_shift(multipliers: Tensor) -> tuple[Tensor, int]:
    """``(m, s)`` with one shift for all; the largest |M| gets up to 30 bits."""
    codes, shift = shared_shifts(multipliers.reshape(-1))
    return codes.view(multipliers.shape), int(shift)


def real(multiplier: Tensor, shift: Tensor | int) -> Tensor:
    """``m · 2^−s`` in float64, exactly."""
    places = torch.as_tensor(shift, dtype=torch.int64, device=multiplier.device)  # unsigned ones would wrap
    return multiplier.to(torch.float64) * _powers_of_two(-places)


def rescale(v: Tensor, multiplier: Tensor | int, shift: Tensor | int) -> Tensor:
    """``round(v · m / 2^s)``, ties to even, in int64; the caller guarantees ``|v · m| < 2^62``."""
    factor = multiplier.to(torch.int64) if isinstance(multiplier, Tensor) else multiplier
    return round_shift(v.to(torch.int64) * factor, shift)


def round_shift(v: Tensor, shift: Tensor | int) -> Tensor:
    """``round(v / 2^s)``, ties to even, for any int64 v and ``0 ≤ s ≤ 62``.

    With ``q = ⌊v / 2^s⌋`` and the rest ``0 ≤ r < 2^s``: one more where ``2r > 2^s``, or ``2r = 2^s`` and q is
    odd.
    """
    places = torch.as_tensor(shift, dtype=torch.int64, device=v.device)
    one = torch.ones((), dtype=torch.int64, device=v.device) << places
    quotient = v >> places
    rest = v & (one - 1)
    return quotient + (2 * rest + (quotient & 1) > one)


def _check(multipliers: Tensor) -> Tensor:
    if not bool(torch.isfinite(multipliers).all()):
        raise BadInput(
            "a multiplier must be finite",
            f"{multipliers[~torch.isfinite(multipliers)].flatten()[0].item()}",
            "look for a scale that is zero, infinite or NaN",
        )
    return multipliers.to(torch.float64)


def _shift_for(multipliers: Tensor, bits: int) -> Tensor:
    """The shift at which ``|M| · 2^s`` has ``bits`` bits, at most 62; 0 for a multiplier of 0."""
    exponent = torch.frexp(multipliers).exponent.to(torch.int64)
    return torch.where(multipliers == 0, 0, (bits - exponent).clamp(max=LARGEST_SHIFT))


def _scale(multipliers: Tensor, shift: Tensor) -> Tensor:
    # a shift below 0 is refused by the caller; the product only has to stay an int64.
    product = multipliers * _powers_of_two(shift.clamp(min=-LARGEST_SHIFT))
    return product.round().clamp(-(2.0**62), 2.0**62).long()


def _powers_of_two(exponents: Tensor) -> Tensor:
    """``2^k`` for ``|k| ≤ 62``, from a table: ``torch.pow`` may be an ulp off."""
    powers = [2.0**k for k in range(-LARGEST_SHIFT, LARGEST_SHIFT + 1)]
    table = torch.tensor(powers, dtype=torch.float64, device=exponents.device)
    return table[exponents.to(torch.int64) + LARGEST_SHIFT]


def _too_large(multipliers: Tensor) -> BadInput:
    return BadInput(
        "a multiplier must be smaller than 2^31 in magnitude",
        f"{float(multipliers.abs().max()):.6g}",
        "look for an output scale that is far too small for its inputs",
    )
