"""Clipping and the checks of losses and states, on one network and on a stack."""

import pytest
import torch
from torch import nn

from qbayes.errors import RunFailed
from qbayes.training.guard import check_losses, check_state, clip_gradients

SHAPES = [(3, 4), (5,), (), (2, 2, 3, 3)]


def parameters(gradients: list[torch.Tensor]) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = gradient.clone()
    return made


@pytest.mark.parametrize("limit", [0.1, 3.0, 1e6])
def test_clipping_is_torchs(limit: float) -> None:
    gradients = [torch.randn(shape) for shape in SHAPES]
    ours, theirs = parameters(gradients), parameters(gradients)
    norm = clip_gradients(ours, limit)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs, limit))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-7)


def test_a_stack_is_clipped_as_each_network_alone() -> None:
    scales = [0.01, 1.0, 100.0]
    alone = [[scale * torch.randn(shape) for shape in SHAPES] for scale in scales]
    stacked = parameters([torch.stack(group) for group in zip(*alone, strict=True)])
    norms = clip_gradients(stacked, 2.0, stacked=True)
    for index, gradients in enumerate(alone):
        single = parameters(gradients)
        torch.testing.assert_close(clip_gradients(single, 2.0), norms[index])
        for a, b in zip(single, stacked, strict=True):
            torch.testing.assert_close(a.grad, b.grad[index])


def test_parameters_without_gradient() -> None:
    lonely = nn.Parameter(torch.ones(3))
    assert float(clip_gradients([lonely], 1.0)) == 0.0
    assert lonely.grad is None
    zero = parameters([torch.zeros(3)])
    clip_gradients(zero, 1.0)
    assert torch.equal(zero[0].grad, torch.zeros(3))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite(value: float) -> None:
    for may_rise in (False, True):
        with pytest.raises(RunFailed, match=r"epoch 4 the loss is not finite"):
            check_losses([1.0, 1.0, 1.0, value], may_rise=may_rise)


def test_a_loss_that_stays_far_above_the_first() -> None:
    check_losses([1e9])
    check_losses([-1.0, -50.0])
    check_losses([1.0, *[199.0] * 9])
    spike = [-1.0, 201.0, 1e4, 1e5, 300.0]
    check_losses(spike)
    check_losses([*spike, 3.0])
    with pytest.raises(RunFailed, match=r"epoch 6 the loss is over 100 times.*\(201\)"):
        check_losses([*spike, 201.0])
    check_losses([*spike, 201.0], may_rise=True)


def test_a_state_is_not_kept_in_the_middle_of_a_spike() -> None:
    with pytest.raises(RunFailed, match="over 100 times"):
        check_losses([1.0, 1000.0], kept=True)
    check_losses([1.0, 1000.0, 5.0], kept=True)
    check_losses([1.0, 1000.0], kept=True, may_rise=True)


def test_a_state_that_is_not_finite() -> None:
    check_state({"a": torch.ones(2), "count": torch.tensor(3)}, 1)
    with pytest.raises(RunFailed, match="after epoch 7, b is not"):
        check_state({"a": torch.ones(2), "b": torch.tensor([1.0, float("inf")])}, 7)
