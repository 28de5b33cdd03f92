r"""Monte Carlo dropout (Gal and Ghahramani, *Dropout as a Bayesian approximation*, ICML 2016).

Masks stay on at prediction; each draw is a sub-network:

.. math:: y = f\bigl(\tfrac{1}{1-p}\, k \odot x\bigr), \qquad k \sim \mathrm{Bernoulli}(1-p)

Placement ``default``: a mask before every weight-bearing layer except the first, element-wise on features and
channel-wise on feature maps. Placement ``paper``: where the network's ``paper_masks`` says. A network's own
Dropout layers become sites with their own rate, and the layer behind one gets no second mask.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from qbayes.errors import BadInput, unknown_name
from qbayes.methods.base import FEW_EPOCHS, METHODS, Descent, Preset, nothing_to_attach
from qbayes.methods.placement import Survey, survey
from qbayes.posterior.sites import Attachment, Place, Site, check_rate


def _uci(rate: float) -> Preset:
    """The UCI sets are small and most of them nearly noiseless: they want many steps and little dropout."""
    return Preset(
        {"rate": rate}, {"epochs": 40, "least_steps": 8000, "batch_size": 64, "learning_rate": 3e-3}
    )


@METHODS.register("mcd")
@dataclass(frozen=True, kw_only=True)
class MCDropout(Descent):
    """MC dropout.

    Example:
        >>> MCDropout(rate=0.2, rates={"conv*": 0.1, "fc": 0}).rates
        {'conv*': 0.1, 'fc': 0.0}

    Attributes:
        rate: The share p of activations that a mask drops; 0.1 by default.
        placement: ``default``: a mask before every layer with weights but the first. ``paper``: where the
            network's ``paper_masks`` says.
        rates: Other rates by module name or pattern: 0 takes a mask away, a rate for a layer without a mask
            puts one before it. None by default.
        after: Names of modules with a mask behind them; none by default.
        optimizer: ``adam`` (the default), ``adamw`` or ``sgd`` (with Nesterov momentum).
        weight_decay: It acts on weights, not on biases and norms; 1e-5 by default.
        momentum: The momentum of ``sgd``; 0.9 by default.
    """

    name: ClassVar[str] = "mcd"
    gaussian: ClassVar[bool] = False
    rate: float = 0.1
    placement: Literal["default", "paper"] = "default"
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    after: tuple[str, ...] = ()
    weight_decay: float = 1e-5

    presets: ClassVar[Mapping[str, Preset]] = {
        "default/classification": Preset(
            {"rate": 0.2}, {"epochs": 60, "least_steps": 3000, "batch_size": 128, "learning_rate": 1e-3}
        ),
        "default/regression": Preset({"rate": 0.2}, {"epochs": 100, "batch_size": 64, "learning_rate": 3e-3}),
        "default/uci": _uci(0.1),
        # the more rows, and the less noise in them, the less dropout: of 0.1, 0.05 and 0.02 those with the
        # least NLL on held-out training rows; on yacht 0.02 gains 0.07 nat more and loses 3 % of RMSE.
        # Wine is the noisiest: of 0.1, 0.2 and 0.3 the last.
        "default/uci/concrete": _uci(0.05),
        "default/uci/energy": _uci(0.02),
        "default/uci/power": _uci(0.02),
        "default/uci/wine": _uci(0.3),
        "default/uci/yacht": _uci(0.05),
        "default/cifar10": Preset(
            {"rate": 0.02, "optimizer": "sgd", "weight_decay": 5e-4},
            {"epochs": 36, "learning_rate": 0.4, "small_images": 0.4, **FEW_EPOCHS},
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate(self.rate, "of mcd")
        self.require(isinstance(self.rates, Mapping), "rates", "a mapping of names to rates")
        names_listed = isinstance(self.after, list | tuple) and all(isinstance(n, str) for n in self.after)
        self.require(names_listed, "after", "a list of names")
        for name, rate in self.rates.items():
            fits = isinstance(name, str) and isinstance(rate, Real) and not isinstance(rate, bool)
            self.require(fits, "rates", "a mapping of names to rates")
            check_rate(float(rate), f"for '{name}'")
        # Python's own numbers: what is kept here is written as JSON.
        object.__setattr__(self, "rates", {name: float(rate) for name, rate in self.rates.items()})
        object.__setattr__(self, "after", tuple(self.after))
        if self.placement not in ("default", "paper"):
            raise unknown_name("placement", str(self.placement), ("default", "paper"))

    def plan(self, network: nn.Module, example: Tensor | None) -> Attachment:
        seen = survey(network, example)
        places = (
            self._paper_places(network, seen) if self.placement == "paper" else self._default_places(seen)
        )
        for name in self.after:
            if name not in seen.modules:
                raise unknown_name("module of the network", name, filter(None, seen.modules))
            places.setdefault((name, "after"), self.rate)
        self._override(places, seen)
        # a Dropout layer at rate 0 is a site too: left in the network, it would go on dropping in training.
        kept = [item for item in _in_order(places, seen) if item[1] > 0 or item[0][1] == "replace"]
        sites = tuple(
            Site(number, "mask", name, place, rate, _channelwise(seen.modules[name], place))
            for number, ((name, place), rate) in enumerate(kept)
        )
        if not any(site.rate > 0 for site in sites):
            raise nothing_to_attach("mcd", network, example)
        layers = {layer.name for layer in seen.layers}
        bare = (
            layers - {site.module for site in sites} - {layer.name for layer in seen.layers if layer.masked}
        )
        return Attachment(sites, (*((name, "no mask before it") for name in sorted(bare)), *seen.left_alone))

    def _default_places(self, seen: Survey) -> dict[tuple[str, Place], float]:
        places = _own_dropouts(seen)
        for layer in seen.layers[1:]:
            if not layer.masked:
                places[layer.name, "before"] = self.rate
        return places

    def _paper_places(self, network: nn.Module, seen: Survey) -> dict[tuple[str, Place], float]:
        marks: Any = getattr(network, "paper_masks", None)
        if not marks:
            raise BadInput(
                "the placement 'paper' needs a network that names its places in paper_masks",
                type(network).__name__,
                "use placement='default', or after=(…) and rates={…} by module name",
            )
        places = _own_dropouts(seen)
        for mark in marks:
            place, _, name = mark.partition(":")
            if name not in seen.modules:
                raise unknown_name("module in paper_masks", name, filter(None, seen.modules))
            places[name, "after" if place == "after" else "before"] = self.rate
        return places

    def _override(self, places: dict[tuple[str, Place], float], seen: Survey) -> None:
        layers = [layer.name for layer in seen.layers]
        for pattern, rate in self.rates.items():
            known = [key for key in places if fnmatch.fnmatchcase(key[0], pattern)]
            fresh = [name for name in layers if fnmatch.fnmatchcase(name, pattern)]
            if not known and not fresh:
                raise unknown_name("layer in rates", pattern, {*layers, *(name for name, _ in places)})
            for key in known:
                places[key] = rate
            for name in fresh if not known else ():
                places[name, "before"] = rate


def _own_dropouts(seen: Survey) -> dict[tuple[str, Place], float]:
    return {(name, "replace"): float(dropout.p) for name, dropout in seen.dropouts}  # pyright: ignore[reportArgumentType]


def _channelwise(module: nn.Module, place: Place) -> bool:
    """Feature maps lose whole channels: neighbouring pixels tell the same (Tompson et al., CVPR 2015)."""
    if place == "replace":
        return not isinstance(module, nn.Dropout)
    # on plain features (rows, features) channel-wise and element-wise are the same thing.
    return not isinstance(module, nn.Linear)


def _in_order(places: dict[tuple[str, Place], float], seen: Survey) -> list[tuple[tuple[str, Place], float]]:
    """Site numbers follow the order in which the network registers its modules: stable across runs."""
    rank = {name: index for index, name in enumerate(seen.modules)}
    return sorted(places.items(), key=lambda item: (rank[item[0][0]], item[0][1] == "after"))
