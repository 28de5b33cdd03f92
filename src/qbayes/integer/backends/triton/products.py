"""Programs on a GPU's int8 tensor cores, exactly: the integers of ``Op.run``, in one kernel an op.

``Weighted.run_draw``, ``Mask.run`` and ``noise.keep_masks`` define them, and the tests compare. Codes stay
bytes, with the channels last in memory; the float lanes of the reference move four times as much, in a dozen
passes. Triton comes with torch's CUDA build and with no other: it is imported with the first call.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.backends.base import Drawn, Kernel
from qbayes.integer.backends.exact_kernel import rows_of_draws
from qbayes.integer.backends.triton.product_kernels import kernels
from qbayes.integer.ops import fields
from qbayes.integer.ops.base import Constants, Grids, Noise, type_of_codes
from qbayes.integer.ops.mask import Mask
from qbayes.integer.ops.weighted import Conv, Linear, Weighted
from qbayes.noise import keep_threshold

_MIDDLE = 1 << (MOST_BITS - 1)
# products of bytes that an int32 surely holds, with the shift by 128 that is taken off again.
_MOST_PRODUCTS = (1 << 31) // (1 << 16)
# input channels that a step multiplies: the tensor cores take no fewer.
_LEAST_DEPTH, _DEPTH = 32, 64
# more columns, and the 64-bit numbers of the rescaling would not fit the registers.
_LEAST_COLUMNS, _MOST_COLUMNS = 16, 64
_ROWS, _BLOCK = 128, 1024
_LANES = torch.channels_last


@dataclass(frozen=True)
class Geometry:
    """A Conv, or a Linear as a convolution of one pixel."""

    channels: int
    out_channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @classmethod
    def of(cls, op: Weighted) -> "Geometry":
        if isinstance(op, Linear):
            return cls(op.features_in, op.features_out)
        assert isinstance(op, Conv)
        pairs = (tuple(along) for along in (op.kernel, op.stride, op.padding, op.dilation))
        return cls(op.channels_in, op.channels_out, *pairs)  # type: ignore[arg-type]

    @property
    def depth(self) -> int:
        return _DEPTH if self.channels % _DEPTH == 0 else _LEAST_DEPTH

    @property
    def channels_held(self) -> int:
        """Input channels with the zeros behind them."""
        return -(-self.channels // self.depth) * self.depth

    @property
    def columns(self) -> int:
        """Output channels of one program: a power of 2."""
        whole = 1 << max(self.out_channels - 1, 1).bit_length()
        return max(_LEAST_COLUMNS, min(_MOST_COLUMNS, whole))

    @property
    def columns_held(self) -> int:
        return -(-self.out_channels // self.columns) * self.columns

    def out_lengths(self, lengths: Sequence[int]) -> tuple[int, int]:
        axes = zip(lengths, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        down, across = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)
        return down, across


def why_not(op: Weighted, grids: Grids) -> str | None:
    """Why the kernel does not serve a weighted op; None if it does."""
    if grids.bits[0] > MOST_BITS:
        return f"its input has {grids.bits[0]} bits, not bytes"
    if isinstance(op, Conv) and (len(op.kernel) != 2 or op.groups != 1):
        return "it is no plain 2-D convolution"
    if math.prod(op.weight_shape[1:]) >= _MOST_PRODUCTS:
        return "its sums may not fit 32 bits"
    return None


class Products(Kernel):
    """A Conv or Linear: exact sums of int8 products, rescaled where they are made."""

    takes_shared = True
    is_exact = True

    def __init__(self, op: Weighted, grids: Grids, constants: Constants) -> None:
        super().__init__(op, grids, constants, "int8 tensor cores")
        self.weighted, self.geometry = op, Geometry.of(op)
        self._scales = {
            name: self._by_channel(constants[name].long())
            for name in ("multiplier", "second_multiplier", "shift", "weight_zero")
            if name in constants
        }
        self._mean: Tensor | None = None
        self._points = None if op.is_stochastic else self.pack(op.weights.draw(constants, 0, 0))

    @property
    def draws_weights(self) -> bool:
        return self._points is None

    def draw(self, seed: int, draw: int) -> Drawn:
        return self.pack(self.weighted.weights.draw(self.constants, seed, draw))

    def pack(self, drawn: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Codes as the kernel reads them, and biases with what the shift of the bytes adds."""
        first = drawn["weight"] if "weight" in drawn else drawn["mean"]
        if "mean" in drawn and self._mean is None:
            # the same in every draw.
            self._mean = self._lay_out(first)
        weight = self._lay_out(first) if self._mean is None else self._mean
        found = {"weight": weight, "bias": self._shift_bias(first, drawn["bias"])}
        if "noise" in drawn:
            none = torch.zeros_like(drawn["bias"])
            found |= {
                "noise": self._lay_out(drawn["noise"]),
                "noise_bias": self._shift_bias(drawn["noise"], none),
            }
        return found

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        x = inputs[0]
        if self._points is not None:
            return self._run(x, [(x, self._points)])
        return self._run(x, list(zip(rows_of_draws(x, noise), drawn, strict=True)))

    def _run(self, x: Tensor, parts: Sequence[tuple[Tensor, Mapping[str, Tensor]]]) -> Tensor:
        """The codes of all parts, one behind the other: each the rows of one draw and its weights."""
        shape = self.weighted.out_shape([tuple(x.shape[1:])])
        batch = sum(len(rows) for rows, _ in parts)
        kind = type_of_codes(self.grids.out_bits)
        codes = torch.empty((batch, *shape), dtype=kind, device=x.device)
        if isinstance(self.weighted, Conv):
            codes = codes.contiguous(memory_format=_LANES)
        start = 0
        for rows, weights in parts:
            self._launch(rows, weights, codes[start : start + len(rows)])
            start += len(rows)
        return codes

    def _launch(self, x: Tensor, weights: Mapping[str, Tensor], codes: Tensor) -> None:
        shape, grids, constants = self.geometry, self.grids, self.constants
        if isinstance(self.weighted, Conv):
            x, lengths = x.contiguous(memory_format=_LANES), tuple(x.shape[2:])
        else:
            x, lengths = x.contiguous(), (1, 1)
        out_lengths = shape.out_lengths(lengths)
        pixels = codes.numel() // shape.out_channels
        two, affine = "noise" in weights, "weight_zero" in self._scales
        scales = self._scales
        grid = (-(-pixels // _ROWS), shape.columns_held // shape.columns)
        with torch.cuda.device_of(x):
            kernels()[0][grid](
                *(x, weights["weight"], weights["noise"] if two else weights["weight"], codes),
                *(weights["bias"], weights["noise_bias"] if two else weights["bias"]),
                scales["weight_zero"] if affine else scales["shift"],
                scales["multiplier"],
                scales["second_multiplier"] if two else scales["multiplier"],
                *(scales["shift"], constants["low"], constants["high"], grids.zeros[0], grids.zero),
                *(pixels, *lengths, *out_lengths),
                *(shape.channels, shape.channels_held, shape.out_channels),
                *(*shape.kernel, *shape.stride, *shape.padding, *shape.dilation),
                TWO=two,
                AFFINE=affine,
                ROWS=_ROWS,
                COLUMNS=shape.columns,
                DEPTH=shape.depth,
                num_warps=8 if shape.columns == _MOST_COLUMNS else 4,
            )

    def _lay_out(self, codes: Tensor) -> Tensor:
        """int8 (output channels, taps, input channels), with zeros behind both kinds of channels."""
        shape = self.geometry
        taps = math.prod(shape.kernel)
        by_tap = codes.view(shape.out_channels, shape.channels, taps).transpose(1, 2)
        held = codes.new_zeros((shape.columns_held, taps, shape.channels_held), dtype=torch.int8)
        held[: shape.out_channels, :, : shape.channels] = by_tap
        return held

    def _shift_bias(self, codes: Tensor, bias: Tensor) -> Tensor:
        """``b + (128 − Z) Σ w``, int64 for each column."""
        more = codes.long().flatten(1).sum(1) * (_MIDDLE - self.grids.zeros[0])
        return self._by_channel(bias.long() + more)

    def _by_channel(self, numbers: Tensor) -> Tensor:
        """One number for each column: of a single one as many, behind the last channel zeros."""
        shape = self.geometry
        held = numbers.new_zeros(shape.columns_held)
        held[: shape.out_channels] = numbers
        return held


class Masked(Kernel):
    """A mask on channels, or on features: bits and codes by one kernel each."""

    is_exact = True

    def __init__(self, op: Mask, grids: Grids, constants: Constants) -> None:
        super().__init__(op, grids, constants, "one kernel for the bits, one for the codes")
        self.mask = op

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        codes = inputs[0]
        by_channel = codes.dim() == 4 and self.mask.channelwise
        codes = codes.contiguous(memory_format=_LANES) if by_channel else codes.contiguous()
        elements = codes.shape[1] if by_channel else math.prod(codes.shape[1:])
        kept = keep_bits(noise, self.mask.site, elements, keep_threshold(self.mask.rate))
        fields.fits(len(kept) == len(codes), self.mask.name, "the batch must be draws × rows", len(codes))
        out, count = torch.empty_like(codes), codes.numel()
        with torch.cuda.device_of(codes):
            kernels()[2][(-(-count // _BLOCK),)](
                *(codes, kept, out, self.grids.zeros[0], count, count // len(codes), elements), BLOCK=_BLOCK
            )
        return out


def serves_mask(op: Mask, shape: tuple[int, ...]) -> bool:
    """Whether one bit goes with each channel of a feature map, or with each element of a row."""
    return not op.channelwise or len(shape) in (1, 3)


def keep_bits(noise: Noise, site: int, elements: int, threshold: int) -> Tensor:
    """int8 ``(draws · rows, elements)``: what ``noise.keep_masks`` gives."""
    draws, quads = noise.draws, -(-elements // 4)
    lines = draws.numel() * noise.rows
    kept = torch.empty((lines, elements), dtype=torch.int8, device=draws.device)
    with torch.cuda.device_of(draws):
        kernels()[1][(-(-lines * quads // _BLOCK),)](
            *(kept, draws, noise.seed, site, noise.first_row, noise.rows, elements, quads, lines * quads),
            threshold,
            BLOCK=_BLOCK,
        )
    return kept
