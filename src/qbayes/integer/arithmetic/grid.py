r"""Affine arithmetic: real numbers as whole codes on a uniform grid.

.. math:: f = S\,(q - Z), \qquad q = \mathrm{clamp}(Z + \mathrm{round}(f / S),\; q_{low},\; q_{high})

Pure functions on tensors, per tensor (a scalar S) or per channel (one S for each). The range always
contains 0, so that 0 has an exact code: zero padding, ReLU and masks then cost nothing. Rounding is to
nearest with ties to even, and happens before Z is added, as the integer ops do it.

The straight-through gradient with respect to S is that of learned step sizes (Esser, McKinstry, Bablani,
Appuswamy and Modha, ICLR 2020).
"""

import torch
from torch import Tensor

from qbayes.errors import BadInput

FEWEST_BITS, MOST_BITS = 2, 8
# of a network's answers, which are multiplied with nothing, and of its input, where the sums of the layers
# that read it have room: these need not fit a byte.
MOST_WIDE_BITS = 16
# the product of two scales of this size is still a normal float32 (2^-120 against 2^-126).
SMALLEST_SCALE = 2.0**-60
# 2^16 steps of it are still finite in float32.
LARGEST_SCALE = 2.0**110
# any scale is exact for a tensor of zeros; this one keeps biases fine where it is the scale of weights, and
# multipliers below 2^31 where it is the scale of an output.
EMPTY_SCALE = 2.0**-20
# a code: of one network, or of each network of a stack with bits of its own.
Code = int | Tensor


def code_range(bits: int, signed: bool, symmetric: bool) -> tuple[int, int]:
    """The smallest and the largest code of ``bits`` bits.

    Unsigned (activations): 0 … 2^n − 1. Signed (weights): −2^(n−1) … 2^(n−1) − 1, without the first where
    the grid is symmetric. Only unsigned codes, those of a network's input and answers, may have more than 8
    bits.
    """
    most = MOST_BITS if signed else MOST_WIDE_BITS
    if isinstance(bits, bool) or not isinstance(bits, int) or not FEWEST_BITS <= bits <= most:
        raise BadInput(
            f"{'signed' if signed else 'unsigned'} codes must have {FEWEST_BITS} … {most} bits",
            f"{bits!r}",
            "choose a width between them",
        )
    if not signed:
        return 0, 2**bits - 1
    half = 2 ** (bits - 1)
    return (1 - half if symmetric else -half), half - 1


def affine_grid(
    low: Tensor, high: Tensor, bits: int, *, signed: bool, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Scale and zero-point (both float32, the second whole) of the grid that covers ``[low, high]`` and 0.

    Any range gives a positive, finite scale: infinite ends become the largest one, an empty range (also
    ``low > high``, of no data) ``EMPTY_SCALE``. A symmetric grid has Z = 0 where it is signed or the range
    is not negative, and Z = 2^(n−1) where it is unsigned and the range has negative numbers.
    """
    first, last = code_range(bits, signed, symmetric)
    return grid_on_codes(low, high, first, last, signed=signed, symmetric=symmetric)


def grid_on_codes(
    low: Tensor, high: Tensor, first: Code, last: Code, *, signed: bool, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """As ``affine_grid``, for codes from ``first`` to ``last``."""
    # float64: the width of a range of float32 numbers may be no float32.
    low = low.double().clamp(max=0.0)
    high = high.double().clamp(min=0.0)
    if symmetric:
        # 2^(n−1), of 2^n − 1.
        centre = 0 if signed else (last + 1) // 2
        below = -low / (centre - first)
        both = torch.maximum(high / (last - centre), below)
        positive = low == 0 if not signed else torch.zeros_like(low, dtype=torch.bool)
        scale = _usable(torch.where(positive, high / (last - first), both))
        return scale, torch.where(positive, first, centre).float()
    scale = _usable((high - low) / (last - first))
    zero = first - torch.round(low / scale.double())
    # two numbers or two tensors: torch takes both, its types tell of one.
    return scale, zero.clamp(first, last).float()  # pyright: ignore[reportArgumentType, reportCallIssue]


def _usable(scale: Tensor) -> Tensor:
    """``scale`` as a positive, finite float32."""
    scale = torch.where(scale == 0, EMPTY_SCALE, scale)
    return scale.clamp(SMALLEST_SCALE, LARGEST_SCALE).float()


def quantize(x: Tensor, scale: Tensor, zero_point: Tensor, low: Code, high: Code) -> Tensor:
    """Codes (whole numbers in a float tensor) of ``x``; what lies outside the range gets the end's code."""
    return _steps(_wide(x), scale, zero_point, low, high).round() + zero_point


def dequantize(codes: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """The real numbers S (q − Z) that codes stand for."""
    return scale * (codes - zero_point)


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, low: Code, high: Code) -> Tensor:
    r"""``dequantize(quantize(x))``, with a gradient that passes straight through the rounding.

    With v = x / S and the whole numbers a = low − Z, b = high − Z:

    .. math::
        \partial y/\partial x = [a \le v \le b], \qquad
        \partial y/\partial S = \mathrm{round}(v) - v \text{ inside},\; a \text{ below},\; b \text{ above}
    """
    steps = _steps(_wide(x), scale, zero_point, low, high)
    # both differences are exact in floating point, so the value is the rounded number itself.
    rounded = steps + (steps.round() - steps).detach()
    return (rounded * scale).to(x.dtype)


def _steps(x: Tensor, scale: Tensor, zero_point: Tensor, low: Code, high: Code) -> Tensor:
    """How many steps ``x`` lies from 0, held within the codes."""
    return (x / scale).clamp(low - zero_point, high - zero_point)


def _wide(x: Tensor) -> Tensor:
    """Half-precision numbers in float32: a quotient in bfloat16 would be rounded before its time."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def scale_gradient(scale: Tensor, factor: Tensor | float) -> Tensor:
    """``scale`` itself, whose gradient is multiplied by ``factor``."""
    return scale.detach() + (scale - scale.detach()) * factor


def per_channel(t: Tensor, ndim: int, axis: int) -> Tensor:
    """A scalar as it is; one number a channel, shaped to stand along ``axis`` of ``ndim`` axes."""
    if t.ndim == 0:
        return t
    shape = [1] * ndim
    shape[axis] = -1
    return t.reshape(shape)
