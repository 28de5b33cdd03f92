"""Conv and Linear: every option against an oracle in Python's integers; weights drawn on every grid."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.epsilon_table import epsilon_codes, epsilon_scale
from qbayes.integer.arithmetic.fixed_point import fixed_point, shared_shifts
from qbayes.integer.ops import Conv, Grids, Linear, Noise, Value, Weights
from qbayes.noise import c_kernel

QUIET = Noise(0, torch.zeros(1, dtype=torch.int64), 0, 1)


def half_even(numerator: int, shift: int) -> int:
    return round(Fraction(int(numerator), 2 ** int(shift)))


def random_constants(
    op: Conv | Linear, values: dict[str, Value], grids: Grids, generator: torch.Generator
) -> dict[str, Tensor]:
    """Codes over the whole of their ranges; multipliers that bring the accumulator to the output's codes."""
    found: dict[str, Tensor] = {}
    top = (1 << grids.out_bits) - 1
    for constant in op.constants(values):
        low = -(1 << (constant.bits - 1)) if constant.signed else 0
        high = low + (1 << constant.bits)
        codes = torch.randint(low, high, constant.shape, generator=generator)
        if constant.name in ("weight", "mean") and not op.weights.affine:
            codes = codes.clamp(min=low + 1)
        if constant.name in ("weight_zero", "mean_zero"):
            codes = codes >> (8 - op.weights.bits)  # inside the codes of the weights
        found[constant.name] = codes
    # a typical accumulator: random signs where codes are centred, all of one sign where they are not.
    size = math.prod(op.weight_shape[1:]) ** 0.7 * 2 ** (grids.bits[0] + op.weights.bits - 3)
    spread = size / 2 ** (grids.out_bits - 2)
    found["bias"] = torch.randint(
        -int(size) // 2 - 1, int(size) // 2 + 1, found["bias"].shape, generator=generator
    )
    found |= scaling(found, "multiplier", "shift", 1 / spread, generator)
    if op.weights.is_gaussian:
        found |= scaling(found, "noise_multiplier", "noise_shift", 0.02, generator)
        if op.weights.bias_site is not None:
            found |= scaling(found, "bias_noise_multiplier", "bias_noise_shift", 0.5, generator)
    if "second_multiplier" in found:
        both = torch.stack([1 / spread * (0.5 + rand(found["shift"], generator)) for _ in range(2)])
        codes, found["shift"] = shared_shifts(both)
        found["multiplier"], found["second_multiplier"] = codes
    if "mix" in found:
        codes, shift = shared_shifts(torch.tensor([0.7, -0.4], dtype=torch.float64))
        found |= {"mix": codes, "mix_shift": shift.view(1)}
    low = int(torch.randint(0, top // 4 + 1, (1,), generator=generator))
    found |= {"low": torch.tensor([low]), "high": torch.tensor([top - int(top > 3)])}
    return found


def rand(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, dtype=torch.float64)


def scaling(
    found: dict[str, Tensor], multiplier: str, shift: str, size: float, generator: torch.Generator
) -> dict[str, Tensor]:
    signs = torch.randint(0, 2, found[multiplier].shape, generator=generator) * 2 - 1
    code, places = fixed_point(signs * size * (0.5 + rand(found[multiplier], generator)))
    return {multiplier: code, shift: places.to(torch.uint8)}


def slow_accumulator(op: Conv | Linear, x: np.ndarray, zero: int, w: np.ndarray) -> np.ndarray:
    """Σ (q − Z) w, output by output, in Python's integers."""
    if isinstance(op, Linear):
        return (x.astype(object) - zero) @ w.astype(object).T
    axes = len(op.kernel)
    rows, _, *lengths = x.shape
    geometry = list(zip(lengths, op.kernel, op.stride, op.padding, op.dilation, strict=True))
    out_lengths = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in geometry]
    out = np.zeros((rows, op.channels_out, *out_lengths), dtype=object)
    per_group, out_per_group = op.channels_in // op.groups, op.channels_out // op.groups
    for r, o in itertools.product(range(rows), range(op.channels_out)):
        first = o // out_per_group * per_group
        for position in np.ndindex(*out_lengths):
            total = 0
            for i, *taps in np.ndindex(per_group, *op.kernel):
                at = [
                    position[a] * op.stride[a] - op.padding[a] + taps[a] * op.dilation[a] for a in range(axes)
                ]
                if all(0 <= at[a] < lengths[a] for a in range(axes)):
                    total += (int(x[(r, first + i, *at)]) - zero) * int(w[(o, i, *taps)])
            out[(r, o, *position)] = total
    return out


def slow_weights(op: Conv | Linear, constants: dict[str, Tensor], seed: int, draw: int) -> dict[str, Any]:
    """The equations of ``Weights``, element by element, on Python's integers."""
    weights, ids = op.weights, torch.tensor([draw])
    if not weights.is_gaussian:
        zero = constants["weight_zero"] if weights.affine else torch.zeros(1, dtype=torch.int64)
        along = zero.view(-1, *(1,) * (len(op.weight_shape) - 1))
        return {"w": (constants["weight"] - along).numpy(), "b": constants["bias"].numpy()}
    half = 1 << (weights.bits - 1)
    low, high = (-half if weights.grids == 0 else 1 - half), half - 1
    e = epsilon_codes(seed, weights.site, ids, op.weight_shape, weights.noise_bits)[0].long()
    first, n = np.zeros(op.weight_shape, dtype=object), np.zeros(op.weight_shape, dtype=object)
    for at in np.ndindex(*op.weight_shape):
        product = int(constants["sigma"][at]) * int(e[at]) * int(constants["noise_multiplier"][at[0]])
        n[at] = min(max(half_even(product, int(constants["noise_shift"][at[0]])), low), high)
        mean = int(constants["mean"][at])
        if weights.grids == 1:
            first[at] = min(max(mean + n[at], low), high)
        elif weights.grids == 2:
            first[at] = mean
        else:
            of_mean, of_noise = constants["mix"].tolist()
            mixed = (mean - int(constants["mean_zero"])) * of_mean + n[at] * of_noise
            zero = int(constants["weight_zero"])
            first[at] = min(max(zero + half_even(mixed, int(constants["mix_shift"])), low), high) - zero
    bias = constants["bias"].tolist()
    if weights.bias_site is not None:
        eb = epsilon_codes(seed, weights.bias_site, ids, op.weight_shape[:1], weights.noise_bits)[0].tolist()
        parts = zip(
            *(bias, constants["bias_sigma"].tolist(), eb, constants["bias_noise_multiplier"].tolist()),
            constants["bias_noise_shift"].tolist(),
            strict=True,
        )
        bias = [b + half_even(sigma * code * m, s) for b, sigma, code, m, s in parts]
    return {"w": first, "n": n, "b": np.array(bias)}


def slow_run(
    op: Conv | Linear, x: Tensor, grids: Grids, constants: dict[str, Tensor], noise: Noise
) -> np.ndarray:
    parts = []
    draws = noise.draws.tolist() if op.is_stochastic else [0]
    for part, draw in zip(x.split(noise.rows if op.is_stochastic else len(x)), draws, strict=True):
        drawn = slow_weights(op, constants, noise.seed, draw)
        total = slow_accumulator(op, part.numpy(), grids.zeros[0], drawn["w"])
        spread = slow_accumulator(op, part.numpy(), grids.zeros[0], drawn["n"]) if "n" in drawn else None
        out = np.zeros(total.shape, dtype=np.int32)
        axis = 1 if isinstance(op, Conv) else total.ndim - 1
        for at in np.ndindex(*total.shape):
            c = at[axis]
            s = c if constants["multiplier"].numel() > 1 else 0
            value = (total[at] + int(drawn["b"][c])) * int(constants["multiplier"][s])
            if op.weights.is_gaussian and op.weights.grids == 2 and spread is not None:
                value += spread[at] * int(constants["second_multiplier"][s])
            code = grids.zero + half_even(value, int(constants["shift"][s]))
            out[at] = min(max(code, int(constants["low"])), int(constants["high"]))
        parts.append(out)
    return np.concatenate(parts)


@st.composite
def weightings(draw: st.DrawFn) -> Weights:
    bits = draw(st.integers(2, 8))
    if draw(st.booleans()):
        return Weights("point", bits, affine=draw(st.booleans()), per_channel=draw(st.booleans()))
    grids = draw(st.sampled_from([0, 1, 2]))
    return Weights(
        "gaussian",
        bits,
        affine=grids == 0,
        per_channel=grids != 0 and draw(st.booleans()),
        sigma_bits=draw(st.integers(2, 8)),
        noise_bits=draw(st.integers(2, 8)),
        site=draw(st.integers(0, 50)),
        grids=grids,
        bias_site=draw(st.sampled_from([None, 51])),
    )


@st.composite
def convolutions(draw: st.DrawFn) -> Conv:
    axes, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    return Conv(
        *("conv", ("x",), "y"),
        weights=draw(weightings()),
        channels_in=groups * draw(st.integers(1, 2)),
        channels_out=groups * draw(st.integers(1, 2)),
        kernel=each(1, 3),
        stride=each(1, 2),
        padding=each(0, 2),
        dilation=each(1, 2),
        groups=groups,
    )


def check(op: Conv | Linear, shape: tuple[int, ...], data: st.DataObject) -> None:
    bits, out_bits = data.draw(st.integers(2, 8)), data.draw(st.integers(2, 16))
    zero = data.draw(st.integers(0, 2**bits - 1))
    grids = Grids((zero,), data.draw(st.integers(0, 2**out_bits - 1)), (bits,), out_bits)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    draws = torch.tensor(data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=2)))
    noise = Noise(data.draw(st.integers(0, 2**63 - 1)), draws, 0, 1)
    x = torch.randint(0, 2**bits, (len(draws), *shape), generator=generator, dtype=torch.uint8)
    values = {"x": Value("x", shape, bits), "y": Value("y", op.out_shape([shape]), out_bits)}
    constants = random_constants(op, values, grids, generator)
    got = op.run([x], grids, constants, noise)
    assert got.dtype == (torch.uint8 if out_bits <= 8 else torch.int32)
    assert tuple(got.shape[1:]) == values["y"].shape
    np.testing.assert_array_equal(got.numpy(), slow_run(op, x, grids, constants, noise))


@settings(max_examples=60)
@given(op=convolutions(), data=st.data())
def test_convolution_follows_its_equation(op: Conv, data: st.DataObject) -> None:
    check(op, (op.channels_in, *(data.draw(st.integers(5, 6)) for _ in op.kernel)), data)


@given(weights=weightings(), sizes=st.tuples(st.integers(1, 9), st.integers(1, 5)), data=st.data())
def test_linear_follows_its_equation(weights: Weights, sizes: tuple[int, int], data: st.DataObject) -> None:
    op = Linear("linear", ("x",), "y", weights=weights, features_in=sizes[0], features_out=sizes[1])
    check(op, (*data.draw(st.sampled_from([(), (3,), (2, 2)])), sizes[0]), data)


def test_ties_go_to_even() -> None:
    """Multiplier ½: the accumulators 1, 3, 5, 7 are exact halves and go to 0, 2, 2, 4."""
    op = Linear("half", ("x",), "y", weights=Weights("point", 8), features_in=1, features_out=1)
    code, shift = fixed_point(torch.tensor([0.5], dtype=torch.float64))
    constants = {
        "weight": torch.ones(1, 1, dtype=torch.int8),
        "bias": torch.zeros(1, dtype=torch.int32),
        "multiplier": code,
        "shift": shift,
        "low": torch.tensor([0]),
        "high": torch.tensor([255]),
    }
    x = torch.tensor([[1], [3], [5], [7]], dtype=torch.uint8)
    assert op.run([x], Grids((0,), 0, (8,), 8), constants, QUIET).flatten().tolist() == [0, 2, 2, 4]


def test_accumulators_beyond_float32_are_exact() -> None:
    """40 000 products of 255 · 127 need 31 bits; an odd one more must still be seen by the multiplier 1."""
    count = 40_000
    op = Linear("wide", ("x",), "y", weights=Weights("point", 8), features_in=count, features_out=2)
    weight = torch.full((2, count), 127, dtype=torch.int8)
    weight[1, 0] = 126
    total = 255 * 127 * count
    constants = {
        "weight": weight,
        "bias": torch.tensor([3 - total, 3 - total], dtype=torch.int32),
        "multiplier": torch.tensor([2**30, 2**30], dtype=torch.int32),
        "shift": torch.tensor([30, 30], dtype=torch.uint8),
        "low": torch.tensor([0]),
        "high": torch.tensor([255]),
    }
    x = torch.full((1, count), 255, dtype=torch.uint8)
    x[0, 0] = 254
    got = op.run([x], Grids((0,), 200, (8,), 8), constants, QUIET)
    assert got.tolist() == [[200 + 3 - 127, 0]]


GAUSSIAN = Weights("gaussian", 8, site=4, bias_site=5)


def gaussian_layer(weights: Weights, inputs: int = 60, outputs: int = 50) -> tuple[Linear, dict[str, Tensor]]:
    op = Linear("bbb", ("x",), "y", weights=weights, features_in=inputs, features_out=outputs)
    values = {"x": Value("x", (inputs,), 8), "y": Value("y", (outputs,), 8)}
    grids = Grids((3,), 100, (8,), 8)
    return op, random_constants(op, values, grids, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("grids", [0, 1, 2])
def test_draws_do_not_depend_on_how_they_are_folded(grids: int) -> None:
    """draws × rows at once, or draw by draw, or row by row, with and without the C kernel: the same bits."""
    weights = Weights("gaussian", 4, affine=grids == 0, per_channel=grids > 0, site=4, grids=grids)
    op, constants = gaussian_layer(weights)
    meaning = Grids((3,), 100, (8,), 8)
    draws, rows = torch.tensor([7, 2, 9]), torch.randint(0, 256, (4, 60), dtype=torch.uint8)
    folded = rows.repeat(3, 1)
    together = op.run([folded], meaning, constants, Noise(11, draws, 0, 4)).view(3, 4, -1)
    for i, draw in enumerate(draws):
        alone = op.run([rows], meaning, constants, Noise(11, draw.view(1), 0, 4))
        assert torch.equal(alone, together[i])
        last = op.run([rows[3:]], meaning, constants, Noise(11, draw.view(1), 3, 1))
        assert torch.equal(last[0], together[i, 3])
    assert not torch.equal(together[0], together[1])
    inside = (together > constants["low"]) & (together < constants["high"])
    assert float(inside.double().mean()) > 0.1  # the clamp does not hide the arithmetic
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c_kernel, "kernel", lambda: None)
        again = op.run([folded], meaning, constants, Noise(11, draws, 0, 4)).view(3, 4, -1)
    assert torch.equal(again, together)


def test_drawn_codes_for_backends() -> None:
    """``draw`` holds what ``run`` multiplies with: weights, or mean and noise apart, and the bias."""
    op, constants = gaussian_layer(GAUSSIAN)
    drawn = op.weights.draw(constants, 1, 0)
    assert sorted(drawn) == ["bias", "weight"]
    assert (drawn["weight"].dtype, drawn["bias"].dtype) == (torch.int8, torch.int32)
    op, constants = gaussian_layer(Weights("gaussian", 3, site=4, grids=2))
    drawn = op.weights.draw(constants, 1, 0, threads=2)
    assert sorted(drawn) == ["bias", "mean", "noise"]
    assert torch.equal(drawn["mean"], constants["mean"])
    assert int(drawn["noise"].abs().max()) <= 3
    op = Linear("p", ("x",), "y", weights=Weights("point", 4), features_in=2, features_out=1)
    point = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
    assert op.weights.draw(point, 1, 0) == point


def test_gaussian_bias_has_its_deviation() -> None:
    weights = Weights("gaussian", 8, site=4, bias_site=5)
    op = Linear("b", ("x",), "y", weights=weights, features_in=1, features_out=100_000)
    values = {"x": Value("x", (1,), 8), "y": Value("y", (100_000,), 8)}
    constants = {c.name: torch.zeros(c.shape, dtype=torch.int64) for c in op.constants(values)}
    m, s = fixed_point(torch.full((100_000,), 20 / 200 * epsilon_scale(8), dtype=torch.float64))
    constants |= {"bias_sigma": torch.full((100_000,), 200), "bias": torch.full((100_000,), 7)}
    constants |= {"bias_noise_multiplier": m, "bias_noise_shift": s}
    bias = op.weights.draw(constants, 3, 1)["bias"].double()
    assert abs(float(bias.mean()) - 7) < 4 * 20 / math.sqrt(100_000)
    assert abs(float(bias.std()) / 20 - 1) < 0.01


def test_declared_constants_are_in_the_order_of_the_file() -> None:
    op, _ = gaussian_layer(Weights("gaussian", 3, sigma_bits=5, site=4, grids=2, bias_site=5))
    held = op.constants({"y": Value("y", (50,), 8)})
    assert {c.name: (c.shape, c.bits, c.signed) for c in held} == {
        "mean": ((50, 60), 3, True),
        "sigma": ((50, 60), 5, False),
        "noise_multiplier": ((50,), 32, True),
        "noise_shift": ((50,), 6, False),
        "bias": ((50,), 32, True),
        "bias_sigma": ((50,), 8, False),
        "bias_noise_multiplier": ((50,), 32, True),
        "bias_noise_shift": ((50,), 6, False),
        "second_multiplier": ((50,), 32, True),
        "multiplier": ((50,), 32, True),
        "shift": ((50,), 6, False),
        "low": ((1,), 8, False),
        "high": ((1,), 8, False),
    }
    paper = Weights("gaussian", 8, affine=True, per_channel=False, grids=0)
    shapes = {c.name: c.shape for c in paper.constants((4, 2, 3, 3), 8)}
    assert shapes["mix"] == (2,)
    assert shapes["mix_shift"] == shapes["mean_zero"] == shapes["weight_zero"] == shapes["multiplier"] == (1,)
    # a tensor of one grid has a scale for each channel where the noise has a sum of its own.
    two = Weights("gaussian", 8, per_channel=False, grids=2)
    shapes = {c.name: c.shape for c in two.constants((4, 2, 3, 3), 8)}
    assert shapes["multiplier"] == shapes["second_multiplier"] == shapes["shift"] == (4,)
    point = Weights("point", 4, affine=True)
    assert [c.name for c in point.constants((4, 2), 8)][:3] == ["weight", "weight_zero", "bias"]
    # a byte each, or as wide as the codes that they limit.
    for bits, width in ((2, 8), (8, 8), (9, 9), (16, 16)):
        *_, low, high = point.constants((4, 2), bits)
        assert (low.name, low.bits, high.name, high.bits) == ("low", width, "high", width)


def test_multiply_accumulates() -> None:
    weights = Weights("gaussian", 3, grids=2)
    conv = Conv("c", ("x",), "y", weights, 6, 8, (3, 3), (1, 1), (1, 1), (1, 1), 2)
    values = {"x": Value("x", (6, 5, 5), 8), "y": Value("y", (8, 5, 5), 8)}
    assert conv.macs(values) == 2 * 8 * 25 * 3 * 9


BAD = [
    (lambda: Weights("point", 1), "2 to 8"),
    (lambda: Weights("point", 9), "2 to 8"),
    (lambda: Weights("gaussian", 8, grids=3), "grids"),
    (lambda: Weights("gaussian", 8, affine=True), "affine"),
    (lambda: Weights("gaussian", 8, affine=True, per_channel=True, grids=0), "per_channel"),
    (lambda: Weights("other", 8), "kind"),  # pyright: ignore[reportArgumentType]
    (lambda: Linear("l", ("x", "z"), "y", GAUSSIAN, 2, 2), "read 1"),
    (lambda: Linear("l", ("x",), "y", GAUSSIAN, 0, 2), "features_in"),
    (lambda: Conv("c", ("x",), "y", GAUSSIAN, 3, 4, (3, 3), (1, 1), (1, 1), (1, 1), 2), "divide"),
    (
        lambda: Conv("c", ("x",), "y", GAUSSIAN, 4, 3, (3, 3), (1, 1), (1, 1), (1, 1), 2),
        "divide channels_out",
    ),
    (lambda: Conv("c", ("x",), "y", GAUSSIAN, 2, 2, (3, 3), (1,), (1, 1), (1, 1)), "stride"),
    (lambda: Conv("c", ("x",), "y", GAUSSIAN, 2, 2, (3, 3), (0, 1), (1, 1), (1, 1)), "stride"),
    (lambda: Conv("c", ("x",), "y", GAUSSIAN, 2, 2, (3,), (True,), (1,), (1,)), "stride"),
    (lambda: Conv("c", ("x",), "y", GAUSSIAN, 2, 2, (3,), (1,), (1,), (1,)).out_shape([(3, 9)]), "channels"),
    (lambda: Conv("c", ("x",), "y", GAUSSIAN, 2, 2, (9,), (1,), (1,), (1,)).out_shape([(2, 3)]), "fit into"),
    (lambda: Conv("c", ("x",), "y", GAUSSIAN, 2, 2, (4,), (1,), (0,), (1,)).out_shape([(2, 3)]), "fit into"),
    (lambda: Linear("l", ("x",), "y", GAUSSIAN, 2, 2).out_shape([(3,)]), "last axis"),
]


@pytest.mark.parametrize(("make", "says"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_what_does_not_fit_is_refused(make: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        make()


def test_a_batch_that_is_not_draws_times_rows_is_refused() -> None:
    op, constants = gaussian_layer(GAUSSIAN)
    x = torch.zeros(5, 60, dtype=torch.uint8)
    with pytest.raises(BadInput, match="draws × rows"):
        op.run([x], Grids((3,), 100, (8,), 8), constants, Noise(0, torch.arange(2), 0, 2))
