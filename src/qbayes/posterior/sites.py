"""The first interface: every method reduces to sites of two kinds on a network, and to several members.

A *mask* stands before or after a module; a *gaussian* replaces a layer. Methods decide where sites go;
everything downstream (prediction, saving, quantisation, backends) reads the sites and never a method's name.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes import noise
from qbayes.errors import BadInput, unknown_name
from qbayes.posterior.gaussian import WEIGHTED_TYPES, GaussianLayer
from qbayes.posterior.likelihood import ConstantNoise


def check_rate(rate: float, where: str) -> float:
    # the mask's threshold has 16 bits: a rate that rounds to 1 would drop everything, always.
    if not 0.0 <= rate < 1.0 or noise.keep_threshold(rate) >= 1 << noise.THRESHOLD_BITS:
        raise BadInput(
            f"the dropout rate {where} must be at least 0 and below 1 − 2^−17",
            f"{rate}",
            "give the share of activations to drop, such as 0.1",
        )
    return float(rate)


class Mask(nn.Module):
    """Drops elements, or whole channels, of its input.

    Training: torch's own generator. Evaluation under a noise stream: the mask of (seed, draw, site, row).
    Evaluation without one: the identity, which is the network of mean activations.
    """

    def __init__(self, rate: float, site: int, channelwise: bool = False) -> None:
        super().__init__()
        self.rate = check_rate(rate, f"of site {site}")
        self.site = site
        self.channelwise = channelwise

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0:
            return x
        shape = x.shape[:2] + (1,) * (x.ndim - 2) if self.channelwise else x.shape
        if self.training:
            return x * self.training_mask(shape, x)
        stream = noise.current()
        if stream is None:
            return x
        return x * (self.keep(x, stream).to(x.dtype) / (1.0 - self.rate))

    def training_mask(self, shape: tuple[int, ...], x: Tensor) -> Tensor:
        """A mask of ``shape`` from torch's own generator, already divided by 1 − p: dropout of ones."""
        return F.dropout(torch.ones(shape, dtype=x.dtype, device=x.device), self.rate)

    def keep(self, x: Tensor, stream: noise.Stream) -> Tensor:
        """Which elements (or channels) of ``x`` this draw keeps: bool, of a shape that broadcasts to it."""
        shape = x.shape[:2] + (1,) * (x.ndim - 2) if self.channelwise else x.shape
        rows = stream.rows or shape[0]
        if shape[0] % rows:
            raise BadInput(
                "the rows must stay on the first axis, or be its outer part, for their noise to follow them",
                f"{rows} rows in, but {shape[0]} along the first axis at site {self.site}",
                "keep the batch first (x.flatten(0, 1) of (rows, time, …) is fine, time first is not)",
            )
        keep = noise.keep_masks(
            stream.draw,
            stream.seed,
            self.site,
            stream.first_row,
            rows,
            math.prod(shape) // rows,
            noise.keep_threshold(self.rate),
        )
        return keep.view(shape)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, site={self.site}" + (", channelwise" if self.channelwise else "")


Place = Literal["before", "after", "replace"]
_PLACES = ("before", "after", "replace")


@dataclass(frozen=True)
class Site:
    """One source of randomness: its number keys its noise and is saved with the posterior."""

    number: int
    kind: Literal["mask", "gaussian"]
    module: str
    place: Place
    rate: float = 0.0
    channelwise: bool = False
    sigma: float = 0.01
    bias_number: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Site":
        valid = set(data) == set(cls.__dataclass_fields__) and _is_site(data)
        if not valid:
            raise BadInput("a site must be a mask or a gaussian with a place", f"{data!r}", "check the file")
        return cls(**data)


def _is_site(data: Mapping[str, Any]) -> bool:
    numbers = [data["number"]] if data["bias_number"] is None else [data["number"], data["bias_number"]]
    counted = all(type(number) is int and 0 <= number < 1 << 32 for number in numbers)
    measured = all(type(data[name]) in (int, float) for name in ("rate", "sigma"))
    named = isinstance(data["module"], str) and isinstance(data["channelwise"], bool)
    return (
        counted and measured and named and data["kind"] in ("mask", "gaussian") and data["place"] in _PLACES
    )


@dataclass(frozen=True)
class Attachment:
    """What ``attach`` made stochastic, and what it left alone with the reason."""

    sites: tuple[Site, ...]
    left_alone: tuple[tuple[str, str], ...] = ()

    def summary(self) -> str:
        lines = []
        for site in self.sites:
            detail = f"rate {site.rate:g}" if site.kind == "mask" else f"sigma {site.sigma:g}"
            shape = " channel-wise" if site.channelwise else ""
            lines.append(f"{site.kind:9} {site.place:7} {site.module or '(the network)'}: {detail}{shape}")
        lines += [f"left alone        {name or '(the network)'}: {why}" for name, why in self.left_alone]
        return "\n".join(lines)


class Masked(nn.Module):
    """A module with a mask before it, after it, or both."""

    def __init__(self, layer: nn.Module, before: Mask | None, after: Mask | None) -> None:
        super().__init__()
        self.before = before
        self.layer = layer
        self.after = after

    def forward(self, x: Tensor, *more: Any, **named: Any) -> Any:
        y = self.layer(x if self.before is None else self.before(x), *more, **named)
        return y if self.after is None else self.after(y)

    def __getattr__(self, name: str) -> Any:
        """Networks read ``fc.in_features`` or ``fc.weight`` of their layers: the wrapped one answers."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "layer":
                raise
            return getattr(self.layer, name)


def place_sites(network: nn.Module, sites: Iterable[Site]) -> nn.Module:
    """A copy of ``network`` with the sites in place; the original is not touched."""
    module = copy.deepcopy(network)
    named = dict(module.named_modules())
    by_module: dict[str, list[Site]] = {}
    _check_distinct(sites := tuple(sites))
    for site in sites:
        if site.module not in named:
            raise unknown_name("module", site.module, named)
        by_module.setdefault(site.module, []).append(site)
    for name, here in by_module.items():
        module = _swap(module, named[name], _stochastic(named[name], here))
    return module


def _check_distinct(sites: tuple[Site, ...]) -> None:
    numbers = [n for site in sites for n in (site.number, site.bias_number) if n is not None]
    places = [(site.module, site.place) for site in sites]
    if len(set(numbers)) < len(numbers) or len(set(places)) < len(places):
        raise BadInput(
            "each site must have a number and a place of its own: equal numbers share their noise",
            f"numbers {numbers}, places {places}",
            "number the sites 0, 1, 2, …",
        )


def _stochastic(layer: nn.Module, sites: list[Site]) -> nn.Module:
    masks: dict[Place, Mask] = {}
    for site in sites:
        if site.kind == "gaussian":
            if not isinstance(layer, WEIGHTED_TYPES):
                raise BadInput(
                    "a Gaussian can stand on Linear, Conv1d and Conv2d",
                    f"{type(layer).__name__} at '{site.module}'",
                    "leave this layer out",
                )
            layer = GaussianLayer(layer, site.number, site.sigma, site.bias_number)
        else:
            masks[site.place] = Mask(site.rate, site.number, site.channelwise)
    if "replace" in masks:
        layer = masks.pop("replace")
    return Masked(layer, masks.get("before"), masks.get("after")) if masks else layer


def _swap(root: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Put ``new`` wherever ``old`` stands: a module may be registered under several names."""
    if root is old:
        return new
    everywhere = [name for name, module in root.named_modules(remove_duplicate=False) if module is old]
    for name in everywhere:
        parent, _, child = name.rpartition(".")
        setattr(root.get_submodule(parent), child, new)
    return root


Stochastic = Mask | GaussianLayer


class HandedNoise(ABC):
    """Stands where a layer draws its noise of training; ``set_draw`` says where it is to come from."""

    @abstractmethod
    def __call__(self, *given: Any) -> Tensor: ...

    @abstractmethod
    def set_draw(self, draw: Callable[..., Tensor]) -> None: ...


def noise_name(layer: Stochastic) -> str:
    """The method by which a layer draws its noise in training."""
    return "training_mask" if isinstance(layer, Mask) else "training_noise"


def stochastic_layers(module: nn.Module) -> Iterator[Stochastic]:
    """The layers that draw noise; a mask of rate 0 draws none."""
    for layer in module.modules():
        if isinstance(layer, GaussianLayer) or (isinstance(layer, Mask) and layer.rate > 0):
            yield layer


def gaussian_layers(module: nn.Module) -> Iterator[GaussianLayer]:
    return (layer for layer in module.modules() if isinstance(layer, GaussianLayer))


def sites_of(module: nn.Module) -> tuple[Site, ...]:
    """The sites of a stochastic network, read off its layers, with the names they had before."""
    found: list[Site] = []
    for name, layer in module.named_modules():
        owner, plain = _unwrap(module, name.split(".") if name else [])
        if isinstance(layer, GaussianLayer):
            sigma, bias = layer.first_sigma, layer.bias_site
            found.append(Site(layer.site, "gaussian", plain, "replace", sigma=sigma, bias_number=bias))
        elif isinstance(layer, Mask):
            place: Place = "replace"
            if isinstance(owner, Masked) and layer is not owner.layer:
                place = "before" if layer is owner.before else "after"
            found.append(Site(layer.site, "mask", plain, place, layer.rate, layer.channelwise))
    return tuple(sorted(found, key=lambda site: site.number))


def point_state(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The plain network's parameters out of a stochastic one's: masks unwrapped, Gaussians at their means."""
    plain: dict[str, Tensor] = {}
    for name, value in state.items():
        *path, leaf = name.split(".")
        _, prefix = _unwrap(module, path)
        owner = module.get_submodule(".".join(path))
        if (leaf.endswith("_rho") and isinstance(owner, GaussianLayer)) or isinstance(owner, ConstantNoise):
            continue
        if isinstance(owner, GaussianLayer):
            leaf = leaf.removesuffix("_mean")
        plain[f"{prefix}.{leaf}" if prefix else leaf] = value
    return plain


def _unwrap(module: nn.Module, path: list[str]) -> tuple[nn.Module | None, str]:
    """The module that holds the last part of ``path``, and the path without our wrappers."""
    kept: list[str] = []
    owner: nn.Module | None = None
    here = module
    for part in path:
        if not isinstance(here, (Masked, ConstantNoise)):
            kept.append(part)
        owner, here = here, here.get_submodule(part)
    return owner, ".".join(kept)
