"""Noise as an input: a counter-based generator keyed by (seed, draw, site, row).

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3*, SC 2011) maps a
key and a counter of four 32-bit words to four random words:

- masks: key = seed, counter = (site, draw, row, element // 4), elements in logical NCHW order;
- weights: the same with row 0.

So float, fake-quantised and integer posteriors see the same draw, and an answer does not depend on the
batch in which its row came. Training keeps torch's own generator. On the CPU the words come from a C kernel
where a compiler exists (``noise.c_kernel``); the torch version below gives the same bits everywhere else.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from numbers import Integral

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.noise import c_kernel

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
THRESHOLD_BITS = 16
UNIFORM_BITS = 23


@dataclass(frozen=True, eq=False)
class Stream:
    """The noise of one forward pass: which seed and draw, and the index of its first row.

    ``rows`` is the number of rows of this pass (the length of a layer's input where it is not given), so that
    a layer may see them folded with another axis. ``draw`` is a tensor so that ``torch.func.vmap`` can run
    over it; ``weights`` holds, by site, the Gaussian weights already drawn for this pass.
    """

    seed: int
    draw: Tensor
    first_row: int = 0
    weights: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    rows: int | None = None


_CURRENT: ContextVar[Stream | None] = ContextVar("qbayes_noise_stream", default=None)


@contextmanager
def streaming(stream: Stream) -> Iterator[None]:
    """Within this block, stochastic layers in evaluation take their noise from ``stream``."""
    token = _CURRENT.set(stream)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> Stream | None:
    """The stream of this forward pass; None means: compute with the mean, without noise."""
    return _CURRENT.get()


def check_seed(seed: int) -> int:
    if not isinstance(seed, Integral) or not 0 <= seed < 1 << 63:
        raise BadInput(
            "the seed must be a whole number from 0 to 2^63 − 1", f"{seed!r}", "choose another seed"
        )
    return int(seed)


def keep_threshold(rate: float) -> int:
    """The 16-bit threshold below which an element is dropped: ``round(rate · 2^16)``."""
    return round(rate * (1 << THRESHOLD_BITS))


def philox(
    seed: int, counter: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds of Philox4x32 on int64 tensors that hold 32-bit words.

    A product of two words wraps modulo 2^64 in int64; its upper word is read with an arithmetic shift
    whose copies of the sign bit are masked away.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _WORD, seed >> 32 & _WORD
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (p1 >> 32 & _WORD) ^ c1 ^ k0, p1 & _WORD
        c2, c3 = (p0 >> 32 & _WORD) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = k0 + _WEYL[0] & _WORD, k1 + _WEYL[1] & _WORD
    return c0, c1, c2, c3


def words(seed: int, site: int, draws: Tensor, rows: Tensor, elements: int) -> Tensor:
    """Random 32-bit words in int64, ``(draws, rows, elements)``."""
    quads = torch.arange((elements + 3) // 4, device=draws.device)
    shape = (draws.numel(), rows.numel(), quads.numel())
    site_word = torch.full((1, 1, 1), site, device=draws.device)
    counter = (site_word, draws.view(-1, 1, 1), rows.view(1, -1, 1), quads.view(1, 1, -1))
    # a counter has 32 bits: larger numbers wrap, as they do in the C kernel.
    site_words, draw_words, row_words, quad_words = ((c & _WORD).expand(shape) for c in counter)
    out = philox(seed, (site_words, draw_words, row_words, quad_words))
    return torch.stack(out, dim=-1).flatten(-2)[..., :elements]


@torch.library.custom_op("qbayes::keep_masks", mutates_args=())
def keep_masks(
    draws: Tensor, seed: int, site: int, first_row: int, rows: int, elements: int, threshold: int
) -> Tensor:
    """``(*draws, rows, elements)`` of bool, true with probability ``1 − threshold / 2^16``.

    A custom op, so that under vmap all draws are made by one call of the compiled kernel.
    """
    shape = (*draws.shape, rows, elements)
    kernel = c_kernel.kernel() if draws.device.type == "cpu" else None
    if kernel is not None:
        return kernel.masks(draws, shape, seed, site, first_row, threshold)
    row = torch.arange(first_row, first_row + rows, device=draws.device)
    return (words(seed, site, draws, row, elements) >> (32 - THRESHOLD_BITS) >= threshold).view(shape)


@keep_masks.register_fake
def _(
    draws: Tensor, seed: int, site: int, first_row: int, rows: int, elements: int, threshold: int
) -> Tensor:
    return draws.new_empty((*draws.shape, rows, elements), dtype=torch.bool)


@keep_masks.register_vmap
def _(
    info: object,
    in_dims: tuple[int | None, ...],
    draws: Tensor,
    seed: int,
    site: int,
    first_row: int,
    rows: int,
    elements: int,
    threshold: int,
) -> tuple[Tensor, int]:
    batched = draws.movedim(in_dims[0] or 0, 0)
    return keep_masks(batched, seed, site, first_row, rows, elements, threshold), 0


def uniforms(seed: int, site: int, draws: Tensor, elements: int) -> Tensor:
    """``(draws, elements)`` in (0, 1): ``(upper 23 bits + ½) / 2^23``, exact in float32."""
    kernel = c_kernel.kernel() if draws.device.type == "cpu" else None
    if kernel is not None:
        return kernel.uniforms(draws, elements, seed, site)
    row = torch.zeros(1, dtype=torch.int64, device=draws.device)
    upper = words(seed, site, draws, row, elements)[:, 0] >> (32 - UNIFORM_BITS)
    return (upper.float() + 0.5) * 2.0**-UNIFORM_BITS


def gaussians(seed: int, site: int, draws: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal ``ε = Φ⁻¹(u)``, ``(draws, *shape)``: the weights' noise at one site."""
    count = 1
    for length in shape:
        count *= length
    return torch.special.ndtri(uniforms(seed, site, draws, count)).view(-1, *shape)


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed for one purpose, from the run's seed and what it is for."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
