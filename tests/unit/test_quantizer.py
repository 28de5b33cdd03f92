"""The quantiser module: what it observes, when, and which gradient its scale gets."""

import copy
import math

import pytest
import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.grid import LARGEST_SCALE, SMALLEST_SCALE, affine_grid, fake_quantize
from qbayes.quant.quantizer import Quantizer


def activation(rule: str, bits: int = 4, *, symmetric: bool = False, learn: bool = True) -> Quantizer:
    return Quantizer(bits, rule=rule, signed=False, symmetric=symmetric, learn=learn)


def weight(rule: str, bits: int = 4, channels: int | None = None, *, symmetric: bool = True) -> Quantizer:
    return Quantizer(bits, rule=rule, signed=True, symmetric=symmetric, channels=channels)


def grid_of(low: float, high: float, bits: int = 4) -> tuple[float, float]:
    scale, zero = affine_grid(torch.tensor(low), torch.tensor(high), bits, signed=False, symmetric=False)
    return float(scale), float(zero)


def numbers(quantizer: Quantizer) -> tuple[float, float]:
    scale, zero = quantizer.grid()
    return float(scale.detach()), float(zero)


def squared_error(quantizer: Quantizer, x: Tensor) -> float:
    with torch.no_grad():
        return float((quantizer.eval()(x) - x).double().square().sum())


def test_minmax_keeps_the_extremes_of_all_batches() -> None:
    quantizer = activation("minmax")
    for batch in ([-1.0, 2.0], [0.5, 5.0], [-0.25, 1.0]):
        quantizer(torch.tensor(batch))
    assert numbers(quantizer) == grid_of(-1, 5)


def test_ema_starts_at_the_first_batch_and_moves_by_a_hundredth() -> None:
    quantizer = activation("ema")
    quantizer(torch.tensor([-1.0, 2.0]))
    assert numbers(quantizer) == grid_of(-1, 2)
    quantizer(torch.tensor([-3.0, 12.0]))
    assert numbers(quantizer) == pytest.approx(grid_of(-1.02, 2.1))
    quantizer(torch.tensor([5.0, 6.0]))
    assert float(quantizer.observed_low) == pytest.approx(-1.02 + 0.01 * 6.02)
    assert float(quantizer.observed_high) == pytest.approx(2.1 + 0.01 * 3.9)


def test_percentile_is_the_mean_over_batches_of_their_quantiles() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(3001) * 2, torch.randn(5000) + 1]
    quantizer = activation("percentile")
    for batch in batches:
        quantizer(batch)
    low, high = (sum(float(batch.quantile(q)) for batch in batches) / 2 for q in (0.0005, 0.9995))
    assert numbers(quantizer) == pytest.approx(grid_of(low, high), rel=1e-5)


def test_percentile_of_weights_is_exact_for_each_channel() -> None:
    torch.manual_seed(0)
    w = torch.randn(3, 40, 71) * torch.tensor([1.0, 5.0, 0.1])[:, None, None]
    quantizer = weight("percentile", channels=3)
    quantizer.calibrate(w)
    ends = torch.stack([w.flatten(1).quantile(q, dim=1).abs() for q in (0.0005, 0.9995)])
    torch.testing.assert_close(quantizer.scale, ends.amax(0) / 7)


@pytest.mark.parametrize(("bits", "published"), [(2, 0.1902), (3, 0.0469), (8, None)])
def test_mse_of_gaussian_weights_is_near_the_optimum(bits: int, published: float | None) -> None:
    """Against a dense search of the step, and Max's table (1960) of 3 and 7 equally spaced levels."""
    w = torch.special.ndtri((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000).float()
    quantizer = weight("mse", bits)
    quantizer.calibrate(w)
    found = squared_error(quantizer, w) / len(w)
    top = 2 ** (bits - 1) - 1
    steps = torch.linspace(0.2, 1, 400) * 4.1 / top
    dense = [float(((w / s).round().clamp(-top, top) * s - w).double().square().mean()) for s in steps]
    assert found == pytest.approx(min(dense), rel=0.01)
    if published is not None:
        assert found == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_mse_is_never_worse_than_minmax_on_weights(bits: int, symmetric: bool) -> None:
    for seed in range(30):
        torch.manual_seed(seed)
        w = torch.randn(4, 1 + 7 * seed) ** (1 + 2 * (seed % 2)) * 10.0 ** (seed - 15)
        both = [weight(rule, bits, 4, symmetric=symmetric) for rule in ("mse", "minmax")]
        for quantizer in both:
            quantizer.calibrate(w)
        for k in range(4):
            one, other = (
                float((quantizer.eval()(w)[k] - w[k]).detach().double().square().sum()) for quantizer in both
            )
            assert one <= other * (1 + 1e-5)


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("kind", ["gaussian", "relu", "heavy", "silu", "shifted"])
def test_mse_over_batches_is_no_worse_than_minmax(bits: int, kind: str) -> None:
    """Up to the resolution of the histogram, 2 %; the range grows over the batches and the bins merge."""
    torch.manual_seed(1)
    noise = [torch.randn(64, 50) * factor for factor in (0.01, 1.0, 3.0)]
    shape = {
        "gaussian": lambda x: x,
        "relu": torch.relu,
        "heavy": lambda x: x**5,
        "silu": torch.nn.functional.silu,
        "shifted": lambda x: x + 4,
    }[kind]
    batches = [shape(x) for x in noise]
    mse, minmax = activation("mse", bits), activation("minmax", bits)
    for batch in batches:
        mse.calibrate(batch)
        minmax.calibrate(batch)
    seen = torch.cat(batches)
    assert squared_error(mse, seen) <= 1.02 * squared_error(minmax, seen)


def test_mse_weighs_all_batches_alike() -> None:
    """Two halves give the range of the whole; the last batch does not win."""
    torch.manual_seed(4)
    x = torch.relu(torch.randn(4000))
    x[5] = 40.0
    whole, halves = activation("mse"), activation("mse")
    whole.calibrate(x)
    halves.calibrate(x[:2000])
    halves.calibrate(x[2000:])
    assert numbers(halves) == numbers(whole)
    assert numbers(whole)[0] < 40 / 15


def test_mse_clips_one_outlier_and_keeps_the_small_negative_side() -> None:
    """SiLU: [−0.278, large]. Shrinking both ends alike would cut the negative side away."""
    torch.manual_seed(4)
    x = torch.nn.functional.silu(torch.randn(100_000) * 3)
    x[0] = 40.0
    quantizer = activation("mse", 6)
    quantizer.calibrate(x)
    scale, zero = numbers(quantizer)
    assert scale * (63 - zero) < 30
    assert scale * -zero < -0.15


def test_huge_batches_are_thinned_but_their_extremes_are_exact() -> None:
    x = torch.zeros(3 * 2**18 + 1)
    x[1], x[4] = -3.0, 7.0
    quantizer = activation("minmax")
    quantizer.calibrate(x)
    assert numbers(quantizer) == grid_of(-3, 7)
    mse = activation("mse")
    mse.calibrate(x)
    assert (float(mse.observed_low), float(mse.observed_high)) == (-3.0, 7.0)
    assert float(mse.observed_counts.sum()) == math.ceil(x.numel() / 5)


@pytest.mark.parametrize(("bits", "channels"), [(2, None), (4, 3), (8, 3)])
def test_weight_scale_gradient_is_scaled_as_in_the_paper(bits: int, channels: int | None) -> None:
    """1/√(N Q_p) with N the weights that share a scale, Q_p = 2^(n−1) − 1."""
    torch.manual_seed(0)
    w = torch.randn(3, 8)
    quantizer = weight("lsq", bits, channels)
    quantizer.calibrate(w)
    with torch.no_grad():
        quantizer.scale.mul_(0.7)
    quantizer(w).square().sum().backward()
    top = 2 ** (bits - 1) - 1
    scale = quantizer.scale.detach()[:, None] if channels else quantizer.scale.detach()
    v = w / scale
    slope = torch.where(v.abs() > top, v.sign() * top, v.round() - v)
    plain = 2 * v.clamp(-top, top).round() * scale * slope
    expected = plain.sum(1) / math.sqrt(8 * top) if channels else plain.sum() / math.sqrt(24 * top)
    torch.testing.assert_close(quantizer.scale.grad, expected, rtol=1e-4, atol=1e-5)


def test_activation_scale_gradient_counts_the_features_of_one_row() -> None:
    torch.manual_seed(0)
    x = torch.relu(torch.randn(5, 2, 3))
    quantizer = activation("lsq", 3)
    quantizer.calibrate(x)
    quantizer(x).sum().backward()
    plain = quantizer.scale.detach().clone().requires_grad_()
    fake_quantize(x, plain, quantizer.zero_point, 0, 7).sum().backward()
    assert plain.grad is not None
    torch.testing.assert_close(quantizer.scale.grad, plain.grad / math.sqrt(6 * 7))


def test_a_learned_scale_is_set_by_data_once_and_then_left_alone() -> None:
    torch.manual_seed(0)
    quantizer, mse = activation("lsq"), activation("mse")
    for factor in (1.0, 3.0):
        quantizer.calibrate(torch.randn(100) * factor)
    torch.manual_seed(0)
    for factor in (1.0, 3.0):
        mse.calibrate(torch.randn(100) * factor)
    assert numbers(quantizer) == numbers(mse)
    before = {name: value.clone() for name, value in quantizer.state_dict().items()}
    quantizer(torch.randn(100) * 50)
    quantizer.observe(torch.randn(100) * 50)
    assert all(torch.equal(value, before[name]) for name, value in quantizer.state_dict().items())
    assert [name for name, _ in quantizer.named_parameters()] == ["scale"]


def test_a_learned_scale_without_calibration_takes_its_first_batch() -> None:
    torch.manual_seed(0)
    x = torch.randn(50)
    quantizer, mse = activation("lsq"), activation("mse")
    quantizer(x)
    mse(x)
    quantizer(100 * x)
    assert numbers(quantizer) == numbers(mse)


def test_learn_false_makes_a_buffer_that_keeps_observing() -> None:
    quantizer = activation("lsq", learn=False)
    assert list(quantizer.parameters()) == []
    quantizer(torch.linspace(0, 1, 50))
    quantizer(torch.linspace(0, 9, 50))
    assert numbers(quantizer)[0] > 0.3


def test_learn_false_keeps_what_calibration_set() -> None:
    quantizer = activation("lsq", learn=False)
    quantizer.calibrate(torch.linspace(0, 1, 50))
    quantizer.calibrate(torch.linspace(0, 3, 50))
    calibrated = numbers(quantizer)
    quantizer(torch.linspace(0, 9, 50))
    assert numbers(quantizer) == calibrated
    assert 0.15 < calibrated[0] < 0.25  # 3 over 15 steps
    quantizer.reset()
    quantizer(torch.linspace(0, 1, 50))
    quantizer(torch.linspace(0, 9, 50))
    assert numbers(quantizer)[0] > 0.3


def test_a_loaded_learned_scale_does_not_start_anew() -> None:
    trained = activation("lsq")
    trained(torch.linspace(0, 3, 50))
    with torch.no_grad():
        trained.scale.mul_(1.37)
    loaded = activation("lsq")
    loaded.load_state_dict(trained.state_dict())
    loaded(torch.linspace(0, 300, 50))
    assert numbers(loaded) == numbers(trained)


@pytest.mark.parametrize("value", [0.0, -0.3, 1e-30, -1e38, math.inf])
def test_a_learned_scale_stays_positive_finite_and_alive(value: float) -> None:
    quantizer = weight("lsq")
    quantizer.calibrate(torch.randn(20))
    with torch.no_grad():
        quantizer.scale.fill_(value)
    scale, _ = quantizer.grid()
    assert SMALLEST_SCALE <= float(scale.detach()) <= LARGEST_SCALE
    if 0 < abs(value) < LARGEST_SCALE:
        scale.backward()
        assert quantizer.scale.grad is not None
        assert abs(float(quantizer.scale.grad)) == 1.0


def test_switches() -> None:
    quantizer = activation("minmax")
    x = torch.tensor([0.0, 0.3, 1.0])
    quantizer.quantizing = False
    assert quantizer(x) is x
    assert bool(quantizer.ready)
    quantizer.quantizing, quantizer.observing = True, False
    quantizer(5 * x)
    assert numbers(quantizer) == grid_of(0, 1)
    quantizer.observing = True
    quantizer.eval()(5 * x)
    assert numbers(quantizer) == grid_of(0, 1)
    assert quantizer.codes(x).tolist() == [0.0, 4.0, 15.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rule", ["minmax", "ema", "percentile", "mse", "lsq"])
def test_what_is_not_finite_is_passed_over_in_training_and_refused_in_calibration(
    rule: str, bad: float
) -> None:
    x = torch.linspace(-1, 2, 40)
    broken = x * 7
    broken[3] = bad
    for quantizer in (activation(rule), weight(rule), weight(rule, channels=40)):
        shaped = (lambda t: t[:, None].repeat(1, 2)) if quantizer.channels else (lambda t: t)
        untouched = copy.deepcopy(quantizer.state_dict())
        quantizer(shaped(broken))
        assert all(torch.equal(value, untouched[name]) for name, value in quantizer.state_dict().items())
        quantizer.calibrate(shaped(x))
        before = copy.deepcopy(quantizer.state_dict())
        quantizer(shaped(broken))
        with pytest.raises(BadInput, match="calibration data at layer 3 must be finite"):
            quantizer.calibrate(shaped(broken), "layer 3")
        assert all(torch.equal(value, before[name]) for name, value in quantizer.state_dict().items())


def test_empty_batches() -> None:
    quantizer = activation("ema")
    assert quantizer(torch.zeros(0, 3)).shape == (0, 3)
    assert not bool(quantizer.ready)
    with pytest.raises(BadInput, match="an empty tensor"):
        quantizer.calibrate(torch.zeros(0, 3))


def test_ranges_that_never_saw_data_are_refused() -> None:
    quantizer = activation("mse")
    with pytest.raises(BadInput, match="ranges that never saw data"):
        quantizer.require_ready("the output of conv1")
    quantizer.calibrate(torch.ones(3))
    quantizer.require_ready("the output of conv1")
    quantizer.reset()
    with pytest.raises(BadInput, match="conv1"):
        quantizer.require_ready("the output of conv1")
    fresh = activation("mse").state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in quantizer.state_dict().items())


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_channels_stand_along_their_axis(axis: int) -> None:
    torch.manual_seed(2)
    x = torch.randn(3, 3, 3)
    quantizer = Quantizer(5, rule="minmax", signed=True, symmetric=True, channels=3, axis=axis)
    quantizer.calibrate(x)
    torch.testing.assert_close(quantizer.scale, x.abs().movedim(axis, 0).flatten(1).amax(1) / 15)
    moved = Quantizer(5, rule="minmax", signed=True, symmetric=True, channels=3)
    moved.calibrate(x.movedim(axis, 0))
    assert torch.equal(quantizer(x).movedim(axis, 0), moved(x.movedim(axis, 0)))


def test_weights_are_ranged_anew_at_every_call() -> None:
    for rule in ("minmax", "ema", "percentile", "mse"):
        quantizer = weight(rule)
        quantizer(torch.linspace(-9, 9, 30))
        quantizer(torch.linspace(-1, 1, 30))
        fresh = weight(rule)
        fresh(torch.linspace(-1, 1, 30))
        assert numbers(quantizer) == numbers(fresh), rule


def test_unsigned_weights_are_ranged_anew_when_told() -> None:
    """σ is not negative: unsigned codes of a tensor that is seen whole."""
    quantizer = Quantizer(8, rule="minmax", signed=False, symmetric=True, weight=True)
    quantizer(torch.linspace(0, 9, 30))
    quantizer(torch.linspace(0, 1, 30))
    assert numbers(quantizer) == (pytest.approx(1 / 255), 0.0)


@pytest.mark.parametrize("rule", ["minmax", "ema", "percentile", "mse"])
def test_a_layer_called_twice_in_a_step_gets_the_gradient_of_both_calls(rule: str) -> None:
    """The second call moves the range; the first one's gradient is still that of its own grid."""
    quantizer = activation(rule).train()
    x = torch.tensor([0.1, 0.9], requires_grad=True)
    first = quantizer(x)
    second = quantizer(3 * first)
    second.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert float(x.grad.max()) == 3.0


def test_bad_construction() -> None:
    with pytest.raises(BadInput, match="did you mean 'minmax'"):
        Quantizer(8, rule="minmx", signed=True, symmetric=True)
    with pytest.raises(BadInput, match="bits"):
        Quantizer(1, rule="minmax", signed=True, symmetric=True)
    with pytest.raises(BadInput, match="one scale a tensor"):
        Quantizer(8, rule="minmax", signed=False, symmetric=True, channels=3, weight=False)


@pytest.mark.parametrize("rule", ["minmax", "mse", "ema"])
def test_headroom_reaches_beyond_both_ends(rule: str) -> None:
    """[−1, 3] with an eighth of its width on each side is [−1.5, 3.5]; the range begins at 0 at the least."""
    for data, ends in (
        ([-1.0, 0.5, 3.0], (-1.5, 3.5)),
        ([2.0, 4.0], (-0.5, 4.5)),
        ([-4.0, -2.0], (-4.5, 0.5)),
    ):
        roomy = Quantizer(16, rule=rule, signed=False, symmetric=False, headroom=1 / 8)
        roomy.calibrate(torch.tensor(data))
        scale, zero = roomy.grid()
        low, high = (float(scale * (code - zero)) for code in (roomy.low, roomy.high))
        assert (low, high) == pytest.approx(ends, abs=2 * float(scale))
