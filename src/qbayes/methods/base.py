"""A method: how a network becomes a posterior.

``attach`` decides where randomness stands, ``loss`` what is minimised, ``make_optimizer`` how, and
``collect`` which states are kept as members. Methods are frozen values that check themselves; each is one
file in a registry. Losses and optimisers keep a leading stack axis, so that independent networks can be
trained as one program.
"""

import copy
import dataclasses
import functools
import math
import tomllib
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from qbayes.errors import BadInput, unknown_name
from qbayes.methods.placement import refuse_functional_dropout, survey
from qbayes.networks.base import run_example
from qbayes.options import check_names
from qbayes.posterior.likelihood import Likelihood, Outputs
from qbayes.posterior.sites import Attachment, place_sites
from qbayes.registry import Registry
from qbayes.tasks import Task

DEFAULT = "default"
_SUFFIX = ".toml"


@dataclass(frozen=True)
class Preset:
    """A method's options and its training budget for one kind of task.

    Attributes:
        method: Options of the method, by name.
        budget: Options of ``Budget``, by name.
        start: The method whose trained network the budget goes on from; without one the budget is too short.
    """

    method: Mapping[str, Any] = field(default_factory=dict[str, Any])
    budget: Mapping[str, Any] = field(default_factory=dict[str, Any])
    start: str = ""


@functools.cache
def preset_names() -> tuple[str, ...]:
    """``default``, and the names of the files."""
    found = (one.name for one in resources.files("qbayes.methods").joinpath("presets").iterdir())
    return (DEFAULT, *sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX)))


@functools.cache
def presets_of(method: str) -> Mapping[str, Preset]:
    """What the files have for a method, by ``PRESET/TASK``."""
    found: dict[str, Preset] = {}
    for name in preset_names():
        if name != DEFAULT:
            tables = _read(name).get(method, {})
            found |= {f"{name}/{task}": Preset(**values) for task, values in tables.items()}
    return found


@functools.cache
def _read(name: str) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    file = resources.files("qbayes.methods").joinpath("presets", f"{name}{_SUFFIX}")
    return tomllib.loads(file.read_text(encoding="utf-8"))


METHODS: Registry[type["Method"]] = Registry("method", "qbayes.methods")
# how convolutional networks run, on a GPU and on a CPU. Not compiled: on a GPU, where steps are replayed, an
# epoch of the slim ResNet-18 would take 0.42 s instead of 0.51, and the first one 18 s instead of 0.6.
OF_IMAGES: Mapping[str, Any] = {"bf16": "auto", "channels_last": True}
# … for CIFAR-10, in few epochs: the rate falls in a line, and the weights of the last steps are averaged.
FEW_EPOCHS: Mapping[str, Any] = {
    "batch_size": 256,
    "schedule": "linear",
    "warmup": 0.2,
    "average": 0.15,
    **OF_IMAGES,
}


State = dict[str, Tensor]


@runtime_checkable
class DrawsNoise(Protocol):
    """An optimizer that draws noise of its own.

    In a stack of networks it draws that of network k inside ``lend(k)``, where torch's generator is the one
    of that network. None is for a single network.
    """

    lend: Callable[[int], AbstractContextManager[None]] | None


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Base of all methods.

    Example:
        >>> import qbayes as qb
        >>> method = qb.method("pointwise", weight_decay=1e-3)
        >>> method.name, method.collect(epoch=5, epochs=5), method.count_members(epochs=5)
        ('pointwise', True, 1)
    """

    name: ClassVar[str]
    # options and budgets by ``default/TASK``; a method without any has the defaults of its fields.
    presets: ClassVar[Mapping[str, Preset]] = MappingProxyType({})
    # whether weights may become Gaussians: what is stored of their quantisation says by which rule it was.
    gaussian: ClassVar[bool] = True

    def require(self, holds: bool, option: str, must: str) -> None:
        """Raise ``BadInput`` unless an option of this method is right.

        Args:
            holds: Whether it is.
            option: The option's name.
            must: What it must be, for the message.
        """
        if not holds:
            value = getattr(self, option)
            raise BadInput(f"{self.name}: {option} must be {must}", f"{value!r}", f"change {option}")

    @abstractmethod
    def plan(self, network: nn.Module, example: Tensor | None) -> Attachment:
        """Where this method puts randomness on a network.

        Args:
            network: The plain network; it is not changed.
            example: A batch of network inputs: layers are taken in the order they run, else as registered.

        Returns:
            The sites, and the layers that are left alone with the reason.
        """

    def attach(self, network: nn.Module, example: Tensor | None = None) -> tuple[nn.Module, Attachment]:
        """A new module with this method's sites, and what was made stochastic and left alone.

        Args:
            network: The plain network; it is not changed.
            example: As in ``plan``. With it a module with sites is run once, to see that it works.

        Raises:
            BadInput: Nothing can be trained or made stochastic, or the module fails on the example.
        """
        attachment = self.plan(network, example)
        trainable(network)
        module = place_sites(network, attachment.sites)
        if example is not None and any(site.kind == "mask" for site in attachment.sites):
            refuse_functional_dropout(network, example)
        if example is not None and attachment.sites:
            run_example(copy.deepcopy(module).eval(), example)
        return module, attachment

    def loss(
        self, module: nn.Module, outputs: Outputs, target: Tensor, likelihood: Likelihood, rows: int
    ) -> Tensor:
        """What training minimises: by default the mean negative log-likelihood of the batch.

        Args:
            module: The network with its sites, or a stack of networks.
            outputs: What the module gave for the batch.
            target: The targets of the batch, in network units.
            likelihood: How outputs give the probability of a target.
            rows: The number N of training rows, for terms that do not grow with the data.

        Returns:
            A scalar, or one number a network of a stack.
        """
        return likelihood.nll(outputs, target).mean(-1)

    @abstractmethod
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
        """The optimiser of this method for a module.

        Args:
            module: The network with its sites, or a stack of networks.
            learning_rate: The largest rate; the schedule of the budget lowers it.
            rows: The number of training rows.
            steps_per_epoch: Batches in an epoch.
            epochs: Epochs of the whole training.
            stacked: Whether the first axis of every parameter counts independent networks.
        """

    def collect(self, epoch: int, epochs: int) -> bool:
        """Whether the state after an epoch is kept as a member; by default the last one alone.

        Args:
            epoch: Number of the epoch that has ended, from 1.
            epochs: Epochs of the whole training.
        """
        return epoch == epochs

    def count_members(self, epochs: int) -> int:
        """How many members the posterior of one training has.

        Args:
            epochs: Epochs of the training.
        """
        return sum(self.collect(epoch, epochs) for epoch in range(1, epochs + 1))

    def to_posterior(
        self, module: nn.Module, states: list[State], task: Task
    ) -> tuple[nn.Module, list[State]]:
        """The network and the members' states of the posterior, from the states that were trained.

        A hook between training and the finished posterior, for methods that make something of a trained
        network: a Gaussian from the mean of states and their spread, or from a curvature. Where the number
        of members changes, ``count_members`` must say so.

        Args:
            module: The network as ``attach`` made it, before training.
            states: What ``collect`` kept of one training, in order.
            task: The rows that it was trained on.

        Returns:
            The structure of the posterior's network, and a state of it for each member. By default both are
            what they were.
        """
        return module, states

    def to_json(self) -> dict[str, Any]:
        """The method's name and its options, as plain values."""
        return {"name": self.name, **dataclasses.asdict(self)}

    @classmethod
    def all_presets(cls) -> Mapping[str, Preset]:
        """The presets of this method by ``PRESET/TASK``: its own, and those of files."""
        return {**cls.presets, **presets_of(cls.name)}

    @classmethod
    def preset(cls, preset: str, task: str, kind: str) -> Preset:
        """The preset for a task: by its name, its family (``uci`` of ``uci/yacht``), or its kind.

        Args:
            preset: ``default``, or a file of hyper-parameters such as ``paper``; refused if it lacks the
                task.
            task: The task's name.
            kind: ``classification`` or ``regression``.
        """
        family, every = task.split("/", maxsplit=1)[0], cls.all_presets()
        for key in (f"{preset}/{task}", f"{preset}/{family}", f"{preset}/{kind}"):
            if key in every:
                return every[key]
        if preset == DEFAULT:
            return Preset()
        if preset not in (known := {DEFAULT, *(key.partition("/")[0] for key in every)}):
            raise unknown_name(f"preset of {cls.name}", preset, known)
        tasks = sorted(key.partition("/")[2] for key in every if key.startswith(f"{preset}/"))
        raise BadInput(
            f"the preset '{preset}' of {cls.name} must exist for the task",
            f"'{task}' ({kind})",
            f"use it on: {', '.join(tasks)}; or the preset 'default'",
        )


def make_method(name: str, **options: Any) -> Method:
    """A method by name.

    Example:
        >>> import qbayes as qb
        >>> qb.method("mcd", rate=0.2).rate
        0.2

    Args:
        name: ``pointwise``, ``mcd``, ``bbb`` or ``sghmc``.
        **options: Its options; by default those of its fields. ``recipe`` has values for a task.

    Returns:
        The method, a frozen value.

    Raises:
        BadInput: The name or an option is unknown, or a value is of another type or out of range.
    """
    kind = METHODS[name]
    known = {field.name for field in dataclasses.fields(kind)}
    check_names(name, options, known)
    # numpy's own numbers are no JSON, and options are recorded.
    options = {
        key: value.item() if isinstance(value, np.generic) else value for key, value in options.items()
    }
    hints = typing.get_type_hints(kind)
    for option, value in options.items():
        allowed = _simple_types(hints[option])
        # True is an int to Python and 3 is no float: a switch is not a number, a whole number is a real one.
        fits = isinstance(value, allowed) and isinstance(value, bool) <= (bool in allowed)
        if allowed and not fits:
            names = " or ".join(sorted({kind.__name__ for kind in allowed} - {"NoneType"}))
            raise BadInput(f"{name}: {option} must be of type {names}", f"{value!r}", f"change {option}")
    return kind(**options)


def _simple_types(hint: Any) -> tuple[type, ...]:
    """The plain types that an annotation allows; nothing where it is more than those."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if not all(part in (bool, int, float, str, types.NoneType) for part in parts):
        return ()
    return (*parts, int) if float in parts else tuple(parts)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that training moves; there must be some."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise BadInput(
            "a network must have parameters to train",
            "all of them are frozen (requires_grad=False)",
            "call network.requires_grad_(True), or leave at least the last layer free",
        )
    return parameters


def nothing_to_attach(method: str, network: nn.Module, example: Tensor | None) -> BadInput:
    """The error for a network in which a method finds nothing to change."""
    seen = survey(network, example).left_alone
    listed = "; ".join(f"{name or '(the network)'}: {why}" for name, why in seen) or "no layer with weights"
    return BadInput(
        f"{method} must find a Linear, Conv1d or Conv2d layer to make stochastic",
        listed,
        "build the network from these layers, or choose places by name",
    )


OPTIMIZERS = ("adam", "adamw", "sgd")


@dataclass(frozen=True, kw_only=True)
class Descent(Method):
    """A method trained by Adam, AdamW or SGD (with Nesterov momentum).

    ``weight_decay`` acts on weights (two or more axes), not on biases, norms and noises.
    """

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: float = 0.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", str(self.optimizer), OPTIMIZERS)
        self.require(0 <= self.weight_decay < math.inf, "weight_decay", "at least 0 and finite")
        self.require(0 <= self.momentum < 1, "momentum", "at least 0 and below 1")

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
        parameters = trainable(module)
        groups = decay_groups(parameters, self.weight_decay, stacked=stacked)
        # one kernel for all parameters: on the CPU too a small network gains a tenth or more of a step.
        # There is none for complex numbers.
        fused = all(parameter.is_floating_point() for parameter in parameters)
        if self.optimizer == "sgd":
            nesterov = self.momentum > 0
            return torch.optim.SGD(groups, learning_rate, self.momentum, nesterov=nesterov, fused=fused)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, learning_rate, fused=fused)


def decay_groups(
    parameters: Iterable[nn.Parameter], weight_decay: float, *, stacked: bool = False
) -> list[dict[str, Any]]:
    """Two parameter groups: weights, which decay, and biases, norms and noises, which do not."""
    weights: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for parameter in parameters:
        if parameter.requires_grad:
            (weights if parameter.ndim - stacked >= 2 else rest).append(parameter)
    groups = [{"params": weights, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
