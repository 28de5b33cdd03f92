"""Which networks can be trained as one stack, and which belong together."""

import functools
import hashlib
import json
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qbayes.errors import QbayesError
from qbayes.tasks import Task
from qbayes.tasks.source import InMemory
from qbayes.training.budget import Budget
from qbayes.training.stacked.network import Stack
from qbayes.training.stacked.noise import CannotStack, NoiseGenerators

_SETTINGS = ("bf16", "compile", "channels_last", "average", "small_images")
# what vmap, or a network that is run by it, raises where it cannot.
_VMAP_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
# parameters and buffers are described by their shapes, modules one by one.
_TORCH_OWN = frozenset({"_parameters", "_buffers", "_modules"})
_PLAIN = (str, int, float, bool, type(None))
# by key: whether a stack of that kind runs is asked once.
_PROBED: dict[str, str | None] = {}


Attempt = Callable[[NoiseGenerators], tuple[Stack, torch.optim.Optimizer]]


def key_of(
    module: nn.Module, task: Task, budget: Budget, how: Any, apart: Mapping[str, frozenset[str]] | None = None
) -> str:
    """sha256 of all that the networks of a stack share; weights, data and seeds are each one's own.

    ``how`` says in JSON what they are trained by; ``apart`` names, by module, attributes that may differ.
    """
    signature = task.signature
    shared = {
        "module": _structure(module, apart or {}),
        "how": how,
        "budget": budget.to_json(),
        "rows": task.train_rows,
        "input": signature.input_shape,
        "likelihood": signature.likelihood.to_json(),
    }
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()


def why_not(key: str, task: Task, budget: Budget, attempt: Attempt) -> str | None:
    """Why networks of that key cannot be stacked, or None when they can; ``attempt`` makes a stack of two."""
    if not isinstance(task.source, InMemory):
        return "its rows are streamed"
    if task.augment is not None:
        return "its rows are augmented, which draws noise of its own"
    for setting in _SETTINGS:
        if getattr(budget, setting):
            return f"its budget asks for {setting}"
    if key not in _PROBED:
        _PROBED[key] = _trouble(task, attempt)
    return _PROBED[key]


def _trouble(task: Task, attempt: Attempt) -> str | None:
    """What goes wrong in one step of two networks on two rows, if anything does."""
    x, y = next(task.batches("train", 2))
    target = task.signature.target
    x, y = task.signature.transform.apply(x), y if target is None else target.apply(y)
    generators = NoiseGenerators([0, 1], torch.device("cpu"))
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        try:
            stack, optimizer = attempt(generators)
            stack(torch.stack([x, x]), torch.stack([y, y])).sum().backward()
            optimizer.step()
        except CannotStack as error:
            return error.got
        except QbayesError as error:
            return f"{error.must}; got {error.got}"
        except _VMAP_ERRORS as error:
            return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        # only what is lent may be drawn from: each lending leaves the last network's state behind.
        moved = not any(torch.equal(torch.get_rng_state(), state) for state in (before, *generators.states))
    return "its loss or optimiser draws noise that is not told apart by network" if moved else None


def _structure(module: nn.Module, apart: Mapping[str, frozenset[str]]) -> list[Any]:
    """What the networks of a stack must have in common, as JSON: they run as the first one does."""
    described: list[Any] = []
    # a module that is reached but not registered keeps its weights: it is compared with them.
    registered = tuple(map(id, module.modules()))
    for name, part in module.named_modules(remove_duplicate=False):
        tensors = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        shapes = [[key, list(t.shape), str(t.dtype), t.requires_grad] for key, t in tensors]
        left_out = _TORCH_OWN | apart.get(name, frozenset())
        others = {
            key: _without_handles(key, value) for key, value in vars(part).items() if key not in left_out
        }
        described.append([name, _name(type(part)), shapes, _describe(others, registered)])
    return described


def _without_handles(key: str, value: Any) -> Any:
    """Hooks without the running numbers that torch gives them; other attributes as they are."""
    return list(value.values()) if key.endswith("_hooks") and isinstance(value, Mapping) else value


def _describe(value: object, above: tuple[int, ...]) -> Any:
    """A value of a module in JSON, equal for equal values; what cannot be compared by its identity."""
    if isinstance(value, _PLAIN):
        return value
    if id(value) in above:
        return _name(type(value))
    inside = (*above, id(value))
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return [str(value.dtype), list(value.shape), hashlib.sha256(content).hexdigest()]
    if isinstance(value, Mapping):
        return [[_describe(key, inside), _describe(item, inside)] for key, item in value.items()]
    if isinstance(value, set | frozenset):
        return sorted((_describe(item, inside) for item in value), key=repr)
    if isinstance(value, list | tuple):
        return [_describe(item, inside) for item in value]
    return _object(value, inside)


def _object(value: object, inside: tuple[int, ...]) -> Any:
    """A class, a function or an object, by its name and all that it holds."""
    if isinstance(value, functools.partial):
        return _describe([value.func, value.args, value.keywords], inside)
    if isinstance(value, type | types.BuiltinFunctionType):
        return _name(value)
    if isinstance(value, types.MethodType):
        return _describe([value.__self__, value.__func__], inside)
    if isinstance(value, types.FunctionType):
        return _function(value, inside)
    if hasattr(value, "__dict__"):
        return [_name(type(value)), _describe(vars(value), inside)]
    return [_name(type(value)), id(value)]


def _function(value: types.FunctionType, inside: tuple[int, ...]) -> list[Any]:
    """A function by its code and what it was made with."""
    code: types.CodeType = value.__code__
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    constants = [constant for constant in code.co_consts if isinstance(constant, _PLAIN)]
    made_with = _describe([cells, value.__defaults__, value.__kwdefaults__, constants], inside)
    return [_name(value), code.co_firstlineno, hashlib.sha256(code.co_code).hexdigest(), made_with]


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
