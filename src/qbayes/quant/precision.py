"""Precision: how many bits, and which grids, for every part of a network."""

import dataclasses
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

import numpy as np

from qbayes.errors import BadInput, nearest, unknown_name
from qbayes.integer.arithmetic.grid import FEWEST_BITS, MOST_BITS, MOST_WIDE_BITS
from qbayes.options import check_names
from qbayes.posterior.likelihood import Categorical, Likelihood
from qbayes.quant.observers import QUANTIZERS

Override = tuple[str, tuple[tuple[str, int | str | None], ...]]
Overrides = tuple[Override, ...]

BITS = ("weight", "activation", "elementwise_bits", "input", "output", "noise", "sigma")
FOLLOWS = {"elementwise_bits": "activation", "input": "activation", "output": "activation", "sigma": "weight"}
AUTO = "auto"
# TOML has no null: these words say that bits follow the others.
FOLLOW = ("none", "null", "follow")
_LABEL = re.compile(r"[Ww](\d+)[Aa](\d+)")
# the ends of the network: they may have more than 8 bits, and what they are for decides how many.
ENDS = ("input", "output")
RANGES = ("weight_range", "activation_range")
OF_A_LAYER = ("weight", "activation", "granularity", "weight_range", "activation_range", "sigma")
# what differs from the default in the paper's scheme: one affine grid a tensor, ranges by moving averages, n
# bits at the network's input and outputs too, σ·ε rounded on a grid of its own, masks on the product's grid.
PAPER: Mapping[str, Any] = {
    "activation": 7,
    "weight_scheme": "affine",
    "granularity": "tensor",
    "weight_range": "ema",
    "activation_range": "ema",
    "elementwise_bits": None,
    "input": None,
    "output": None,
    "gaussian": "single",
    "mask": "product",
}


@dataclass(frozen=True)
class Precision:
    """Bits (2 … 8, of the input and outputs 2 … 16) and grids; a small value that checks itself.

    Example:
        >>> import qbayes as qb
        >>> precision = qb.Precision(weight=4, activation=4, overrides={"logits": {"weight": 8}})
        >>> precision.label, precision.for_layer("logits").weight
        ('W4A4', 8)

    Attributes:
        weight: Bits of weights; 8 by default.
        activation: Bits of activations; 8 by default.
        weight_scheme: ``symmetric`` about 0 by default, or ``affine``: the grid has a zero-point.
        activation_scheme: ``affine`` by default, or ``symmetric``.
        granularity: Whether each output ``channel`` has a weight scale of its own, as by default, or the
            whole ``tensor`` has one.
        weight_range: The rule that finds the range of weights: ``lsq`` by default (learned).
        activation_range: The rule for activations; ``lsq`` by default.
        input: Bits of the network's input. ``"auto"``, the default, is 8 for a classifier and 16 for a
            regression; None follows ``activation``. An input has more than 8 bits only where weighted layers
            alone read it; reshapes, permutations and slices may stand between. The sums of these layers must
            also fit 32 bits whatever their weights (129 inputs an output at W8). Any other input has 8 bits
            then.
        output: Bits of the heads; ``"auto"``, the default, and None as for ``input``. More than 8 are given
            only to heads that come from a weighted layer and that nothing else reads. Other heads have 8
            then.
        noise: Bits of the noise ε of Gaussian weights; 8 by default.
        sigma: Bits of the deviations σ of Gaussian weights; None, the default, follows ``weight``.
        gaussian: ``keep``, the default, gives the noise of Gaussian weights an accumulator of its own
            wherever the weights' grid would lose it. ``single`` rounds σ·ε on its own grid and the sum on the
            weights' (the paper's).
        mask: ``exact``, the default, is one bit with 1/(1−p) in the scale. ``product`` rounds the mask with
            the scale of the product (the paper's).
        elementwise_bits: Bits of values that no layer multiplies (``quant.graph.bit_widths``): a branch
            before it is added, what is averaged, joined or looked up. 8 by default. None, or no more than
            ``activation``, means the bits of activations.
        overrides: What differs in layers, by name or pattern: ``"head"``, ``"block.*"``. Where several match,
            the later one wins. Nothing by default. It is kept as a tuple of pairs, so that a Precision is
            hashable.
    """

    weight: int = 8
    activation: int = 8
    weight_scheme: Literal["symmetric", "affine"] = "symmetric"
    activation_scheme: Literal["affine", "symmetric"] = "affine"
    granularity: Literal["channel", "tensor"] = "channel"
    weight_range: str = "lsq"
    activation_range: str = "lsq"
    input: int | Literal["auto"] | None = AUTO
    output: int | Literal["auto"] | None = AUTO
    noise: int = 8
    sigma: int | None = None
    gaussian: Literal["keep", "single"] = "keep"
    mask: Literal["exact", "product"] = "exact"
    elementwise_bits: int | None = MOST_BITS
    overrides: Mapping[str, Mapping[str, int | str | None]] | Overrides = ()

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "paper": PAPER}

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):  # numpy's own numbers are no JSON, and precisions are recorded.
                object.__setattr__(self, field.name, value.item())
        for name in BITS:
            self._check_bits(name)
        for name, choices in _choices().items():
            self._check_choice(name, choices)
        for name in RANGES:
            self._check_choice(name, QUANTIZERS)
        object.__setattr__(self, "overrides", _as_pairs(self.overrides))
        for pattern, options in self._pairs:
            try:
                dataclasses.replace(self, **dict[str, Any](options), overrides=())
            except BadInput as error:
                raise BadInput(f"override '{pattern}': {error.must}", error.got, error.do) from error

    @classmethod
    def preset(cls, name: str, *, weight: int | None = None, activation: int | None = None) -> "Precision":
        """A precision by its name.

        Args:
            name: ``default``, or ``paper``: exactly the scheme of the paper, W8A7 unless bits are given.
            weight: Bits of weights; the preset's by default.
            activation: Bits of activations; the preset's by default.

        Raises:
            BadInput: The name is unknown.
        """
        if name not in cls.presets:
            raise unknown_name("preset of the precision", name, cls.presets)
        bits = {"weight": weight, "activation": activation}
        given = {key: value for key, value in bits.items() if value is not None}
        return cls(**{**cls.presets[name], **given})

    @classmethod
    def parse(cls, given: "PrecisionLike") -> "Precision":
        """The precision that a label or a table stands for, as the command line and TOML have them.

        Example:
            >>> Precision.parse("W4A4") == Precision(4, 4)
            True
            >>> Precision.parse({"preset": "paper", "weight": 4}).label
            'W4A7'

        Args:
            given: ``"W4A4"``; options by name, with ``preset`` where they do not begin with the default's; or
                a ``Precision``, which stays as it is.
        """
        if isinstance(given, Precision):
            return given
        if isinstance(given, str):
            found = _LABEL.fullmatch(given)
            if found is None:
                raise BadInput(
                    "a precision must name the bits of weights and activations", f"'{given}'", "write W4A4"
                )
            return cls(weight=int(found[1]), activation=int(found[2]))
        if not isinstance(given, Mapping):
            raise BadInput("a precision must be a label or a table", f"{given!r:.200}", 'write "W4A4"')
        options = {key: None if value in FOLLOW else value for key, value in given.items()}
        preset = str(options.pop("preset", "default"))
        check_names("the precision", options, [field.name for field in dataclasses.fields(cls)])
        if preset not in cls.presets:
            raise unknown_name("preset of the precision", preset, cls.presets)
        return cls(**{**cls.presets[preset], **options})

    @property
    def label(self) -> str:
        """``W8A7``."""
        return f"W{self.weight}A{self.activation}"

    @property
    def fewest_bits(self) -> int:
        """Those of weights or activations, whichever are fewer."""
        return min(self.weight, self.activation)

    @property
    def input_bits(self) -> int:
        """8 for ``"auto"``, unless ``for_likelihood`` has settled it."""
        return self._bits_of_end(self.input)

    @property
    def output_bits(self) -> int:
        """8 for ``"auto"``, unless ``for_likelihood`` has settled it."""
        return self._bits_of_end(self.output)

    @property
    def sigma_bits(self) -> int:
        """Bits of σ: those of weights unless ``sigma`` says otherwise."""
        return self.weight if self.sigma is None else self.sigma

    def for_likelihood(self, likelihood: Likelihood) -> "Precision":
        """The precision with ``"auto"`` as a number: 8 for classes, 16 for a regression.

        Args:
            likelihood: That of the task.
        """
        bits = MOST_BITS if isinstance(likelihood, Categorical) else MOST_WIDE_BITS
        return dataclasses.replace(self, **{end: bits for end in ENDS if getattr(self, end) == AUTO})

    def for_layer(self, name: str) -> "Precision":
        """The precision of one layer: overrides that match it merged in, none left.

        Args:
            name: The layer's name in the network.
        """
        return dataclasses.replace(self, **self._options_for(name), overrides=())

    def for_narrow(self, name: str, narrow: str) -> "Precision":
        """The precision of the step that narrows a layer's values to the bits of activations.

        It is the layer's, but for the bits of activations, and for what overrides say of the step by its own
        name.

        Args:
            name: The layer whose values are narrowed.
            narrow: The name of the narrowing step.
        """
        said = {**self._options_for(name), "activation": self.activation, **self._options_for(narrow)}
        return dataclasses.replace(self, **said, overrides=())

    def _options_for(self, name: str) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for pattern, options in self._pairs:
            if fnmatchcase(name, pattern):
                changes.update(options)
        return changes

    def with_overrides(self, overrides: Mapping[str, Mapping[str, int | str | None]]) -> "Precision":
        """The precision with more overrides behind its own; options of the same pattern are merged.

        Args:
            overrides: Options by layer name or pattern.
        """
        said: dict[str, dict[str, int | str | None]] = {name: dict(given) for name, given in self._pairs}
        for pattern, options in overrides.items():
            # at the end, whatever stood there before: where several match, the later one wins.
            said[pattern] = {**said.pop(pattern, {}), **options}
        return dataclasses.replace(self, overrides=said)

    def overrides_bits(self, name: str, part: Literal["weight", "activation"]) -> bool:
        """Whether an override gives a layer bits of its own.

        Args:
            name: The layer's name.
            part: ``weight`` or ``activation``.
        """
        return any(fnmatchcase(name, pattern) and part in dict(options) for pattern, options in self._pairs)

    def check_overrides(self, layer_names: Iterable[str]) -> None:
        """Raise where a pattern matches none of the network's layers.

        Args:
            layer_names: The names of all layers.

        Raises:
            BadInput: A pattern matches none of them.
        """
        names = list(layer_names)
        for pattern, _ in self._pairs:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise BadInput(
                    "an override of the precision must match a layer of the network",
                    f"'{pattern}' matches none",
                    nearest(pattern, names),
                )

    def to_json(self) -> dict[str, Any]:
        """Plain values; overrides as a list of pairs: their order counts, and that of keys may be lost."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**plain, "overrides": [[pattern, dict(options)] for pattern, options in self._pairs]}

    @classmethod
    def from_json(cls, data: object) -> "Precision":
        """The precision that ``to_json`` described.

        Args:
            data: What ``to_json`` gave.

        Raises:
            BadInput: It is anything else.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(data, Mapping) or set(data) != names:
            got = sorted(map(str, set(data) ^ names)) if isinstance(data, Mapping) else type(data).__name__
            raise _refuse(f"exactly the fields {', '.join(sorted(names))}", f"{got!s:.200}")
        if not isinstance(data["overrides"], list):
            raise _refuse("overrides as a list of pairs", f"{data['overrides']!r:.200}")
        return cls(**dict[str, Any](data))

    @property
    def _pairs(self) -> Overrides:
        assert isinstance(self.overrides, tuple)
        return self.overrides

    def _bits_of_end(self, said: int | Literal["auto"] | None) -> int:
        if said == AUTO:
            return MOST_BITS
        return self.activation if said is None else said

    def _check_bits(self, name: str) -> None:
        value = getattr(self, name)
        if (value is None and name in FOLLOWS) or (name in ENDS and value == AUTO):
            return
        most = MOST_WIDE_BITS if name in ENDS else MOST_BITS
        # True is an int to Python.
        if isinstance(value, bool) or not isinstance(value, int) or not FEWEST_BITS <= value <= most:
            more = f", or None to follow {FOLLOWS[name]}" if name in FOLLOWS else ""
            more += f", or '{AUTO}'" if name in ENDS else ""
            raise BadInput(
                f"{name} must be a whole number of bits from {FEWEST_BITS} to {most}{more}",
                f"{value!r:.200}",
                f"change {name}",
            )

    def _check_choice(self, name: str, choices: Iterable[str]) -> None:
        value = getattr(self, name)
        if not isinstance(value, str) or value not in choices:
            raise unknown_name(name.replace("_", " "), f"{value!s:.200}", choices)


PrecisionLike = Precision | str | Mapping[str, Any]


def _choices() -> dict[str, tuple[str, ...]]:
    """The names that each field with a Literal type allows."""
    hints = typing.get_type_hints(Precision)
    return {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is Literal}


def _as_pairs(overrides: object) -> Overrides:
    """Overrides as they came (a mapping, or pairs) as a tuple of pairs of plain values."""
    items = list(overrides.items()) if isinstance(overrides, Mapping) else overrides
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise _refuse("overrides as a mapping from layer names to options", f"{overrides!r:.200}")
    pairs = tuple(_as_pair(item) for item in items)
    if len({pattern for pattern, _ in pairs}) < len(pairs):
        raise _refuse("each pattern of layer names once", ", ".join(pattern for pattern, _ in pairs))
    return pairs


def _as_pair(item: object) -> Override:
    match item:
        case (str() as pattern, Mapping() as options):
            listed = list(options.items())
        case (str() as pattern, tuple() as options):
            listed = list(options)
        case _:
            raise _refuse("an override as a layer name and its options", f"{item!r:.200}")
    for option in listed:
        if not isinstance(option, tuple) or len(option) != 2 or not isinstance(option[0], str):
            raise _refuse(f"options by name in the override '{pattern}'", f"{option!r:.200}")
        if option[0] not in OF_A_LAYER:
            raise unknown_name(f"option of the override '{pattern}'", option[0], OF_A_LAYER)
    plain = [(key, value.item() if isinstance(value, np.generic) else value) for key, value in listed]
    return pattern, tuple(plain)


def _refuse(must: str, got: str) -> BadInput:
    return BadInput(f"a precision must have {must}", got, "see the documentation of qbayes.Precision")
