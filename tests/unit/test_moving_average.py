"""Ranges that follow the data in kernels: the range, the grid and the flags of the plain operations.

Triton's kernels run on a GPU, or anywhere by its interpreter (``TRITON_INTERPRET=1``); those in C on a CPU.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import needs
import qbayes as qb
from fine_tuned import tuning
from kernels import DEVICE, kernels_are_taken, to_train  # noqa: F401  (a fixture)
from qbayes.integer.arithmetic.grid import EMPTY_SCALE
from qbayes.quant import quantizer
from qbayes.quant.kernels import moving_average
from qbayes.quant.kernels.c_kernels import kernels
from qbayes.quant.quantizer import Quantizer

WAYS = [
    pytest.param("triton", marks=needs.triton),
    pytest.param("c", marks=needs.unless(kernels(), needs.COMPILER)),
]


def seen(one: Quantizer, batches: list[Tensor], way: str) -> dict[str, Tensor]:
    """The buffers of a new quantiser after these batches, by Triton, C or torch."""
    device = DEVICE if way == "triton" else "cpu"
    one.to(device).reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving_average, "on_a_gpu", lambda x: way == "triton")
        patch.setattr(moving_average, "triton_works_on", lambda device: True)
        if way == "torch":
            patch.setattr(quantizer, "can_follow", lambda x, grid: False)
        else:
            patch.setattr(one, "_see", lambda x: pytest.fail("torch sees"))
        for x in batches:
            one.observe(x.to(device))
    return {name: value.clone().cpu() for name, value in one.state_dict().items()}


def check(way: str, one: Quantizer, batches: list[Tensor]) -> dict[str, Tensor]:
    mine, plain = (seen(one, batches, how) for how in (way, "torch"))
    assert mine.keys() == plain.keys()
    for name, value in mine.items():
        if value.is_floating_point():
            # a product and a sum may be one operation, rounded once.
            torch.testing.assert_close(value, plain[name], rtol=1e-6, atol=0)
        else:
            assert torch.equal(value, plain[name]), name
    return mine


def activations(bits: int = 4, rule: str = "ema") -> Quantizer:
    return Quantizer(bits, rule=rule, signed=False, symmetric=False)


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 2**16),
    bits=st.integers(2, 8),
    sizes=st.lists(st.sampled_from([1, 7, 4096, 5000]), min_size=1, max_size=3),
    shift=st.sampled_from([-5.0, 0.0, 5.0]),
)
def test_a_moving_average_moves_as_the_plain_one(
    way: str, seed: int, bits: int, sizes: list[int], shift: float
) -> None:
    torch.manual_seed(seed)
    found = check(way, activations(bits), [torch.randn(size) + shift for size in sizes])
    assert bool(found["ready"])
    assert bool(found["observed_started"])


@pytest.mark.parametrize("way", WAYS)
def test_weights_have_the_extremes_of_now(way: str) -> None:
    torch.manual_seed(0)
    for rule in ("ema", "minmax"):
        one = Quantizer(4, rule=rule, signed=True, symmetric=False)
        weights = torch.randn(6, 5, 3, 3).contiguous(memory_format=torch.channels_last)
        found = check(way, one, [5 * weights, weights])
        width = weights.max().double() - weights.min().double()
        assert float(found["scale"]) == pytest.approx(float(width) / 15, rel=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_finite_is_passed_over_and_zeros_have_a_scale(way: str) -> None:
    good, bad = torch.randn(5000), torch.randn(5000)
    bad[4999] = float("nan")
    endless = torch.tensor([1.0, float("inf")])
    assert not bool(check(way, activations(), [bad, endless])["ready"])
    found = check(way, activations(), [good, bad, endless])
    alone = seen(activations(), [good], way)
    assert all(torch.equal(value, alone[name]) for name, value in found.items())
    assert float(check(way, activations(), [torch.zeros(3)])["scale"]) == EMPTY_SCALE


@pytest.mark.parametrize("way", WAYS)
def test_many_blocks_and_half_precision(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving_average, "_BLOCKS", 2)
    torch.manual_seed(0)
    x = torch.randn(5 * 4096 + 3)
    found = check(way, activations(8), [x.bfloat16(), 2 * x.bfloat16()])
    assert float(found["observed_high"]) == pytest.approx(1.01 * float(x.bfloat16().max()), rel=1e-5)


def test_other_rules_grids_and_devices_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*given: object) -> None:
        raise AssertionError("a kernel was called")

    monkeypatch.setattr(quantizer, "follow", called)
    x = torch.randn(30)
    for other in (x.half(), x[::2], x.double()):
        activations().observe(other)
    monkeypatch.setattr(quantizer, "can_follow", lambda *given: True)
    activations(rule="minmax").observe(x)
    activations(rule="mse").observe(x)
    Quantizer(4, rule="ema", signed=False, symmetric=True).observe(x)
    Quantizer(4, rule="ema", signed=False, symmetric=False, headroom=0.1).observe(x)
    with pytest.raises(AssertionError):
        activations().observe(x)


@needs.triton
@pytest.mark.usefixtures("kernels_are_taken")
def test_the_papers_recipe_on_a_gpu_gives_what_plain_operations_give(monkeypatch: pytest.MonkeyPatch) -> None:
    network, task = to_train()
    steps = {"epochs": 2, "batch_size": 128 if needs.ON_GPU else 20, "learning_rate": 1e-3}
    budget, finetuning = qb.Budget(**steps), tuning(**steps)
    posterior = qb.fit(network, task, qb.method("pointwise"), budget, device=DEVICE, progress=False)
    paper = qb.Precision.preset("paper")
    calls: list[Tensor] = []

    def noted(x: Tensor, *given: object) -> None:
        calls.append(x)
        moving_average.follow(x, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(quantizer, "follow", noted)
    made = [qb.quantize(posterior, task, paper, finetuning, device=DEVICE, progress=False)]
    assert calls
    monkeypatch.setattr(quantizer, "can_follow", lambda *given: False)
    made.append(qb.quantize(posterior, task, paper, finetuning, device=DEVICE, progress=False))
    one, other = (made[index].members[0] for index in (0, 1))
    for name, value in one.items():
        if name.endswith("scale"):
            torch.testing.assert_close(value, other[name], rtol=1e-3, atol=0)


@needs.unless(kernels(), needs.COMPILER)
def test_the_number_of_threads_changes_no_bit() -> None:
    x, before = torch.randn(200_003), torch.get_num_threads()
    try:
        found: list[dict[str, Tensor]] = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(seen(activations(), [x, 2 * x], "c"))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
