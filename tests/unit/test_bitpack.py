"""Packed codes: an exact round trip at every width and length, the documented bits, and one way only."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qbayes.errors import BadFile, BadInput
from qbayes.integer.structure.op_record import bytes_packed, code_range, code_type, pack, unpack

WIDTHS = st.tuples(st.integers(1, 32), st.booleans())


@given(st.data(), WIDTHS, st.integers(0, 67))
def test_exact_round_trip(data: st.DataObject, width: tuple[int, bool], length: int) -> None:
    bits, signed = width
    low, high = code_range(bits, signed)
    values = data.draw(arrays.arrays(np.int64, length, elements=st.integers(low, high)))
    codes = torch.from_numpy(values)
    packed = pack(codes, bits, signed)
    assert len(packed) == bytes_packed(length, bits)
    found = unpack(packed, length, bits, signed)
    assert found.dtype == code_type(bits, signed)
    assert torch.equal(found.to(torch.int64), codes)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", range(1, 33))
def test_extremes_at_every_width(bits: int, signed: bool) -> None:
    low, high = code_range(bits, signed)
    assert high - low + 1 == 2**bits
    codes = torch.tensor([low, high, 0, low, high] * 5)
    assert unpack(pack(codes, bits, signed), 25, bits, signed).tolist() == codes.tolist()


@given(st.integers(1, 8), st.lists(st.integers(0, 255), max_size=40))
def test_the_stream_is_one_number(bits: int, values: list[int]) -> None:
    """Independent of vectorising: the stream is Σ code_i · 2^(i·n), little endian."""
    codes = [value % (1 << bits) for value in values]
    number = sum(code << bits * place for place, code in enumerate(codes))
    expected = number.to_bytes(bytes_packed(len(codes), bits), "little")
    assert pack(torch.tensor(codes, dtype=torch.int64), bits, False) == expected


def test_known_bytes() -> None:
    # three bits, two's complement: 1 → 001, −1 → 111, −4 → 100; least significant bit first.
    assert pack(torch.tensor([1, -1, -4]), 3, True) == bytes([0b00_111_001, 0b1])
    assert pack(torch.tensor([-2, 513]), 32, True) == b"\xfe\xff\xff\xff\x01\x02\x00\x00"
    assert pack(torch.tensor([-1, 7]), 31, True) == pack(torch.tensor([-1, 7]), 32, True)
    assert pack(torch.tensor([258]), 16, False) == b"\x02\x01"
    assert pack(torch.tensor([], dtype=torch.int8), 3, True) == b""


def test_shape_is_read_in_logical_order() -> None:
    codes = torch.arange(6, dtype=torch.uint8).view(2, 3)
    assert pack(codes.t(), 3, False) == pack(torch.tensor([0, 3, 1, 4, 2, 5]), 3, False)


@pytest.mark.parametrize(
    ("codes", "bits", "signed"),
    [
        ([4], 3, True),
        ([-5], 3, True),
        ([8], 3, False),
        ([-1], 3, False),
        ([2**31], 32, True),
        ([256], 8, False),
    ],
)
def test_codes_outside_their_width(codes: list[int], bits: int, signed: bool) -> None:
    with pytest.raises(BadInput, match="must lie in"):
        pack(torch.tensor(codes), bits, signed)


def test_what_cannot_be_packed() -> None:
    with pytest.raises(BadInput, match="integers"):
        pack(torch.tensor([1.0]), 3, True)
    with pytest.raises(BadInput, match="integers"):
        pack(torch.tensor([True]), 1, False)
    for bits in (0, 33, -1):
        with pytest.raises(BadInput, match="1 to 32 bits"):
            bytes_packed(1, bits)


def test_only_one_way_to_write_a_code() -> None:
    """Padding, and the copies of the sign above 31 bits, are part of the form."""
    with pytest.raises(BadFile, match="no code"):
        unpack(bytes([0b00_111_001, 0b11]), 3, 3, True)
    with pytest.raises(BadFile, match="no code"):
        unpack((2**30).to_bytes(4, "little"), 1, 31, True)
    for length in (0, 1, 3):
        with pytest.raises(BadFile, match="2 bytes"):
            unpack(bytes(length), 3, 3, True)


@pytest.mark.parametrize("bits", [3, 8])
def test_eleven_million_weights_take_no_time(bits: int) -> None:
    codes = torch.randint(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1), (11_000_000,), dtype=torch.int8)
    start = time.process_time()
    packed = pack(codes, bits, True)
    found = unpack(packed, codes.numel(), bits, True)
    # 0.3 s when alone; the bound is for a busy machine and still rules out any loop over codes.
    assert time.process_time() - start < 3
    assert torch.equal(found, codes)
    assert len(packed) == 11_000_000 * bits // 8
