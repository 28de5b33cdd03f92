"""Rescaling in ONNX nodes is the reference's, to the last bit: ties, signs, shifts of every size."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import needs
from qbayes.errors import BadInput
from qbayes.integer.arithmetic.fixed_point import round_shift

needs.package("onnx")
needs.package("onnxruntime")

from qbayes.integer.onnx.exact_rescale import Float64Lanes, Lanes, LimbLanes, Part, integers  # noqa: E402
from qbayes.integer.onnx.graph import Graph  # noqa: E402  (behind the skip)
from qbayes.integer.onnx.runtimes import open_model  # noqa: E402

LANES = {"float64": Float64Lanes(), "limbs": LimbLanes()}


def run(g: Graph, tensor: str, lanes: Lanes, feeds: dict[str, np.ndarray]) -> torch.Tensor:
    g.output(tensor, "y", lanes.dtype, ("n", "channels"))
    run_model = open_model(g.model("rescale").SerializeToString(), "onnxruntime", {"y"})
    return torch.from_numpy(run_model(feeds)["y"]).long()


def rescaled(
    lanes: Lanes, t: np.ndarray, m: list[int], s: list[int], offset: list[int], largest: int
) -> torch.Tensor:
    g = Graph()
    term = lanes.term(g, [Part(g.input("t", lanes.dtype, ("n", 1)), largest)], integers(m))
    return run(g, lanes.round(g, [term], integers(s), integers(offset)), lanes, {"t": t.astype(lanes.dtype)})


channels = st.lists(
    st.tuples(
        st.integers(-(1 << 31) + 1, (1 << 31) - 1), st.integers(24, 62), st.integers(-(1 << 30), 1 << 30)
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", LANES)
@settings(max_examples=40, deadline=None)
@given(channels=channels)
def test_any_multiplier_shift_and_offset(name: str, channels: list[tuple[int, int, int]]) -> None:
    m, s, offset = (list(column) for column in zip(*channels, strict=True))
    t = np.arange(-300, 301, 7).reshape(-1, 1)
    total = torch.from_numpy(t) * torch.tensor(m) + torch.tensor(offset)
    wanted = round_shift(total, torch.tensor(s))
    assert torch.equal(rescaled(LANES[name], t, m, s, offset, 300), wanted)


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("shift", [1, 5, 9, 10, 11, 20, 21, 30])
def test_halves_go_to_even(name: str, shift: int) -> None:
    t = np.arange(-255, 256).reshape(-1, 1)
    found = rescaled(LANES[name], t, [1 << (shift - 1)], [shift], [0], 255)
    assert torch.equal(found, (torch.from_numpy(t).double() / 2).round().long())


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("divisor", [3, 6, 7, 9, 12])
def test_nearly_halves_go_where_31_bits_say(name: str, divisor: int) -> None:
    """A mean of six numbers is a half for one sum in six, but for the last bit of its multiplier."""
    t = np.arange(-2000, 2001).reshape(-1, 1)
    multiplier = round((1 << 33) / divisor)
    wanted = round_shift(torch.from_numpy(t) * multiplier, 33)
    assert torch.equal(rescaled(LANES[name], t, [multiplier], [33], [0], 2000), wanted)


@pytest.mark.parametrize("name", LANES)
def test_sums_of_31_bits_in_parts(name: str) -> None:
    """``256 h + l`` by a 30-bit multiplier: what an accumulator over wide codes takes."""
    lanes, g = LANES[name], Graph()
    generator = np.random.default_rng(0)
    upper, lower = (generator.integers(-(1 << 22), 1 << 22, (500, 1)) for _ in range(2))
    parts = [
        Part(g.input("h", lanes.dtype, ("n", 1)), 1 << 22, 256),
        Part(g.input("l", lanes.dtype, ("n", 1)), 1 << 22),
    ]
    m, s = [987654321, -123456789], [45, 40]
    steps = lanes.round(g, [lanes.term(g, parts, integers(m))], integers(s))
    found = run(g, steps, lanes, {"h": upper.astype(lanes.dtype), "l": lower.astype(lanes.dtype)})
    total = torch.from_numpy(256 * upper + lower) * torch.tensor(m)
    assert torch.equal(found, round_shift(total, torch.tensor(s)))


def test_nothing_times_nothing_is_nothing() -> None:
    t = np.arange(5).reshape(-1, 1)
    for lanes in LANES.values():
        assert not rescaled(lanes, t, [0, 0], [0, 0], [0, 0], 5).any()


def test_a_sum_that_float32_cannot_hold_is_refused() -> None:
    lanes, g = LimbLanes(), Graph()
    parts = [Part(g.input(f"t{at}", np.float32, ("n", 1)), 1 << 23) for at in range(3)]
    with pytest.raises(BadInput, match="below 2\\^24"):
        lanes.round(
            g, [lanes.term(g, [part], integers([(1 << 30) - 1])) for part in parts * 4], integers([40])
        )


@pytest.mark.parametrize("name", LANES)
def test_limbs_of_both_signs_cancel_exactly(name: str) -> None:
    """``(t − 300) · 41.5`` of codes with 16 bits: limbs worth 2^20 are beyond 2^24 one by one, not in sum."""
    t = np.arange(-2000, 2001, 3).reshape(-1, 1)
    m, s = -1392305227, 25
    offset = -300 * m
    wanted = round_shift(torch.from_numpy(t) * m + offset, s)
    assert torch.equal(rescaled(LANES[name], t, [m], [s], [offset], 1 << 23), wanted)
