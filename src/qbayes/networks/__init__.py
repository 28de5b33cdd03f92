"""Networks by name: plain PyTorch, without Bayes and without bits.

``build_network`` makes a registered one, or calls one's own factory, ``package.module:factory``. What was
built carries its ``Architecture``, from which a saved posterior rebuilds it: ``REBUILT`` the registered ones,
``rebuilt_by`` those of a factory that the caller names. No file decides what is imported.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from torch import nn

from qbayes.errors import BadFile, BadInput, nearest
from qbayes.networks.base import Kind, check_choice, check_sizes
from qbayes.posterior.storage.outline import NetworkNotGiven, Outlined
from qbayes.registry import Registry

__all__ = ["NETWORKS", "REBUILT", "Architecture", "build_network", "is_own", "rebuilt_by"]

NETWORKS: Registry[Callable[..., nn.Module]] = Registry("network", "qbayes.networks")


@dataclass(frozen=True)
class Architecture:
    """All that is needed to build a network again, but its weights; options have their defaults filled in."""

    name: str
    input_shape: tuple[int, ...]
    outputs: tuple[int, ...]
    kind: Kind = "classification"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        check_choice("kind of task", self.kind, ("classification", "regression"))
        object.__setattr__(self, "input_shape", check_sizes("input shape", self.input_shape))
        object.__setattr__(self, "outputs", check_sizes("outputs", self.outputs))
        object.__setattr__(self, "options", {key: _frozen(value) for key, value in self.options.items()})

    def build(self, allow_import: bool = False) -> nn.Module:
        """A new network of this architecture, with fresh weights.

        One's own factory is imported only with ``allow_import``: a name read from a file must not decide
        what code is run.
        """
        if is_own(self.name) and not allow_import:
            raise NetworkNotGiven(
                "a network of one's own must be given by the caller, not by the file that names it",
                f"'{self.name}'",
                "pass the network when loading, or name its factory on the command line, if you trust it",
            )
        return build_network(self.name, self.input_shape, self.outputs, self.kind, **self.options)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "input_shape": list(self.input_shape),
            "outputs": list(self.outputs),
            "kind": self.kind,
            "options": {key: _thaw(value) for key, value in self.options.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Architecture":
        wanted = {"name": str, "input_shape": list, "outputs": list, "kind": str, "options": dict}
        wrong = [key for key, kind in wanted.items() if not isinstance(data.get(key), kind)]
        if wrong or set(data) - set(wanted):
            raise BadFile(
                f"an architecture must have the fields {', '.join(wanted)}",
                f"{sorted(data)}; missing or of another type: {wrong}",
                "check that the file was written by qbayes and is complete",
            )
        return cls(**data)


def is_own(name: str) -> bool:
    """Whether a network's name means a factory of the user's own, which is imported."""
    return ":" in name


def _build_registered(architecture: Mapping[str, Any]) -> nn.Module:
    if not architecture:
        raise NetworkNotGiven(
            "a posterior of one's own network needs that network at loading",
            "no architecture in the file",
            "call load_posterior(folder, network=…), or on the command line --network package.module:factory",
        )
    return Architecture.from_json(architecture).build()


# registered networks keep nothing but their state: they can be laid out before they take memory.
REBUILT = Outlined(_build_registered)


def rebuilt_by(name: str) -> Callable[[Mapping[str, Any]], nn.Module]:
    """What builds a recorded network by the name that the caller gives, which must be the recorded one."""

    def build(architecture: Mapping[str, Any]) -> nn.Module:
        recorded = Architecture.from_json(architecture)
        if recorded.name != name:
            raise NetworkNotGiven(
                "the network must be the one that the posterior was fitted with",
                f"'{name}', where '{recorded.name}' is recorded",
                "name that one; if its factory has moved, load it in Python: "
                "qb.load_posterior(folder, network=…)",
            )
        return recorded.build(allow_import=True)

    return build if is_own(name) else Outlined(build)


def build_network(
    name: str,
    input_shape: tuple[int, ...],
    outputs: int | tuple[int, ...],
    kind: Kind = "classification",
    **options: Any,
) -> nn.Module:
    """A network with fresh weights for rows of ``input_shape``.

    ``outputs`` is the number of classes, or the shape of the targets. ``name`` is a registered one, or
    ``package.module:factory``; a factory gets ``input_shape``, ``outputs`` and ``kind`` where its signature
    has them. The result's ``architecture`` says how to build it again.
    """
    own = is_own(name)
    asked = Architecture(name, input_shape, cast(tuple[int, ...], outputs), kind, options)
    shape = {"input_shape": asked.input_shape, "outputs": asked.outputs, "kind": kind}
    with _current_folder_importable() if own else nullcontext():
        factory = _import_factory(name) if own else NETWORKS[name]
        resolved = _resolve_options(name, factory, asked.options, reserved=set(shape))
        taken = {key: value for key, value in shape.items() if _accepts(factory, key)}
        _check_call(name, factory, {**taken, **resolved})
        network = factory(**taken, **resolved)
    if not isinstance(network, nn.Module):
        raise BadInput(
            f"'{name}' must return a torch.nn.Module",
            type(network).__name__,
            "name a class derived from nn.Module, or a function that returns one",
        )
    # past nn.Module.__setattr__, whose declared type knows only tensors and modules.
    object.__setattr__(
        network, "architecture", Architecture(name, asked.input_shape, asked.outputs, kind, resolved)
    )
    return network


def _resolve_options(
    name: str, factory: Callable[..., Any], given: Mapping[str, Any], reserved: set[str]
) -> dict[str, Any]:
    """``given`` over the factory's defaults, so that a later change of a default changes no saved network."""
    parameters = inspect.signature(factory).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    known = [key for key in named if key not in reserved]
    unknown = [key for key in given if key not in known]
    if unknown and not any(p.kind == p.VAR_KEYWORD for p in parameters):
        raise BadInput(
            f"an option of the network '{name}' must be known to it",
            f"'{unknown[0]}'",
            nearest(unknown[0], known),
        )
    defaults = {key: named[key].default for key in known if named[key].default is not inspect.Parameter.empty}
    # one's own factory may have defaults that JSON cannot hold: there, only what was given is kept.
    return dict(given) if is_own(name) else {**defaults, **given}


def _accepts(factory: Callable[..., Any], key: str) -> bool:
    parameters = inspect.signature(factory).parameters
    positional_only = key in parameters and parameters[key].kind == inspect.Parameter.POSITIONAL_ONLY
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    return (key in parameters and not positional_only) or takes_any


def _check_call(name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise BadInput(
            f"'{name}' must be callable with input_shape, outputs and kind, some of them, or nothing",
            str(error),
            "give its other parameters defaults, or set them as options of the network",
        ) from error


def _import_factory(name: str) -> Callable[..., Any]:
    """The factory that ``package.module:factory`` names."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise BadInput(
            "the part before ':' must be a module that can be imported from here",
            f"'{name}': {error}",
            "check the spelling, run from the folder that holds it, or add that folder to PYTHONPATH",
        ) from error
    factory: Any = getattr(module, attribute, None)
    if not callable(factory):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise BadInput(
            f"'{module_name}' must hold a class or function called '{attribute}'",
            "no such name" if factory is None else type(factory).__name__,
            nearest(attribute, public),
        )
    return factory


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """A command started from a script does not have the current folder on ``sys.path``."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _thaw(value: Any) -> Any:
    return [_thaw(item) for item in value] if isinstance(value, tuple) else value
