"""Networks that a file describes: never larger than the weights beside it.

A kilobyte of JSON can ask for a network that fills a machine. One of ours is therefore built on ``meta``
first, where tensors have shapes and no memory, and compared with what is stored. A factory of one's own may
read its tensors, or keep them elsewhere: it runs for real, but may not register more than what is stored.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from qbayes.errors import BadInput
from qbayes.posterior.storage.weights_header import Form, size_of

# what a network may register beyond what is stored of it: parts that a factory replaces, tables, layers that
# nothing runs; and what passing a few rows may take, for each byte of its weights.
_PARTS, _MORE_PARTS = 8, 1000
_BYTES, _MORE_BYTES = 4, 1 << 26
_PASSED, _MORE_PASSED = 700, 1 << 27
_ROWS = 3
_MAKERS: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.empty,
        torch.zeros,
        torch.ones,
        torch.full,
        torch.rand,
        torch.randn,
        torch.randint,
        torch.randperm,
        torch.arange,
        torch.linspace,
        torch.eye,
    }
)
_STORED = "a network must be as large as the weights that are stored of it"
_DO = "refit it, or load it in Python with the network itself: qb.load_posterior(folder, network=…)"


class NetworkNotGiven(BadInput):
    """The caller must name the network that is recorded: no file may say what is imported."""


@dataclass(frozen=True)
class Outlined:
    """Builds a network whose tensors are all in its state, from the recorded architecture.

    Only such a one can be built on ``meta`` and filled: none of its numbers are lost there.
    """

    build: Callable[[Mapping[str, Any]], nn.Module]

    def __call__(self, architecture: Mapping[str, Any]) -> nn.Module:
        return self.build(architecture)


def no_larger_than(stored: Mapping[str, Form]) -> AbstractContextManager[None]:
    """Within this block modules register no more parts and bytes than ``stored`` allows, and no tensor is
    made that is larger.
    """
    parts = _PARTS * len(stored) + _MORE_PARTS
    return within(parts, _BYTES * sum(map(size_of, stored.values())) + _MORE_BYTES, _STORED)


@contextmanager
def within(
    parts: int, most: int, must: str = "a network must have a size that can be trained"
) -> Iterator[None]:
    """Within this block modules register at most so many parts, and bytes."""
    limit = _Limit(parts, most, must)
    handles = [
        register_module_parameter_registration_hook(limit.check_registration),
        register_module_buffer_registration_hook(limit.check_registration),
        register_module_module_registration_hook(limit.check_registration),
    ]
    try:
        with limit:
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Limit(TorchFunctionMode):
    """Counts what this thread's modules register; looks at what functions would make before they make it."""

    def __init__(self, parts: int, most: int, must: str) -> None:
        super().__init__()
        self._must = must
        self._parts, self._bytes, self._most = parts, most, most
        self._thread = threading.get_ident()

    def check_registration(self, module: nn.Module, name: str, what: Tensor | nn.Module | None) -> None:
        # the hooks are the process's, the block is this thread's.
        if threading.get_ident() != self._thread:
            return
        self._parts -= 1
        self._bytes -= what.numel() * what.element_size() if isinstance(what, Tensor) else 0
        if self._parts < 0 or self._bytes < 0:
            self._refuse(f"'{name}' in a {type(module).__name__} is more than that")

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _MAKERS and kwargs.get("out") is None:
            plain = {key: value for key, value in kwargs.items() if key not in ("generator", "pin_memory")}
            outline = func(*args, **{**plain, "device": "meta"})
            if outline.numel() * outline.element_size() > self._most:
                self._refuse(f"one tensor of shape {tuple(outline.shape)}")
        return func(*args, **kwargs)

    def _refuse(self, got: str) -> None:
        raise BadInput(self._must, got, _DO if self._must == _STORED else "make it smaller")


def check_covered(outline: nn.Module, stored: Mapping[str, Form]) -> None:
    """Raise unless every matrix of a float network is among the tensors of its quantised one."""
    held: Counter[tuple[int, ...]] = Counter(shape for shape, _ in stored.values() if len(shape) > 1)
    for name, value in outline.state_dict().items():
        shape = tuple(value.shape)
        if len(shape) > 1 and held[shape] == 0:
            raise BadInput(
                "a quantised network must have the weights of the float one",
                f"'{name}' of shape {shape} is not stored",
                _DO,
            )
        held[shape] -= 1


@torch.no_grad()
def check_passing(network: nn.Module, input_shape: tuple[int, ...]) -> None:
    """Raise if a few rows of ``input_shape`` take far more memory than the weights of ``network``.

    It is on ``meta``, where passing them takes none.
    """
    weights = sum(value.numel() * value.element_size() for value in network.state_dict().values())
    with _Passing(_PASSED * weights + _MORE_PASSED):
        network(torch.zeros(_ROWS, *input_shape, device="meta"))


class _Passing(TorchDispatchMode):
    """Adds up the bytes of all that is computed."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = self._most = most

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in pytree.tree_leaves(found):
            if isinstance(value, Tensor):
                self._left -= value.numel() * value.element_size()
        if self._left < 0:
            raise BadInput(
                f"passing {_ROWS} rows through the network must take at most {self._most >> 20} MiB",
                "more, for inputs of the recorded shape",
                _DO,
            )
        return found
