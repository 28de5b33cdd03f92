"""Codes of n bits, packed densely: what a constant takes in a file.

Up to 8 bits the codes are one stream, least significant bit first: code ``i`` takes the bits ``i·n … i·n +
n − 1``, negative ones in two's complement, and the last byte is filled with zeros. Wider integers
(multipliers, biases) take ``⌈n / 8⌉`` bytes each, little endian. There is exactly one way to pack a tensor:
bits that carry nothing must be zeros (or copies of the sign), else reading refuses.
"""

import numpy as np
import torch
from torch import Tensor

from qbayes.errors import BadFile, BadInput

WIDEST = 32
_STREAM_BITS = 8
_GROUP = 8  # codes: n bits each make exactly n bytes, which fit one 64-bit word


def packed_bytes(count: int, bits: int) -> int:
    """The bytes that ``count`` codes of ``bits`` bits take."""
    _check_width(bits)
    return (count * bits + 7) // 8 if bits <= _STREAM_BITS else count * ((bits + 7) // 8)


def code_range(bits: int, signed: bool) -> tuple[int, int]:
    """Least and greatest integer of ``bits`` bits: ``−2^(n−1) … 2^(n−1) − 1``, or ``0 … 2^n − 1``."""
    _check_width(bits)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def code_type(bits: int, signed: bool) -> torch.dtype:
    """The smallest type of torch that holds every code: what ``unpack`` answers with."""
    if bits <= 8:
        return torch.int8 if signed else torch.uint8
    if bits <= 16:
        return torch.int16 if signed else torch.int32
    return torch.int32 if signed or bits < WIDEST else torch.int64


def pack(codes: Tensor, bits: int, signed: bool) -> bytes:
    """The bytes of ``codes`` (integers of any type and shape), in their logical order."""
    low, high = code_range(bits, signed)
    flat = codes.detach().cpu().contiguous().flatten().numpy()
    if flat.dtype.kind not in "iu":
        raise BadInput("codes must be integers", f"{codes.dtype}", "round them, or quantise the tensor first")
    if flat.size and (flat.min() < low or flat.max() > high):
        raise BadInput(
            f"{'signed' if signed else 'unsigned'} codes of {bits} bits must lie in {low} … {high}",
            f"{flat.min()} … {flat.max()}",
            "clamp the codes, or store them with more bits",
        )
    return _pack_stream(flat, bits) if bits <= _STREAM_BITS else _pack_bytes(flat, bits)


def _pack_stream(flat: np.ndarray, bits: int) -> bytes:
    groups = -(-flat.size // _GROUP)
    # two's complement modulo 2^n: the cast wraps, the mask keeps the lower n bits.
    padded = np.zeros(groups * _GROUP, dtype=np.uint8)
    padded[: flat.size] = flat.astype(np.uint8) & np.uint8((1 << bits) - 1)
    words = np.zeros(groups, dtype="<u8")
    for place, column in enumerate(padded.reshape(groups, _GROUP).T):
        words |= column.astype(np.uint64) << np.uint64(place * bits)
    stream = words.view(np.uint8).reshape(groups, 8)[:, :bits]
    return stream.tobytes()[: packed_bytes(flat.size, bits)]


def _pack_bytes(flat: np.ndarray, bits: int) -> bytes:
    wide = flat.astype("<i8").view(np.uint8).reshape(-1, 8)
    return wide[:, : (bits + 7) // 8].tobytes()


def unpack(data: bytes | memoryview, count: int, bits: int, signed: bool) -> Tensor:
    """The ``count`` codes that ``pack`` wrote, as a vector of ``code_type(bits, signed)``."""
    if len(data) != packed_bytes(count, bits):
        raise BadFile(
            f"{count} codes of {bits} bits must take {packed_bytes(count, bits)} bytes",
            f"{len(data)}",
            "the file is damaged: restore or export it again",
        )
    stream = np.frombuffer(data, dtype=np.uint8)
    if bits <= _STREAM_BITS:
        return torch.from_numpy(_unpack_stream(stream, count, bits, signed))
    return torch.from_numpy(_unpack_bytes(stream, bits, signed)).to(code_type(bits, signed))


def _unpack_stream(stream: np.ndarray, count: int, bits: int, signed: bool) -> np.ndarray:
    groups = -(-count // _GROUP)
    padded = np.zeros(groups * bits, dtype=np.uint8)
    padded[: stream.size] = stream
    parts = np.zeros((groups, 8), dtype=np.uint8)
    parts[:, :bits] = padded.reshape(groups, bits)
    words = parts.view("<u8")[:, 0]
    codes = np.empty((groups, _GROUP), dtype=np.uint8)
    for place in range(_GROUP):
        codes[:, place] = (words >> np.uint64(place * bits)) & np.uint64((1 << bits) - 1)
    flat = codes.reshape(-1)
    if flat[count:].any():
        raise _unused_bits()
    if not signed:
        return flat[:count].copy()
    # the sign bit moved to bit 7 and back, arithmetically, copies it into the bits above.
    shift = 8 - bits
    return (flat[:count] << np.uint8(shift)).view(np.int8) >> np.int8(shift)


def _unpack_bytes(stream: np.ndarray, bits: int, signed: bool) -> np.ndarray:
    width = (bits + 7) // 8
    parts = np.zeros((stream.size // width, 8), dtype=np.uint8)
    parts[:, :width] = stream.reshape(-1, width)
    shift = np.int64(64 - 8 * width)
    codes = parts.view("<i8")[:, 0]
    codes = codes << shift >> shift if signed else codes
    low, high = code_range(bits, signed)
    if codes.size and (codes.min() < low or codes.max() > high):
        raise _unused_bits()
    return codes


def _unused_bits() -> BadFile:
    return BadFile(
        "bits that carry no code must be as packing leaves them",
        "others",
        "the file is damaged or was not written by qbayes: restore or export it again",
    )


def _check_width(bits: int) -> None:
    if not 1 <= bits <= WIDEST:
        raise BadInput(f"codes must have 1 to {WIDEST} bits", f"{bits}", "choose another width")
