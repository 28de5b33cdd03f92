"""How posteriors and programs are copied and pickled: tensors travel as bytes, code by its name.

Python's own pickler may hand over what it is given to another process as shared memory. torch's tensors then
move to where that process can write to them too, each with an open file, while kernels know where they lay.
"""

import copy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from qbayes.errors import BadInput


@dataclass(frozen=True)
class Carried:
    """A tensor's numbers, which belong to nobody else."""

    kind: torch.dtype
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, tensor: Tensor) -> "Carried":
        plain = tensor.detach().cpu().contiguous()
        return cls(plain.dtype, tuple(plain.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes())

    def tensor(self) -> Tensor:
        """The numbers in memory of its own, on the CPU."""
        if not self.content:
            return torch.empty(self.shape, dtype=self.kind)
        return torch.frombuffer(bytearray(self.content), dtype=self.kind).view(self.shape)


def pack_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Carried]:
    return {name: Carried.of(tensor) for name, tensor in tensors.items()}


def unpack_tensors(tensors: Mapping[str, Carried]) -> dict[str, Tensor]:
    return {name: held.tensor() for name, held in tensors.items()}


def with_own_numbers(network: nn.Module) -> nn.Module:
    """A network to be pickled, and nothing else: its tensors become tensors again where it is unpickled."""
    attributes = (held for module in network.modules() for held in vars(module).values())
    tensors = (*network.parameters(), *network.buffers(), *(t for t in attributes if isinstance(t, Tensor)))
    return copy.deepcopy(network, {id(tensor): _Parcel(tensor) for tensor in tensors})


class _Parcel:
    """Stands for a tensor while it is pickled."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        own, tensor = isinstance(self._tensor, nn.Parameter), self._tensor
        return _unpack, (Carried.of(tensor), tensor.device, own, tensor.requires_grad)


def _unpack(held: Carried, device: torch.device, own: bool, learns: bool) -> Tensor:
    tensor = held.tensor().to(device)
    return nn.Parameter(tensor, learns) if own else tensor.requires_grad_(learns)


def check_can_be_pickled(network: nn.Module) -> None:
    """Raise if a network has code that another process cannot find by its name."""
    for name, module in network.named_modules():
        for what in _code_of(module):
            if not _is_found_by_name(what):
                raise BadInput(
                    "a posterior can be pickled if its network's code can be imported by name",
                    f"{what.__module__}.{what.__qualname__} at '{name}'",
                    "define it at the top of a module, or save the posterior and load it on the other side",
                )


def _code_of(module: nn.Module) -> Iterator[Any]:
    """The module's class, and the functions that it holds or that hang on it as hooks."""
    yield type(module)
    for value in vars(module).values():
        held = value.values() if isinstance(value, dict) else (value,)
        yield from (one for one in held if isinstance(one, FunctionType))


def _is_found_by_name(what: Any) -> bool:
    found: Any = sys.modules.get(what.__module__)
    for part in what.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is what
