"""Exact integer convolutions and products in float lanes, on any device.

float32 holds every integer up to 2^24, so a float32 convolution of centred codes is exact where
``Σ|w| · max|x| < 2^24`` holds for every output, whatever the order of its sums; otherwise float64 is used
(2^53). Codes of at most 8 bits are exact in bfloat16 and TF32 too, so those modes do no harm; wider ones are
always multiplied in float64. What may do harm is a kernel that transforms its inputs (Winograd) or reads
memory it never wrote: NNPACK is switched off, autocast too, and every shape and layout is checked once on
each device against float64, with inputs at the limits and memory dirtied; one that fails runs in float64. So
do shapes that oneDNN is known to get wrong (docs/decisions/0015).

On a CPU torch writes down the inputs of every output of a float64 convolution side by side: k² times the row,
for all rows. Large ones are therefore done in pieces, row by row and band by band.
"""

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from qbayes.threads import SwitchedOff

_PERTURB = -6  # mallopt
_LEAST, _MOST = 6, 22  # blocks of 2^6 … 2^22 bytes


@contextmanager
def dirty_memory(byte: int) -> Iterator[None]:
    """Within it, memory that is taken anew holds ``byte``; 0 leaves it as it comes.

    The whole process is asked: the memory of other threads is filled too, which changes no right answer.
    """
    if not byte:
        yield
        return
    # glibc hands small blocks of a thread out as they are, whatever it is asked.
    blocks = [torch.full((1 << size,), byte, dtype=torch.uint8) for size in range(_LEAST, _MOST)]
    del blocks
    fill = _perturb()
    fill(byte ^ 0xFF)  # glibc fills with the complement
    try:
        yield
    finally:
        fill(0)


@functools.cache
def _perturb() -> Callable[[int], object]:
    """``mallopt(M_PERTURB, …)`` where the C library is glibc; elsewhere nothing."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "gnu_get_libc_version"):
        return lambda byte: None
    return lambda byte: library.mallopt(_PERTURB, byte)


_FLOAT32_EXACT = 1 << 24
_LARGEST_CODE = 256  # up to here a code is exact in the 8 significant bits of bfloat16
_CHECKED_ROWS = 8
_DIRT = (0x55, 0x7F)  # of floats one tiny number, and none
LARGEST_COLUMNS = 1 << 28  # bytes of inputs that torch writes down side by side

# it can only be read by setting it.
_WITHOUT_NNPACK = SwitchedOff(
    lambda: torch.backends.nnpack.set_flags(False)[0], torch.backends.nnpack.set_flags
)
# (operation, shapes, device) → whether float32 gave the integers of float64.
_verified: dict[tuple[object, ...], bool] = {}


def exact_conv(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    x_limit: int,
    w_limit: int,
    bound: int | None = None,
) -> Tensor:
    """``Σ x_c w_c`` over each window, 1-D or 2-D, as exact integers in a float tensor.

    ``x`` (rows, channels, …) and ``weight`` (channels out, channels in / groups, …) hold integers with
    ``|x| ≤ x_limit`` and ``|w| ≤ w_limit``; ``bound`` is a tighter limit of ``|Σ x w|`` where one is known.
    Works under ``torch.vmap`` over x, over the weights, or over both.
    """
    most = bound if bound is not None else math.prod(weight.shape[1:]) * x_limit * w_limit
    narrow = _narrow(most, x_limit, w_limit)
    parameters = (list(stride), list(padding), list(dilation), groups)
    return _conv(x, weight, *parameters, x_limit if narrow else 0)


def exact_linear(
    x: Tensor, weight: Tensor, *, x_limit: int, w_limit: int, bound: int | None = None
) -> Tensor:
    """``Σ x_c w_c`` over the last axis, as exact integers in a float tensor; as ``exact_conv`` otherwise."""
    most = bound if bound is not None else weight.shape[-1] * x_limit * w_limit
    return _linear(x, weight, x_limit if _narrow(most, x_limit, w_limit) else 0)


def _narrow(most: int, x_limit: int, w_limit: int) -> bool:
    return most < _FLOAT32_EXACT and max(x_limit, w_limit) <= _LARGEST_CODE


# Custom ops, so that under vmap the tensors can be folded into one plain call whose shape can be checked.
# ``x_limit`` is 0 where float64 is needed.
@torch.library.custom_op("qbayes::exact_conv", mutates_args=())
def _conv(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    x_limit: int,
) -> Tensor:
    key = ("conv", *stride, "p", *padding, "d", *dilation, "g", groups)
    lengths = _lengths(x, weight, stride, padding, dilation)
    thin = not x.is_cuda and is_thin(x.shape[1], groups, weight.shape[2:], stride, lengths)

    def convolve(a: Tensor, b: Tensor) -> Tensor:
        return conv_in_pieces(a, b, stride, padding, dilation, groups)

    if thin and x_limit:
        return _in_float64(convolve, x, weight).float()
    return _run(convolve, x, weight, key, x_limit)


@_conv.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    x_limit: int,
) -> Tensor:
    dtype = torch.float32 if x_limit else torch.float64
    lengths = _lengths(x, weight, stride, padding, dilation)
    return x.new_empty((x.shape[0], weight.shape[0], *lengths), dtype=dtype)


@_conv.register_vmap
def _(
    info: object,
    in_dims: tuple[int | None, ...],
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    x_limit: int,
) -> tuple[Tensor, int]:
    return _over_batch(
        lambda a, b: _conv(a, b, stride, padding, dilation, groups, x_limit), x, weight, in_dims
    )


@torch.library.custom_op("qbayes::exact_linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, x_limit: int) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    out = _run(F.linear, rows, weight, ("linear",), x_limit)
    return out.view(*x.shape[:-1], weight.shape[0])


@_linear.register_fake
def _(x: Tensor, weight: Tensor, x_limit: int) -> Tensor:
    dtype = torch.float32 if x_limit else torch.float64
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)


@_linear.register_vmap
def _(
    info: object, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, x_limit: int
) -> tuple[Tensor, int]:
    return _over_batch(lambda a, b: _linear(a, b, x_limit), x, weight, in_dims)


def is_thin(
    channels_in: int, groups: int, kernel: Sequence[int], stride: Sequence[int], lengths_out: Sequence[int]
) -> bool:
    """Whether a convolution has one channel a group and an output of width 1 behind a stride.

    oneDNN gets these wrong: in int8, and in float32 where the input lies channels last.
    """
    return groups == channels_in and lengths_out[-1] == 1 and stride[-1] > 1 and kernel[-1] > 1


def conv_in_pieces(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The plain convolution of ``x``, in pieces for which torch takes ``LARGEST_COLUMNS`` bytes at most."""
    convolve: Callable[..., Tensor] = F.conv1d if weight.dim() == 3 else F.conv2d
    lengths = _lengths(x, weight, stride, padding, dilation)
    # kernels for float32 write nothing down, but for some shapes: the rows come one by one there.
    rows = x.shape[0] if x.dtype == torch.float64 else 1
    columns = rows * math.prod((*weight.shape[1:], *lengths)) * x.element_size()
    if x.is_cuda or columns <= LARGEST_COLUMNS or rows * max(lengths) <= 1:
        return convolve(x, weight, None, stride, padding, dilation, groups)
    if rows > 1:
        some = max(1, rows * LARGEST_COLUMNS // columns)
        pieces = [conv_in_pieces(r, weight, stride, padding, dilation, groups) for r in x.split(some)]
        return torch.cat(pieces)
    axis = lengths.index(max(lengths))
    some = max(1, lengths[axis] * LARGEST_COLUMNS // columns)
    padded = F.pad(x, [p for both in reversed(padding) for p in (both, both)]) if any(padding) else x
    reach = dilation[axis] * (weight.shape[2 + axis] - 1) + 1
    bands = []
    for first in range(0, lengths[axis], some):
        steps = min(some, lengths[axis] - first) - 1
        band = padded.narrow(2 + axis, first * stride[axis], steps * stride[axis] + reach)
        bands.append(conv_in_pieces(band, weight, stride, [0] * len(lengths), dilation, groups))
    return torch.cat(bands, 2 + axis)


def _lengths(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Lengths of the output's spatial axes."""
    spans = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spans]


def _over_batch(
    run: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, in_dims: tuple[int | None, ...]
) -> tuple[Tensor, int]:
    """Fold a batch of inputs into their rows; with a batch of weights, one call for each."""
    x_dim, weight_dim = in_dims[:2]
    if weight_dim is None:
        batch = x.movedim(x_dim or 0, 0)
        return run(batch.flatten(0, 1), weight).unflatten(0, batch.shape[:2]), 0
    weights = weight.movedim(weight_dim, 0)
    inputs = x.movedim(x_dim, 0) if x_dim is not None else x.expand(weights.shape[0], *x.shape)
    return torch.stack([run(a, b) for a, b in zip(inputs.unbind(), weights.unbind(), strict=True)]), 0


def _run(
    operation: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    weight: Tensor,
    key: tuple[object, ...],
    x_limit: int,
) -> Tensor:
    with torch.autocast(x.device.type, enabled=False), _WITHOUT_NNPACK:
        if not x_limit or x.numel() == 0:
            return _in_float64(operation, x, weight).to(torch.float32 if x_limit else torch.float64)
        full_key = (*key, x.shape, x.stride(), weight.shape, str(x.device))
        if full_key not in _verified:
            _verified[full_key] = _agrees(operation, x, weight.float(), x_limit)
        if _verified[full_key]:
            return operation(x.float(), weight.float())
        # the dtype stays that of the bound, whichever kernel computed it: it is exact in both.
        return _in_float64(operation, x, weight).float()


def _in_float64(operation: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return operation(x.double(), weight.double())


def _agrees(operation: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, x_limit: int) -> bool:
    """Whether float32 gives float64's integers for inputs at ±x_limit and between, on rows spread over x.

    The inputs lie in memory as ``x`` does, since a kernel is chosen by that too.
    """
    generator = torch.Generator(x.device).manual_seed(0)
    ends = (-x_limit, x_limit + 1)
    wide = torch.randint(*ends, x.shape, generator=generator, device=x.device, dtype=torch.int16)
    probe = torch.empty_like(x, dtype=torch.float32)
    probe.copy_(torch.where(wide % 2 == 0, wide.sign() * x_limit, wide))
    rows = torch.linspace(0, x.shape[0] - 1, min(_CHECKED_ROWS, x.shape[0])).long().to(x.device)
    want = operation(probe[rows].double(), weight.double())
    for byte in _DIRT if x.device.type == "cpu" else (0,):
        with dirty_memory(byte):
            fast = operation(probe, weight)
        if not torch.equal(fast[rows].double(), want):
            return False
    return True
