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
_CODES_AT_ONCE = 1 << 20  # in reading: wide ones take 8 bytes each on the way
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
    codes, right = unpack_rows(np.frombuffer(data, dtype=np.uint8)[None], count, bits, signed)
    if not right.all():
        raise unused_bits()
    return codes[0]


def unpack_rows(packed: np.ndarray, count: int, bits: int, signed: bool) -> tuple[Tensor, np.ndarray]:
    """``count`` codes from each row of bytes, and which rows have nothing in the bits that carry no code."""
    _check_width(bits)
    codes = torch.empty((len(packed), count), dtype=code_type(bits, signed))
    right = np.empty(len(packed), dtype=bool)
    step = max(1, _CODES_AT_ONCE // max(count, 1))
    read = _unpack_stream if bits <= _STREAM_BITS else _unpack_bytes
    for start in range(0, len(packed), step):
        some = slice(start, start + step)
        found, right[some] = read(packed[some], count, bits, signed)
        codes[some] = torch.from_numpy(found)
    return codes, right


def _unpack_stream(packed: np.ndarray, count: int, bits: int, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    rows, groups = len(packed), -(-count // _GROUP)
    padded = np.zeros((rows, groups * bits), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    parts = np.zeros((rows * groups, 8), dtype=np.uint8)
    parts[:, :bits] = padded.reshape(-1, bits)
    words = parts.view("<u8")[:, 0]
    codes = np.empty((rows * groups, _GROUP), dtype=np.uint8)
    for place in range(_GROUP):
        codes[:, place] = (words >> np.uint64(place * bits)) & np.uint64((1 << bits) - 1)
    flat = codes.reshape(rows, -1)
    kept, right = flat[:, :count], (flat[:, count:] == 0).all(1)
    if not signed:
        return kept, right
    # the sign bit moved to bit 7 and back, arithmetically, copies it into the bits above.
    shift = 8 - bits
    return (kept << np.uint8(shift)).view(np.int8) >> np.int8(shift), right


def _unpack_bytes(packed: np.ndarray, count: int, bits: int, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    width = (bits + 7) // 8
    parts = np.zeros((len(packed) * count, 8), dtype=np.uint8)
    parts[:, :width] = packed.reshape(-1, width)
    shift = np.int64(64 - 8 * width)
    codes = parts.view("<i8")[:, 0].reshape(len(packed), count)
    codes = codes << shift >> shift if signed else codes
    low, high = code_range(bits, signed)
    return codes, (codes.clip(low, high) == codes).all(axis=1)


def unused_bits() -> BadFile:
    return BadFile(
        "bits that carry no code must be as packing leaves them",
        "others",
        "the file is damaged or was not written by qbayes: restore or export it again",
    )


def _check_width(bits: int) -> None:
    if not 1 <= bits <= WIDEST:
        raise BadInput(f"codes must have 1 to {WIDEST} bits", f"{bits}", "choose another width")
