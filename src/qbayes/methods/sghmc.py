# torch's own optimisers stand on the _foreach operations; the stubs call them private and type them narrowly.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false, reportArgumentType=false
r"""Stochastic-gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin, ICML 2014), scale-adapted
(Springenberg, Klein, Falkner and Hutter, *Bayesian optimization with robust Bayesian neural networks*,
NeurIPS 2016).

With ``U(θ) = −N·E[log p(y | x, θ)] + ½ λ ‖θ‖²`` and the step size ε,

.. math::
    v &\leftarrow (1 - C)\, v - \epsilon^2 \hat V^{-1/2} \nabla U(\theta)
        + \mathcal N\bigl(0,\; \max(0,\, 2 \epsilon^2 \hat V^{-1/2} C - \epsilon^4)\, T\bigr) \\
    \theta &\leftarrow \theta + v

``V̂`` estimates the second moment of the gradient with the adaptive window ``τ`` and is frozen after burn-in.
The variance is clamped at 0: without that it turns negative where ``V̂`` is large.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qbayes.errors import BadInput
from qbayes.methods.base import METHODS, OF_IMAGES, Method, Preset, trainable
from qbayes.methods.pointwise import Pointwise
from qbayes.posterior.likelihood import Likelihood, Outputs
from qbayes.posterior.sites import Attachment


class SGHMC(torch.optim.Optimizer):
    """Scale-adapted SGHMC as an ordinary optimiser: ``loss.backward(); sampler.step()``.

    The loss is the *mean* negative log-likelihood of a batch; ``rows`` (N) turns it into the energy.
    ``burn_in``, ``resample_momentum`` and ``resample_prior`` count steps (0: never resample). The prior
    precision λ of each tensor is resampled from ``Gamma(10 + n/2, 10 + ‖θ‖²/2)``, or stays at
    ``prior_precision``. With ``stacked`` the first axis of every parameter counts independent networks, each
    with its own λ; ``lend`` then says how: inside ``lend(k)`` torch's generator is that of network k.
    """

    lend: Callable[[int], AbstractContextManager[None]] | None = None

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-2,
        *,
        rows: int,
        burn_in: int = 1000,
        friction: float = 0.05,
        resample_momentum: int = 50,
        resample_prior: int = 100,
        prior_precision: float = 100.0,
        temperature: float = 1.0,
        stacked: bool = False,
    ) -> None:
        if lr <= 0 or not 0 < friction < 1 or rows < 1 or temperature < 0 or prior_precision < 0:
            raise BadInput(
                "SGHMC needs lr > 0, 0 < friction < 1, rows ≥ 1, temperature ≥ 0 and prior_precision ≥ 0",
                f"lr={lr}, friction={friction}, rows={rows}, temperature={temperature}, "
                f"prior_precision={prior_precision}",
                "start from lr=1e-2, friction=0.05, temperature=1",
            )
        if resample_momentum < 0 or resample_prior < 0:
            raise BadInput(
                "SGHMC needs resample_momentum ≥ 0 and resample_prior ≥ 0",
                f"resample_momentum={resample_momentum}, resample_prior={resample_prior}",
                "give a number of steps, or 0 never to resample",
            )
        defaults = {
            "lr": lr,
            "rows": rows,
            "burn_in": burn_in,
            "friction": friction,
            "resample_momentum": resample_momentum,
            "resample_prior": resample_prior,
            "prior_precision": prior_precision,
            "temperature": temperature,
            "stacked": stacked,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_group(group, parameters)
        return loss

    def _step_group(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self._begin(parameter, group)
        states = [self.state[parameter] for parameter in parameters]
        step = int(states[0]["step"])
        if group["resample_prior"] and step % group["resample_prior"] == 0:
            self._resample_precision(states, parameters, group["stacked"])
        gradients = torch._foreach_mul([_gradient(p) for p in parameters], float(group["rows"]))
        torch._foreach_addcmul_(
            gradients,
            [s["precision"].expand_as(p) for s, p in zip(states, parameters, strict=True)],
            parameters,
        )
        if step < group["burn_in"]:
            _adapt(states, gradients)
        inverse_root = torch._foreach_add([state["second_moment"] for state in states], 1e-16)
        torch._foreach_rsqrt_(inverse_root)
        step_sizes = torch._foreach_mul(inverse_root, group["lr"] ** 2)
        if group["resample_momentum"] and step % group["resample_momentum"] == 0:
            self._resample_momentum(states, step_sizes, group["temperature"])
        self._move(states, parameters, gradients, step_sizes, group)
        for state in states:
            state["step"] += 1

    def _begin(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        ones = torch.ones_like(parameter, memory_format=torch.preserve_format)
        per_network = (
            (parameter.shape[0],) + (1,) * (parameter.ndim - 1) if group["stacked"] else (1,) * parameter.ndim
        )
        state["step"] = 0
        state["velocity"] = torch.zeros_like(ones)
        state["window"] = ones.clone()
        state["gradient_mean"] = torch.zeros_like(ones)
        state["second_moment"] = ones
        state["precision"] = parameter.new_full(per_network, group["prior_precision"])

    def _resample_precision(
        self, states: list[dict[str, Any]], parameters: list[nn.Parameter], stacked: bool
    ) -> None:
        """``λ ~ Gamma(10 + n/2, 10 + ‖θ‖²/2)``: conjugate to the Gaussian, under a Gamma(10, 10) on λ."""
        squares = [_squares(parameter, stacked) for parameter in parameters]
        shapes = [
            torch.full_like(square, 10.0 + parameter.numel() / square.numel() / 2)
            for square, parameter in zip(squares, parameters, strict=True)
        ]
        self._draw(shapes, _gamma_)
        for state, drawn, square in zip(states, shapes, squares, strict=True):
            state["precision"] = drawn / (10.0 + square / 2)

    def _resample_momentum(
        self, states: list[dict[str, Any]], step_sizes: list[Tensor], temperature: float
    ) -> None:
        """``v ~ N(0, T ε² V̂^(−1/2))``: the momentum's stationary distribution."""
        velocities = [state["velocity"] for state in states]
        self._draw(velocities, Tensor.normal_)
        for velocity, size in zip(velocities, step_sizes, strict=True):
            velocity.mul_((size * temperature).sqrt())

    def _move(
        self,
        states: list[dict[str, Any]],
        parameters: list[nn.Parameter],
        gradients: list[Tensor],
        step_sizes: list[Tensor],
        group: dict[str, Any],
    ) -> None:
        friction, epsilon = group["friction"], group["lr"]
        velocities = [state["velocity"] for state in states]
        torch._foreach_mul_(velocities, 1.0 - friction)
        torch._foreach_addcmul_(velocities, step_sizes, gradients, value=-1.0)
        if group["temperature"] > 0:
            deviations = torch._foreach_mul(step_sizes, 2.0 * friction)
            torch._foreach_sub_(deviations, epsilon**4)
            torch._foreach_clamp_min_(deviations, 0.0)
            torch._foreach_mul_(deviations, group["temperature"])
            torch._foreach_sqrt_(deviations)
            noise = [torch.empty_like(velocity) for velocity in velocities]
            self._draw(noise, Tensor.normal_)
            torch._foreach_addcmul_(velocities, deviations, noise)
        torch._foreach_add_(parameters, velocities)

    def _draw(self, tensors: list[Tensor], fill: Callable[[Tensor], Tensor]) -> None:
        """Fill the tensors with noise, one after the other; those of a stack network by network."""
        if self.lend is None:
            for tensor in tensors:
                fill(tensor)
            return
        for network in range(len(tensors[0])):
            with self.lend(network):
                for tensor in tensors:
                    fill(tensor[network])


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _adapt(states: list[dict[str, Any]], gradients: list[Tensor]) -> None:
    """``τ ← τ (1 − g²/V̂) + 1``, then ``g`` and ``V̂`` move by ``1/(τ + 1)`` towards ``∇U`` and ``∇U²``.

    The share is below 1, so that V̂ stays an average of several gradients: with 1/τ it would follow the last.
    """
    windows = [state["window"] for state in states]
    means = [state["gradient_mean"] for state in states]
    seconds = [state["second_moment"] for state in states]
    ratios = torch._foreach_div(torch._foreach_mul(means, means), torch._foreach_add(seconds, 1e-16))
    torch._foreach_mul_(windows, torch._foreach_add(torch._foreach_neg(ratios), 1.0))
    torch._foreach_add_(windows, 1.0)
    shares = torch._foreach_reciprocal(torch._foreach_add(windows, 1.0))
    torch._foreach_lerp_(means, gradients, shares)
    torch._foreach_lerp_(seconds, torch._foreach_mul(gradients, gradients), shares)


def _squares(parameter: nn.Parameter, stacked: bool) -> Tensor:
    """``‖θ‖²`` of a tensor, one a network of a stack, with as many axes as the tensor."""
    axes = list(range(1, parameter.ndim)) if stacked else list(range(parameter.ndim))
    return (parameter * parameter).sum(axes, keepdim=True) if axes else parameter * parameter


def _gamma_(shape: Tensor) -> Tensor:
    return shape.copy_(torch._standard_gamma(shape))


@METHODS.register("sghmc")
@dataclass(frozen=True, kw_only=True)
class SGHMCMethod(Method):
    """Members from one chain of SGHMC: kept every few epochs, up to the last epoch.

    Example:
        >>> method = SGHMCMethod(members=3, every=2)
        >>> [epoch for epoch in range(1, 11) if method.collect(epoch, 10)]
        [6, 8, 10]

    Attributes:
        members: How many states are kept; 20 by default.
        every: Epochs from one to the next; 2 by default.
        burn_in: Epochs in which the sampler adapts V̂; None, the default: until the first member.
        friction: C; 0.05 by default.
        resample_momentum: Steps after which the momentum is drawn anew; 50 by default, 0: never.
        resample_prior: Steps after which the prior precision λ is drawn anew; 100 by default, 0: never.
        prior_precision: λ where it is never drawn anew; 100 by default.
        likelihood_weight: Above 1 it sharpens the likelihood (a cold posterior); 1 by default.
        temperature: T, which scales the injected noise; 1 by default.
    """

    name: ClassVar[str] = "sghmc"
    gaussian: ClassVar[bool] = False
    members: int = 20
    every: int = 2
    burn_in: int | None = None
    friction: float = 0.05
    resample_momentum: int = 50
    resample_prior: int = 100
    prior_precision: float = 100.0
    likelihood_weight: float = 1.0
    temperature: float = 1.0

    _STEADY: ClassVar[Mapping[str, object]] = {"schedule": "constant"}

    presets: ClassVar[Mapping[str, Preset]] = {
        "default/classification": Preset(
            {},
            {"epochs": 80, "least_steps": 3000, "batch_size": 256, "learning_rate": 1e-2, **_STEADY},
        ),
        # with a step of 1e-2 two of three chains of the LeNet diverged.
        "default/mnist": Preset({}, {"epochs": 80, "batch_size": 256, "learning_rate": 5e-3, **_STEADY}),
        "default/regression": Preset(
            {},
            {"epochs": 60, "least_steps": 3000, "batch_size": 64, "learning_rate": 1e-2, **_STEADY},
        ),
        "default/uci": Preset(
            {},
            {"epochs": 60, "least_steps": 6000, "batch_size": 64, "learning_rate": 1e-2, **_STEADY},
        ),
        "default/cifar10": Preset(
            {
                "burn_in": 6,
                "members": 10,
                "every": 1,
                "resample_prior": 25,
                "likelihood_weight": 16.0,
            },
            {"epochs": 30, "batch_size": 256, "learning_rate": 4e-3, **_STEADY, **OF_IMAGES},
            start="pointwise",
        ),
    }

    def __post_init__(self) -> None:
        self.require(self.members >= 1, "members", "at least 1")
        self.require(self.every >= 1, "every", "at least 1")
        self.require(self.burn_in is None or self.burn_in >= 0, "burn_in", "at least 0 epochs")
        self.require(0 < self.friction < 1, "friction", "above 0 and below 1")
        self.require(self.likelihood_weight > 0, "likelihood_weight", "above 0")
        self.require(self.temperature >= 0, "temperature", "at least 0")
        for option in ("resample_momentum", "resample_prior"):
            self.require(getattr(self, option) >= 0, option, "at least 0 steps (0: never)")

    def plan(self, network: nn.Module, example: Tensor | None) -> Attachment:
        everything = Pointwise().plan(network, example).left_alone
        return Attachment(
            (),
            tuple((name, why.replace("a point estimate", "sampled as members")) for name, why in everything),
        )

    def loss(
        self, module: nn.Module, outputs: Outputs, target: Tensor, likelihood: Likelihood, rows: int
    ) -> Tensor:
        return self.likelihood_weight * super().loss(module, outputs, target, likelihood, rows)

    def make_optimizer(
        self,
        module: nn.Module,
        learning_rate: float,
        *,
        rows: int,
        steps_per_epoch: int,
        epochs: int,
        stacked: bool = False,
    ) -> torch.optim.Optimizer:
        first_member = epochs - self.every * (self.members - 1)
        burn_in = max(0, first_member - 1) if self.burn_in is None else self.burn_in
        if first_member < 1 or burn_in >= first_member:
            enough = burn_in + self.every * (self.members - 1) + 1
            raise BadInput(
                f"sghmc must have epochs for its burn-in ({max(burn_in, 0)}) and {self.members} members, "
                f"one every {self.every}",
                f"{epochs} epochs",
                f"train for at least {enough} epochs, or keep fewer members",
            )
        return SGHMC(
            trainable(module),
            learning_rate,
            rows=rows,
            burn_in=burn_in * steps_per_epoch,
            friction=self.friction,
            resample_momentum=self.resample_momentum,
            resample_prior=self.resample_prior,
            prior_precision=self.prior_precision,
            temperature=self.temperature,
            stacked=stacked,
        )

    def collect(self, epoch: int, epochs: int) -> bool:
        left = epochs - epoch
        return left % self.every == 0 and left < self.every * self.members
