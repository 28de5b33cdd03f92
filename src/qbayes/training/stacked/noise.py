"""The noise of a stack: each network draws from a generator of its own, as it would if trained alone.

A single network takes the noise of its masks and Gaussian layers from torch's global generator, in the order
in which its layers run. For a stack that order is *recorded* in one pass of a single network; then, for every
step, the global generator is *lent* to one network after the other, which draws all of the step's noise in
that order, and the stacked program reads it as an input.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qbayes.errors import BadInput
from qbayes.posterior.sites import HandedNoise, Mask, noise_name, stochastic_layers


class CannotStack(BadInput):
    """A network, task or budget that has to be trained by itself."""

    @classmethod
    def because(cls, why: str) -> "CannotStack":
        return cls("a network must be fit for stacked training", why, "train it by itself with qb.fit")


class OrderGenerators:
    """One CPU generator a network, for the order of its rows."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def permutations(self, rows: int) -> Tensor:
        """The next order of each network, ``(networks, rows)``."""
        return torch.stack([torch.randperm(rows, generator=one) for one in self.generators])

    def get_state(self) -> Tensor:
        return torch.stack([one.get_state() for one in self.generators])

    def set_state(self, new_state: Tensor, /) -> None:
        for one, state in zip(self.generators, new_state, strict=True):
            one.set_state(state.clone())


class NoiseGenerators:
    """The states of K generators, of which each can stand in for torch's global one on a device."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.device = device
        self.states = [torch.Generator(device).manual_seed(seed).get_state() for seed in seeds]

    @contextmanager
    def lend(self, network: int) -> Iterator[None]:
        """Inside, torch's global generator is that of ``network``. (A swap takes about a microsecond.)"""
        generator = global_generator(self.device)
        generator.set_state(self.states[network])
        yield
        self.states[network] = generator.get_state()

    def get_state(self) -> Tensor:
        return torch.stack(self.states)

    def set_state(self, states: Tensor) -> None:
        self.states = [state.clone() for state in states]


def global_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


@dataclass
class Draw:
    """One drawing of noise in a pass: a layer's mask, or the ε of its outputs; ``kept`` is (networks, …)."""

    layer: nn.Module
    shape: tuple[int, ...]
    like: Tensor
    kept: Tensor = field(init=False)

    def fill(self, network: int) -> None:
        if isinstance(self.layer, Mask):
            # the class's own: that of the layer reads what is kept here.
            self.kept[network] = Mask.training_mask(self.layer, self.shape, self.like)
        else:
            self.kept[network].normal_()


class Reads(Protocol):
    """What can tell whether a network's outputs have the form it reads."""

    def check(self, outputs: Any, rows: int) -> None: ...


class TrainingNoise:
    """Takes the place of the noise that the layers of ``network`` draw in training."""

    def __init__(self, network: nn.Module, likelihood: "Reads", generators: NoiseGenerators) -> None:
        self.network, self.likelihood, self.generators = network, likelihood, generators
        self._plans: dict[int, list[Draw]] = {}
        self._recording: list[Draw] | None = None
        self._served: Iterator[Tensor] = iter(())
        for layer in stochastic_layers(network):
            handed = vars(layer).get(noise_name(layer))
            if isinstance(handed, HandedNoise):
                handed.set_draw(_Tap(self, layer))
            else:
                setattr(layer, noise_name(layer), _Tap(self, layer))

    def draw(self, x: Tensor) -> list[Tensor]:
        """The noise of a pass over ``x`` ``(networks, rows, …)``, each tensor ``(networks, …)``."""
        rows = x.shape[1]
        if rows not in self._plans:
            self._plans[rows] = self._record(x[0], len(x))
        plan = self._plans[rows]
        if plan:
            for network in range(len(x)):
                with self.generators.lend(network):
                    for draw in plan:
                        draw.fill(network)
        return [draw.kept for draw in plan]

    def serve(self, noise: Sequence[Tensor]) -> None:
        """Hand ``noise`` to the layers of the next pass, in turn."""
        self._served = iter(noise)

    def take(self, layer: nn.Module, shape: tuple[int, ...], like: Tensor) -> Tensor:
        if self._recording is None:
            return next(self._served)
        self._recording.append(Draw(layer, shape, like))
        return torch.ones(shape, dtype=like.dtype, device=like.device)

    @torch.no_grad()
    def _record(self, x: Tensor, networks: int) -> list[Draw]:
        generator = global_generator(x.device)
        before = generator.get_state()
        self._recording = []
        try:
            # networks may change their batch only beyond the two rows of the dry run.
            self.likelihood.check(self.network(x), len(x))
            plan = self._recording
        finally:
            self._recording = None
        if not torch.equal(generator.get_state(), before):
            raise CannotStack.because(
                "it draws noise of its own in training, such as a Dropout layer that is no site"
            )
        for draw in plan:
            if not draw.like.is_contiguous():
                # the generator fills memory in its order, which a stack would not have.
                raise CannotStack.because("a stochastic layer works on a transposed or strided tensor")
            draw.kept = torch.empty((networks, *draw.shape), dtype=draw.like.dtype, device=x.device)
            # only its dtype and device are needed from here on.
            draw.like = torch.empty(0, dtype=draw.like.dtype, device=x.device)
        return plan


class _Tap:
    """Stands where a layer's own drawing of noise was."""

    def __init__(self, noise: TrainingNoise, layer: nn.Module) -> None:
        self.noise, self.layer = noise, layer

    def __call__(self, *given: Any) -> Tensor:
        *shape, like = given
        return self.noise.take(self.layer, tuple(shape[0]) if shape else tuple(like.shape), like)
