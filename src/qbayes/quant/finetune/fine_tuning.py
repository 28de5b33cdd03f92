"""``FineTuning``: all options of ``quantize`` and ``fine_tune``, each written once.

The options of ``qbayes quantize``, the keys of ``[run.quantize]`` in a study, the keys of stored results and
the table of the documentation are derived from the fields below.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from qbayes.errors import BadInput, unknown_name
from qbayes.options import SHARE, SWITCH, by_recipe, check_names, check_options, one_of, option, options_of
from qbayes.training.budget import Budget

PRESETS = ("default", "paper")
# those for which recipes are written.
BITS = 8


@dataclass(frozen=True)
class Recipe:
    """Options for 8 bits, and how the learning rate grows where there are fewer.

    Attributes:
        options: Values of ``FineTuning`` by name; what is missing has its fallback.
        growth: The rate of n bits is ``growth^(8 − n)`` times as large. n is that of weights or activations,
            whichever have fewer; their codes lie further apart.
    """

    options: Mapping[str, Any]
    growth: float = 1.0


# Found by measurement (docs/how-to-choose.md; for regression on held-out rows of the UCI sets), and the
# paper's. ``PRESET/KIND`` goes before, and what a data set has of its own before that.
RECIPES: Mapping[str, Recipe] = {
    "default": Recipe(
        {
            "epochs": 10,
            "least_steps": 200,
            "batch_size": 128,
            "learning_rate": 1e-2,
            "clip": 1.0,
            "optimizer": "sgd",
            "distill": 0.0,
            # with it one of three bbb on digits collapsed at 3 bits; the rate was chosen without.
            "equalize": False,
        }
    ),
    # a table's float network may err by a few hundredths of the targets' deviation, a pass over its rows is a
    # few steps, and labels that few rows have are soon known by heart: many small steps of distillation.
    "default/regression": Recipe(
        {
            "epochs": 10,
            "least_steps": 2000,
            "batch_size": 64,
            "learning_rate": 1.5e-4,
            "clip": 1.0,
            "optimizer": "adam",
            "distill": 1.0,
            "equalize": True,
        },
        growth=2.0,
    ),
    "paper": Recipe(
        {
            "epochs": 10,
            "batch_size": 256,
            "learning_rate": 1e-5,
            "optimizer": "sgd",
            "distill": 0.0,
            "equalize": False,
        }
    ),
}
RECIPES_OF_DATA: Mapping[tuple[str, str], Recipe] = {
    # a network that knows its training rows by heart learns from labels to be surer than it should be:
    # distillation keeps its calibration. Chosen among nine settings on held-out rows (slim ResNet-18,
    # pointwise, W4A4 and W3A3, one seed): shares 0, ½ and 1, batches of 128 and 256, rates from 2e-2 to 8e-2,
    # Adam. Most of them lie within 0.3 points of error, which one seed cannot tell apart. At 8 bits 2e-2 does
    # harm (three seeds: +0.22 points, calibrated +0.07), at two bits it is too little (18 % error, with 8e-2
    # 16 %). Mixup took W3A3's NLL from 0.329 to 0.288 and its ECE from 4.9 to 2.9 % (pointwise, two seeds),
    # but the error of mcd from 7.9 to 8.8 %: none here. Networks that were distilled to few bits are less
    # sure than the float one: the temperature makes up for it.
    ("default", "cifar10"): Recipe(
        {
            "epochs": 10,
            "least_steps": 200,
            "batch_size": 128,
            "learning_rate": 3e-3,
            "clip": 1.0,
            "bf16": "auto",
            "channels_last": True,
            "optimizer": "sgd",
            "distill": 1.0,
            "equalize": False,
            "match_temperature": True,
        },
        growth=1.5,
    ),
}


def find_recipe(preset: str = "default", kind: str = "classification", task: str = "") -> Recipe:
    """The recipe of a preset for the task of that name, or for tasks of this kind.

    Args:
        preset: ``default`` or ``paper``.
        kind: ``classification`` or ``regression``.
        task: The task's name; some data sets have a recipe of their own.
    """
    if preset not in PRESETS:
        raise unknown_name("preset of quantisation", preset, PRESETS)
    own = RECIPES_OF_DATA.get((preset, task)) if kind == "classification" else None
    return own or RECIPES.get(f"{preset}/{kind}", RECIPES[preset])


Optimizer = Literal["sgd", "adam"]


class TaskLike(Protocol):
    """What a recipe asks of a task."""

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...


class HasBits(Protocol):
    """What a recipe asks of a precision."""

    @property
    def fewest_bits(self) -> int: ...


@dataclass(frozen=True)
class AnyTask:
    """A task of which only the kind and the name are known."""

    kind: str = "classification"
    name: str = ""


@dataclass(frozen=True)
class EightBits:
    """The precision for which recipes are written."""

    fewest_bits: int = BITS


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """How ``quantize`` trains. What is not given is as the recipe of the preset has it for the task.

    ``FineTuning(epochs=0)`` calibrates only. A recipe depends on the kind of task, for some data sets on
    their name, and its learning rate on the bits.

    Example:
        >>> short = FineTuning(epochs=3, distill=1.0)
        >>> done = short.resolve(EightBits(), AnyTask("classification", "digits"))
        >>> done.epochs, done.learning_rate, done.optimizer
        (3, 0.01, 'sgd')

    Attributes:
        preset: Whose recipe decides what is not given: ``default`` or ``paper``.
        epochs: As in ``Budget``; 0 calibrates only.
        least_steps: As in ``Budget``. Epochs that are given are kept, unless this is given too.
        batch_size: As in ``Budget``.
        learning_rate: As in ``Budget``; the recipe's grows where there are fewer bits.
        schedule: As in ``Budget``.
        warmup: As in ``Budget``.
        clip: As in ``Budget``.
        bf16: As in ``Budget``.
        compile: As in ``Budget``.
        channels_last: As in ``Budget``.
        average: As in ``Budget``.
        small_images: As in ``Budget``.
        optimizer: ``sgd`` or ``adam``.
        distill: The share of the loss in which each draw learns from the same draw of the float network; the
            rest learns from labels (``qbayes.quant.finetune.distill``).
        mixup: The share of rows that are mixed with others. Only where ``distill`` is 1: mixed rows have no
            labels. None by default.
        equalize: Whether channels are given one range before anything is rounded
            (``qbayes.quant.graph.equalize``).
        match_temperature: Whether class scores get one temperature, fitted to the float network's predictions
            without labels (``qbayes.quant.finetune.temperature``).
        keep: The epoch to keep: the ``last``, or the ``best`` on the validation rows. The last by default.
        freeze: The share of the epochs after which ranges stop following the data; a half by default. Ranges
            that are learned (lsq) are set by calibration and then trained.
    """

    preset: str = option(
        "default", "Recipe for the options that are not given.", one_of(*PRESETS), recorded=False
    )
    epochs: int = by_recipe(Budget, "epochs")
    least_steps: int = by_recipe(Budget, "least_steps")
    batch_size: int = by_recipe(Budget, "batch_size")
    learning_rate: float = by_recipe(Budget, "learning_rate")
    schedule: Literal["cosine", "linear", "constant"] = by_recipe(Budget, "schedule")
    warmup: float = by_recipe(Budget, "warmup")
    clip: float | None = by_recipe(Budget, "clip")
    bf16: bool | Literal["auto"] = by_recipe(Budget, "bf16")
    compile: bool = by_recipe(Budget, "compile")
    channels_last: bool = by_recipe(Budget, "channels_last")
    average: float = by_recipe(Budget, "average")
    small_images: float = by_recipe(Budget, "small_images")
    optimizer: Literal["sgd", "adam"] = option(
        "sgd", "Optimiser of the fine-tuning.", one_of("sgd", "adam"), by_recipe=True
    )
    distill: float = option(
        0.0, "Share of the loss in which each draw learns from the float network's.", SHARE, by_recipe=True
    )
    mixup: float = option(
        0.0, "Share of rows mixed with others; only with --distill 1.", SHARE, by_recipe=True, omitted=0.0
    )
    equalize: bool = option(
        False,
        "Give channels one range before anything is rounded.",
        SWITCH,
        by_recipe=True,
        stage="calibration",
    )
    match_temperature: bool = option(
        False,
        "Give class scores one temperature, fitted to the float network's without labels.",
        SWITCH,
        by_recipe=True,
        stage="result",
        omitted=False,
    )
    keep: Literal["last", "best"] = option(
        "last",
        "Epoch to keep; the best is by validation rows.",
        one_of("last", "best"),
        by_recipe=True,
    )
    freeze: float = option(
        0.5, "Share of the epochs after which ranges stop following the data.", SHARE, by_recipe=True
    )

    def __post_init__(self) -> None:
        check_options(self, "fine-tuning")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The value from options by name, as the command line and TOML have them.

        Args:
            options: Options by name.

        Raises:
            BadInput: An option is unknown, or its value is out of range.
        """
        check_names("fine-tuning", options, options_of(cls))
        return cls(**options)

    def resolve(self, precision: HasBits | None = None, task: TaskLike | None = None) -> Self:
        """The same with a value for every option: the recipe's, or the fallback where it has none.

        Args:
            precision: Its fewest bits scale the recipe's learning rate; 8 bits by default.
            task: Its kind and name choose the recipe; a classification by default.
        """
        precision, task = precision or EightBits(), task or AnyTask()
        recipe = find_recipe(self.preset, task.kind, task.name)
        known, given = options_of(self), self._given_options()
        values = {**{name: one.fallback for name, one in known.items()}, **recipe.options}
        values["learning_rate"] *= recipe.growth ** (BITS - precision.fewest_bits)
        values |= given
        if "epochs" in given and "least_steps" not in given:
            values["least_steps"] = 0
        if values["distill"] != 1:
            # they belong to distillation alone, unless they are asked for by name.
            values |= {name: known[name].fallback for name in _OF_DISTILLATION if name not in given}
        return dataclasses.replace(self, **{name: _decide(values[name]) for name in known})

    def check_for(self, task: TaskLike) -> None:
        """Raise where resolved options do not fit together, or not this task.

        Args:
            task: Its kind and name.

        Raises:
            BadInput: Two options exclude each other, or one of them the task.
        """
        if self.mixup > 0 and self.distill < 1:
            raise BadInput(
                "mixed rows have no labels: only the float network knows what they are",
                f"mixup={self.mixup:g} and distill={self.distill:g}",
                "give distill=1, or mixup=0",
            )
        if self.match_temperature and task.kind != "classification":
            raise BadInput(
                "only class scores have a temperature to match",
                f"a {task.kind} on '{task.name}'",
                "give match_temperature=False",
            )
        if self.distill > 0 and self.compile:
            raise BadInput(
                "a network that is distilled is not compiled",
                f"compile=True and distill={self.distill:g}, which may be the recipe's for this task",
                "give distill=0, or leave compile out",
            )
        if self.keep == "best" and self.average > 0:
            raise BadInput(
                "late weights can be averaged where the last epoch is kept",
                f"average={self.average:g} and keep='best', which looks for one epoch of them",
                "give keep='last', or leave average out",
            )

    @property
    def budget(self) -> Budget:
        """The part of resolved options that every training has."""
        return Budget(**{name: getattr(self, name) for name in options_of(Budget)})

    def with_budget(self, budget: Budget) -> Self:
        """The same with another budget.

        Args:
            budget: Its options replace those of the same names.
        """
        return dataclasses.replace(self, **{n: _decide(value) for n, value in budget.to_json().items()})

    def to_json(self) -> dict[str, Any]:
        """Resolved options as records hold them: the budget's as a table of their own."""
        shared = options_of(Budget)
        own = {name: getattr(self, name) for name, one in options_of(self).items() if one.recorded}
        return {"budget": self.budget.to_json(), **{n: v for n, v in own.items() if n not in shared}}

    def to_key(self) -> dict[str, Any]:
        """Resolved options as keys hold them: what is off and came later is left out."""
        values, known = self.to_json(), options_of(self)
        return {n: v for n, v in values.items() if n not in known or not known[n].is_omitted(v)}

    def of_stages(self, *stages: str) -> dict[str, Any]:
        """Resolved options, besides the budget's, whose last step is one of these.

        Args:
            *stages: ``calibration``, ``training`` or ``result``.
        """
        known = options_of(self)
        return {n: v for n, v in self.to_json().items() if n in known and known[n].stage in stages}

    def _given_options(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in options_of(self)}
        return {name: value for name, value in values.items() if value is not None}


_OF_DISTILLATION = ("mixup", "match_temperature")


def _decide(value: Any) -> Any:
    """None is what nobody decided: a gradient without a limit has the limit 0."""
    return 0 if value is None else value
