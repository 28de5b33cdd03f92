"""What a saved posterior says of itself, and the network that its weights belong in."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qbayes.errors import BadInput, QbayesError
from qbayes.posterior.likelihood import ConstantNoise, Gaussian
from qbayes.posterior.signature import Signature
from qbayes.posterior.sites import Site, place_sites
from qbayes.posterior.storage.outline import (
    NetworkNotGiven,
    Outlined,
    check_covered,
    check_passing,
    no_larger_than,
)
from qbayes.posterior.storage.weights_header import Damaged, Form

NetworkSource = nn.Module | Callable[[Mapping[str, Any]], nn.Module]
# what a quantised posterior is made of: from the float network with its sites, the signature and the JSON of
# the precision, to the fake-quantised network.
Requantise = Callable[[nn.Module, Signature, Mapping[str, Any]], nn.Module]
# what entries of a file raise that nobody foresaw.
WRONG = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError, MemoryError)
_Held = TypeVar("_Held")


@dataclass(frozen=True)
class Recorded:
    """The entries of a posterior's JSON, each of its type."""

    signature: Signature
    sites: tuple[Site, ...]
    members: int
    constant_noise: bool
    precision: Mapping[str, Any] | None
    architecture: Mapping[str, Any] | None
    provenance: Mapping[str, Any]

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> "Recorded":
        architecture = header["architecture"]
        return cls(
            signature=Signature.from_json(header["signature"]),
            sites=tuple(Site.from_json(site) for site in header["sites"]),
            members=int(header["members"]),
            constant_noise=bool(header["constant_noise"]),
            precision=header.get("precision"),
            architecture=None if architecture is None else dict(architecture),
            provenance=dict(header["provenance"]),
        )

    def around(self, plain: nn.Module) -> nn.Module:
        """The network with its sites, and the noise where it has none."""
        module = place_sites(plain, self.sites)
        if self.constant_noise and isinstance(self.signature.likelihood, Gaussian):
            module = ConstantNoise(module, self.signature.likelihood.shape)
        return module


def module_for(
    network: NetworkSource, recorded: Recorded, stored: Mapping[str, Form], requantise: Requantise | None
) -> nn.Module:
    """The network of a saved posterior, to be filled: none that is built here is larger than ``stored``."""
    if isinstance(network, Outlined):
        found = _outline(network, recorded, stored)
        if found is not None:
            return found
    if isinstance(network, nn.Module):
        plain = network
    else:
        # outside of the guard: an error in one's own factory is not a damaged file.
        with no_larger_than(stored):
            plain = network(recorded.architecture or {})
        if recorded.precision is not None and not isinstance(network, Outlined):
            _check_own(plain, recorded)
    return guard_read(lambda: _quantise(recorded.around(plain), recorded, requantise))


def guard_read(read: Callable[[], _Held]) -> _Held:
    """What ``read`` makes of a file's entries; what they make it raise is the file's fault."""
    try:
        return read()
    except QbayesError:
        raise
    except WRONG as error:
        raise Damaged(
            "posterior.json must hold every entry of the format",
            f"{type(error).__name__}: {error}",
            "refit or restore it",
        ) from None


def _outline(network: Outlined, recorded: Recorded, stored: Mapping[str, Form]) -> nn.Module | None:
    """The float network with its memory, which is not filled yet; None of a quantised one, which is no larger
    than ``stored`` either.
    """

    def outline() -> nn.Module:
        with no_larger_than(stored), torch.device("meta"):
            return recorded.around(network(recorded.architecture or {}))

    try:
        module = guard_read(outline)
        if recorded.precision is None:
            check_fits(module, [stored])
            return module.to_empty(device="cpu")
        check_covered(module, stored)
        guard_read(lambda: check_passing(module.eval(), recorded.signature.input_shape))
    except (Damaged, NetworkNotGiven):
        raise
    except BadInput as error:
        # both are of the same file: it contradicts itself.
        raise Damaged(error.must, error.got, error.do) from error
    return None


def _check_own(plain: nn.Module, recorded: Recorded) -> None:
    """As for ours; one that cannot pass rows on ``meta`` is left to its owner."""
    try:
        check_passing(copy.deepcopy(plain).to("meta").eval(), recorded.signature.input_shape)
    except BadInput:
        raise
    except WRONG:
        return


def _quantise(module: nn.Module, recorded: Recorded, requantise: Requantise | None) -> nn.Module:
    if recorded.precision is None or requantise is None:
        return module
    return requantise(module, recorded.signature, recorded.precision)


def members_of(held: Mapping[str, _Held], count: int) -> list[dict[str, _Held]]:
    """What is held under ``3/name`` as ``name`` of member 3."""
    members: dict[int, dict[str, _Held]] = {}
    for key, value in held.items():
        index, _, name = key.partition("/")
        members.setdefault(int(index), {})[name] = value
    if sorted(members) != list(range(len(members))) or len(members) != count or not members:
        raise ValueError(f"{count} members announced, {sorted(members)[:8]} found")
    return [members[index] for index in range(count)]


def buffers_added_later(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that files of earlier versions lack, by name, as a new network has them."""
    found: dict[str, Tensor] = {}
    for prefix, part in module.named_modules():
        for name in getattr(part, "added_later", ()):
            found[f"{prefix}.{name}" if prefix else name] = part.get_buffer(name)
    return found


def check_fits(module: nn.Module, stored: Sequence[Mapping[str, Form]]) -> None:
    """Raise unless every member has what the network has, by name, shape and type."""
    expected = {name: _form(value) for name, value in module.state_dict().items()}
    added = {name: _form(value) for name, value in buffers_added_later(module).items()}
    for index, member in enumerate(stored):
        got = {**added, **member}
        if got == expected:
            continue
        differing = sorted(set(got.items()) ^ set(expected.items()), key=str)
        raise BadInput(
            "the network must have the parameters that were saved",
            f"member {index} differs at {differing[0][0]}: {differing[0][1]}",
            "give the same network, with the same options, as in training",
        )


def _form(value: Tensor) -> Form:
    return tuple(value.shape), value.dtype
