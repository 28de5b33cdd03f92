"""Which layers of a network can become stochastic, in which order they run, and what feeds them.

With an example input the network is run once and watched: the order is that of execution, and a layer that
reads what a Dropout layer wrote is known. Without one, the order of registration stands in for it.
"""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from qbayes.errors import BadInput
from qbayes.networks.base import run_example
from qbayes.posterior.gaussian import WEIGHTED_TYPES

DROPOUT_TYPES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_NORM_TYPES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# Operations that mix features: behind them a mask before them is no longer a mask on the features.
_MIXING = re.compile(r"linear|conv|matmul|mm$|einsum|attention|embedding|lstm|gru|rnn|dot")
_FUNCTIONAL_DROPOUT: frozenset[Callable[..., Any]] = frozenset(
    {
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        torch.dropout,
    }
)


@dataclass(frozen=True)
class Layer:
    """A weight-bearing layer in the order it runs; ``masked`` when a Dropout layer feeds it already."""

    name: str
    module: nn.Module
    masked: bool

    @property
    def is_convolution(self) -> bool:
        return not isinstance(self.module, nn.Linear)


@dataclass(frozen=True)
class Survey:
    """The layers that can carry weights or masks, the network's own Dropout layers, and the rest."""

    layers: tuple[Layer, ...]
    dropouts: tuple[tuple[str, nn.Module], ...]
    left_alone: tuple[tuple[str, str], ...]
    modules: dict[str, nn.Module]


def survey(network: nn.Module, example: Tensor | None) -> Survey:
    """Look over ``network``; ``example`` is a batch of standardised inputs."""
    named = dict(network.named_modules())
    weighted = {name: module for name, module in named.items() if type(module) in WEIGHTED_TYPES}
    dropouts = {name: module for name, module in named.items() if type(module) in DROPOUT_TYPES}
    order, masked = _watch(network, example) if example is not None else _registration_order(named)
    left = [(name, why) for name, module in named.items() if (why := _why_left(name, module, weighted))]
    left += [(name, "never ran on the example") for name in weighted if name not in order]
    ordered = [name for name in order if name in weighted]
    layers = tuple(Layer(name, weighted[name], name in masked) for name in ordered)
    return Survey(layers, tuple(dropouts.items()), tuple(left), named)


def _why_left(name: str, module: nn.Module, weighted: dict[str, nn.Module]) -> str | None:
    if name in weighted or not any(True for _ in module.parameters(recurse=False)):
        return None
    kind = type(module).__name__
    if isinstance(module, WEIGHTED_TYPES):
        return f"{kind} is a subclass whose weights may be read elsewhere: deterministic"
    return f"{kind}: deterministic"


def _registration_order(named: dict[str, nn.Module]) -> tuple[list[str], set[str]]:
    order: list[str] = []
    masked: set[str] = set()
    behind_dropout = False
    for name, module in named.items():
        if type(module) in WEIGHTED_TYPES:
            order.append(name)
            if behind_dropout:
                masked.add(name)
        mixes = any(parameter.ndim > 1 for parameter in module.parameters(recurse=False))
        behind_dropout = type(module) in DROPOUT_TYPES or (behind_dropout and not mixes)
    return order, masked


class _MaskWatch(TorchFunctionMode):
    """Follows what Dropout layers wrote through activations, pools and reshapes, until features are mixed.

    A result is masked when all data it is made of is masked; parameters do not count as data.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._weights = {id(tensor) for tensor in (*network.parameters(), *network.buffers())}
        # the tensors themselves, so that none is freed and its id taken by another.
        self._masked: dict[int, Tensor] = {}

    def mark(self, tensor: Tensor) -> None:
        self._masked[id(tensor)] = tensor

    def is_marked(self, tensor: Any) -> bool:
        return id(tensor) in self._masked

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        data = [tensor for tensor in given if id(tensor) not in self._weights]
        if data and all(map(self.is_marked, data)) and not _MIXING.search(func.__name__):
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self.mark(leaf)
        return result


def _watch(network: nn.Module, example: Tensor) -> tuple[list[str], set[str]]:
    """Run a copy in evaluation; a Dropout's output becomes a tensor of its own, so its readers are known."""
    order: list[str] = []
    masked: set[str] = set()
    twin = copy.deepcopy(network).eval()
    watch = _MaskWatch(twin)

    def after_dropout(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        watch.mark(fresh := output.clone())
        return fresh

    def before_layer(name: str) -> Callable[[nn.Module, Any], None]:
        def notice(_: nn.Module, inputs: Any) -> None:
            if name not in order:
                order.append(name)
            if any(map(watch.is_marked, inputs)):
                masked.add(name)

        return notice

    for name, module in twin.named_modules():
        if type(module) in DROPOUT_TYPES:
            module.register_forward_hook(after_dropout)
        elif type(module) in WEIGHTED_TYPES:
            module.register_forward_pre_hook(before_layer(name))
    with watch:
        run_example(twin, example)
    return order, masked


class _DropoutWatch(TorchFunctionMode):
    """Notes calls of functional dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: str | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _FUNCTIONAL_DROPOUT:
            self.seen = func.__name__
        return func(*args, **(kwargs or {}))


def refuse_functional_dropout(network: nn.Module, example: Tensor) -> None:
    """Functional dropout is off in evaluation and cannot be keyed: a draw would silently lack it.

    The network is run as in evaluation and as in training (but for its norms, which want many rows), because
    its forward may ask ``if self.training``. Its own Dropout layers are let through.
    """
    twin = copy.deepcopy(network)
    for module in twin.modules():
        if type(module) in DROPOUT_TYPES:
            module.forward = _return_input
    with _DropoutWatch() as watch, torch.random.fork_rng(devices=[]):
        for training in (False, True):
            twin.train(training)
            for module in twin.modules():
                if isinstance(module, _NORM_TYPES):
                    module.eval()
            run_example(twin, example)
    if watch.seen is not None:
        raise BadInput(
            "dropout must be a layer of the network to become a site",
            f"a call of torch.nn.functional.{watch.seen} in forward",
            "use an nn.Dropout module instead, or remove it and let the method place masks",
        )


def _return_input(x: Tensor) -> Tensor:
    return x
