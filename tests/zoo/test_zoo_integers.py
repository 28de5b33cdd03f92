"""The zoo in integers: networks keep what they learnt, draws differ, and the noise is that of float."""

import functools

import pytest
import torch

import qbayes as qb
from fine_tuned import tuning
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.gaussian_draws import pairs
from qbayes import noise
from qbayes.integer.ops import OPS, Mask, Noise
from qbayes.posterior import sites
from qbayes.training.fit import prepare
from zoo.tasks import BAYESIAN, CASES, METHODS, SHORT, TASKS, ZOO, held_out, score, trained

W8A8, W4A4 = qb.Precision(), qb.Precision(weight=4, activation=4)
# of the score (accuracy or R²): what 8 bits may cost by calibration alone, and 4 bits after one epoch.
LOST_AT_8, LOST_AT_4 = 0.02, 0.08
# every member of an ensemble is trained by itself: one ensemble will do in the short run.
TRAINED_ON = [
    pytest.param(name, method, marks=() if short else pytest.mark.full)
    for name in ZOO
    for method in METHODS
    for short in [SHORT[name] == method and (method != "sghmc" or name == "mlp_silu")]
]


def quantised(posterior: qb.NetworkPosterior, name: str, precision: qb.Precision, epochs: int) -> qb.Program:
    # ranges are set batch by batch: few large ones are quicker.
    budget = tuning(epochs=epochs, batch_size=64 if epochs else 512, learning_rate=3e-3, clip=1.0)
    task = TASKS[ZOO[name].task]()
    return qb.lower(qb.quantize(posterior, task, precision, budget, device="cpu", progress=False))


@functools.cache
def calibrated(name: str, method: str) -> qb.Program:
    """The program of a posterior of the zoo at W8A8, without training."""
    return quantised(trained(name, method), name, W8A8, epochs=0)


@pytest.mark.parametrize(("name", "method"), CASES)
def test_eight_bits_cost_next_to_nothing_without_training(name: str, method: str) -> None:
    kept = score(qb.load(calibrated(name, method)), name)
    assert kept >= score(trained(name, method), name) - LOST_AT_8


@pytest.mark.parametrize(("name", "method"), TRAINED_ON)
def test_four_bits_hold_after_an_epoch_of_training(name: str, method: str) -> None:
    program = quantised(trained(name, method), name, W4A4, epochs=1)
    assert score(qb.load(program), name) >= ZOO[name].floors[method] - LOST_AT_4


@pytest.mark.parametrize(("name", "method"), CASES)
def test_draws_differ_in_integers_where_the_method_is_bayesian(name: str, method: str) -> None:
    """No row of a Bayesian answer is the same in all draws; a point's draws are all equal."""
    x, _ = held_out(name)
    draws = qb.load(calibrated(name, method)).predict(x[:100], draws=8, seed=0).draws
    apart = (draws[1:] - draws[:1]).abs().flatten(2).amax((0, 2))
    assert bool((apart > 0).all()) if method in BAYESIAN else bool((apart == 0).all())


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("unet_map", "mcd"),
        ("mlp_tanh", "bbb"),
        ("sequence", "bbb"),
        ("mlp_silu", "sghmc"),
        *(
            pytest.param(name, method, marks=pytest.mark.full)
            for name in ("vgg", "mobilenet_v2", "mlp_silu", "unet", "wavenet")
            for method in ("mcd", "bbb")
        ),
    ],
)
def test_a_draw_is_the_float_posteriors_draw(name: str, method: str) -> None:
    """What a draw differs by from the mean of the draws is the same in float and in integers."""
    x, _ = held_out(name)
    inputs, draws = x[:100], 8
    program = qb.load(calibrated(name, method))

    def deviations(posterior: qb.Posterior, seed: int) -> torch.Tensor:
        found = posterior.predict(inputs, draws=draws, seed=seed).draws.double()
        return (found - found.mean(0)).flatten()

    def correlation(seed: int) -> float:
        both = torch.stack([deviations(trained(name, method), 0), deviations(program, seed)])
        return float(torch.corrcoef(both)[0, 1])

    assert correlation(seed=0) > 0.9
    if method != "sghmc":  # whose draws are its members, whatever the seed
        assert abs(correlation(seed=1)) < 0.5


@pytest.mark.parametrize("name", ["vgg", "unet_map", pytest.param("wavenet", marks=pytest.mark.full)])
def test_float_and_integer_masks_are_the_same_bits(name: str) -> None:
    """Elementwise and by channel, for rows in the middle of a data set."""
    masks = {m.site: m for m in trained(name, "mcd").network.modules() if isinstance(m, sites.Mask)}
    program = calibrated(name, "mcd")
    ops = [op for op in program.ops if isinstance(op, Mask)]
    assert {op.site for op in ops} == set(masks)
    draws, rows = torch.tensor([0, 3]), 5
    for op in ops:
        ones = torch.ones(rows, *program.values[op.output].shape)
        kept = op.keep((2 * rows, *ones.shape[1:]), Noise(7, draws, 11, rows)).expand(-1, *ones.shape[1:])
        for index, draw in enumerate(draws):
            with noise.streaming(noise.Stream(7, draw, 11, {}, rows)):
                wanted = masks[op.site](ones) > 0
            assert torch.equal(kept[index * rows : (index + 1) * rows], wanted)
        assert bool(kept.any())
        assert not bool(kept.all())


def test_float_and_integer_weights_have_the_same_noise() -> None:
    """Weight by weight ``g (w − μ)`` of the float layer is the op's, in channels with a negative gain too."""
    posterior, program = trained("sequence", "bbb"), calibrated("sequence", "bbb")
    found = list(pairs(posterior, program, {"conv1": "norm1", "conv2": "norm2"}))
    assert len(found) == 4
    assert any(bool((pair.gain < 0).any()) and bool((pair.gain > 0).any()) for pair in found)
    for pair in found:
        drawn = torch.stack([pair.integer_weights(program, 2, draw) for draw in range(16)])
        wanted = torch.stack([pair.float_noise(2, draw) for draw in range(16)])
        ours = (drawn - drawn.mean(0)).flatten(2).transpose(0, 1).flatten(1)
        theirs = (wanted - wanted.mean(0)).flatten(2).transpose(0, 1).flatten(1)
        for one, other in zip(ours, theirs, strict=True):
            assert float(torch.corrcoef(torch.stack([one, other]))[0, 1]) > 0.9


def test_the_zoo_uses_every_op() -> None:
    used: set[str] = set()
    for name, entry in ZOO.items():
        task = TASKS[entry.task]()
        network, _ = prepare(entry.build, task, qb.method("mcd"), seed=0, chain=0, start=None)
        posterior = qb.Posterior.from_trained(network, task.signature)
        used |= {op.kind for op in quantised(posterior, name, W8A8, epochs=0).ops}
    assert used == set(OPS)
