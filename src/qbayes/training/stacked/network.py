"""K networks of one structure as one module, whose parameters have the networks on their first axis."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from qbayes.methods.base import DrawsNoise, Method
from qbayes.posterior.likelihood import Outputs
from qbayes.tasks import Task
from qbayes.training.budget import Budget, steps_in_epoch
from qbayes.training.loop import in_float32
from qbayes.training.stacked.convolution import StackedConvolutions
from qbayes.training.stacked.noise import NoiseGenerators, TrainingNoise

# axes of a stacked linear layer's weight: networks, outputs, inputs; a convolution's has more.
_OF_A_LINEAR_LAYER = 3


class Stack(nn.Module):
    """``forward(x, y)`` gives each network's loss, ``(networks,)``, for inputs ``(networks, rows, …)``.

    ``template`` gives the structure: it is run under ``vmap``, with the parameters of all in the place of its
    own. ``numbers`` names attributes of modules that are numbers and may differ between the networks; if
    any does, they become tensors too.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        template: nn.Module,
        loss: Callable[[Outputs, Tensor], Tensor],
        noise: TrainingNoise,
        numbers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__()
        self._loss_of_outputs, self._noise = loss, noise
        # in a tuple: its own parameters are not to be found, saved or trained.
        self._template = (template.train(),)
        own = {place: _numbers(networks, *place) for place in numbers}
        if all(len(set(values)) == 1 for values in own.values()):
            own = {}
        self._slots = _Slots(template, list(own))
        self.weights = nn.ParameterList()
        for name in self._slots.parameters:
            parts = [network.get_parameter(name) for network in networks]
            stacked = torch.stack([part.detach() for part in parts])
            self.weights.append(nn.Parameter(stacked, requires_grad=parts[0].requires_grad))
        for index, name in enumerate(self._slots.buffers):
            self.register_buffer(f"buffer{index}", torch.stack([one.get_buffer(name) for one in networks]))
        for index, values in enumerate(own.values()):
            self.register_buffer(f"number{index}", torch.tensor(values), persistent=False)
        convolves = any(weight.ndim > _OF_A_LINEAR_LAYER for weight in self.weights)
        self._mode = StackedConvolutions() if convolves else contextlib.nullcontext()
        self._losses = vmap(self._loss, randomness="error")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.losses(x, y, self.draw_noise(x))

    def draw_noise(self, x: Tensor) -> list[Tensor]:
        """The noise of a pass over ``x``, in places that stay the same for all batches of its shape."""
        return self._noise.draw(x)

    def losses(self, x: Tensor, y: Tensor, noise: list[Tensor]) -> Tensor:
        """As ``forward``, with noise that was drawn before."""
        values = [*self.weights, *self._buffers.values()]
        with self._mode:
            return self._losses(values, x, y, noise)

    def split(self, state: Mapping[str, Tensor], network: int) -> dict[str, Tensor]:
        """The state of one network, by its own names, out of this module's ``state``."""
        own = {name: f"weights.{index}" for index, name in enumerate(self._slots.parameters)}
        own |= {name: f"buffer{index}" for index, name in enumerate(self._slots.buffers)}
        return {name: state[own[first]][network].clone() for name, first in self._slots.of_state.items()}

    def _loss(self, values: list[Tensor], x: Tensor, y: Tensor, noise: list[Tensor]) -> Tensor:
        self._noise.serve(noise)
        with self._slots.holding(values):
            return self._loss_of_outputs(in_float32(self._template[0](x)), y)


class _Slots:
    """Where the parameters, buffers and numbers of a module are held; a tied one in several places."""

    def __init__(self, module: nn.Module, numbers: Sequence[tuple[str, str]] = ()) -> None:
        self.parameters = tuple(name for name, _ in module.named_parameters())
        self.buffers = tuple(name for name, _ in module.named_buffers())
        named = (module.named_parameters, module.named_buffers)
        first = {id(value): name for walk in named for name, value in walk()}
        every = {name: first[id(value)] for walk in named for name, value in walk(remove_duplicate=False)}
        self.of_state = {name: every[name] for name in module.state_dict()}
        place = {name: index for index, name in enumerate((*self.parameters, *self.buffers))}
        self._places = [(*_holder(module, name), place[origin]) for name, origin in every.items()]
        for index, (name, attribute) in enumerate(numbers, start=len(place)):
            self._places.append((vars(module.get_submodule(name)), attribute, index))

    @contextlib.contextmanager
    def holding(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Inside, the module computes with ``values``. (``functional_call`` does this too, more slowly.)"""
        own = [holder[key] for holder, key, _ in self._places]
        for holder, key, index in self._places:
            holder[key] = values[index]
        try:
            yield
        finally:
            for (holder, key, _), value in zip(self._places, own, strict=True):
                holder[key] = value


def _holder(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    path, _, key = name.rpartition(".")
    owner: Any = module.get_submodule(path)
    return (owner._parameters if key in owner._parameters else owner._buffers), key


def _numbers(networks: Sequence[nn.Module], name: str, attribute: str) -> list[float]:
    return [float(getattr(network.get_submodule(name), attribute)) for network in networks]


def stack_of(
    modules: Sequence[nn.Module],
    task: Task,
    method: Method,
    budget: Budget,
    generators: NoiseGenerators,
) -> tuple[Stack, torch.optim.Optimizer]:
    """The modules as a stack on the generators' device, and its optimiser; ``task`` is one of theirs."""
    rows, device = task.train_rows, generators.device
    likelihood, template = task.signature.likelihood, copy.deepcopy(modules[0]).to(device)

    def loss(outputs: Outputs, target: Tensor) -> Tensor:
        return method.loss(template, outputs, target, likelihood, rows)

    stack = Stack(modules, template, loss, TrainingNoise(template, likelihood, generators)).to(device)
    optimizer = method.make_optimizer(
        stack,
        budget.learning_rate,
        rows=rows,
        steps_per_epoch=steps_in_epoch(rows, budget.batch_size),
        epochs=budget.epochs,
        stacked=True,
    )
    if isinstance(optimizer, DrawsNoise):
        optimizer.lend = generators.lend
    return stack, optimizer
