"""How ``quantize`` trains unless told otherwise: by preset, and by the kind of task."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qbayes.errors import unknown_name
from qbayes.quant.affine import MOST_BITS
from qbayes.training.budget import Budget

Optimiser = Literal["sgd", "adam"]
OPTIMISERS = ("sgd", "adam")
PRESETS = ("default", "paper")


@dataclass(frozen=True)
class QatRecipe:
    """The budget's options, the optimiser, the share of imitation, whether channels are equalised, the share
    of blended rows, and whether class scores are made as sharp as the float network's.

    ``budget`` is that of 8 bits. With fewer, codes lie further apart, and the rate is ``growth^(8 − n)``
    times as large for the n bits of weights or activations, whichever are fewer.
    """

    budget: Mapping[str, Any]
    optimiser: Optimiser
    teacher: float
    equalise: bool
    growth: float = 1.0
    blend: float = 0.0
    match: bool = False

    def told(self, **given: Any) -> dict[str, Any]:
        """All but the budget, as arguments of ``quantize``; what is ``given`` stands.

        Blended rows and the float network's sharpness belong to imitation: they go where labels come back.
        """
        names = ("optimiser", "teacher", "equalise", "blend", "match")
        how = {**{name: getattr(self, name) for name in names}, **given}
        off = {} if how["teacher"] == 1 else {"blend": 0.0, "match": False}
        return {**how, **{name: value for name, value in off.items() if name not in given}}

    def settled(self, bits: int, **overrides: Any) -> Budget:
        """The budget for so many bits; ``overrides`` stand as given."""
        rate = self.budget["learning_rate"] * self.growth ** (MOST_BITS - bits)
        return Budget.from_options({**self.budget, "learning_rate": rate}, **overrides)


# Found by measurement (docs/how-to-choose.md; for regression on held-out rows of the UCI sets), and the
# paper's. ``PRESET/KIND`` goes before, and what a data set has of its own before that.
QAT_RECIPES: Mapping[str, QatRecipe] = {
    "default": QatRecipe(
        {"epochs": 10, "least_steps": 200, "batch_size": 128, "learning_rate": 1e-2, "clip": 1.0},
        optimiser="sgd",
        teacher=0.0,
        # with it one of three trainings of bbb on digits collapsed at 3 bits: the rate was chosen without.
        equalise=False,
    ),
    # a table's float network may err by a few hundredths of the targets' deviation, a pass over its rows is a
    # few steps, and labels that few rows have are soon known by heart: many small steps of imitation.
    "default/regression": QatRecipe(
        {"epochs": 10, "least_steps": 2000, "batch_size": 64, "learning_rate": 1.5e-4, "clip": 1.0},
        optimiser="adam",
        teacher=1.0,
        equalise=True,
        growth=2.0,
    ),
    "paper": QatRecipe(
        {"epochs": 10, "batch_size": 256, "learning_rate": 1e-5},
        optimiser="sgd",
        teacher=0.0,
        equalise=False,
    ),
}
RECIPES_OF_DATA: Mapping[tuple[str, str], QatRecipe] = {
    # a network that knows its training rows by heart learns from labels to be surer than it should: imitation
    # keeps its calibration. Chosen among nine settings on held-out rows (slim ResNet-18, pointwise, W4A4 and
    # W3A3, one seed): shares 0, ½ and 1, batches of 128 and 256, rates from 2e-2 to 8e-2, Adam. Most of them
    # lie within 0.3 points of error, which one seed cannot tell apart. At 8 bits 2e-2 does harm (three seeds:
    # +0.22 points, calibrated +0.07), at two bits it is too little (18 % error, with 8e-2 16 %). Blended rows
    # took W3A3's NLL from 0.329 to 0.288 and its ECE from 4.9 to 2.9 % (pointwise, two seeds), but the error
    # of mcd from 7.9 to 8.8 %: none here. Imitation at few bits comes out less sure than the float network:
    # scores are made as sharp.
    ("default", "cifar10"): QatRecipe(
        {
            "epochs": 10,
            "least_steps": 200,
            "batch_size": 128,
            "learning_rate": 3e-3,
            "clip": 1.0,
            "bf16": "auto",
            "channels_last": True,
        },
        optimiser="sgd",
        teacher=1.0,
        equalise=False,
        growth=1.5,
        match=True,
    ),
}


def qat_recipe(preset: str = "default", kind: str = "classification", task: str = "") -> QatRecipe:
    """The recipe of a preset for the task of that name, or for tasks of this kind."""
    if preset not in PRESETS:
        raise unknown_name("preset of quantisation", preset, PRESETS)
    own = RECIPES_OF_DATA.get((preset, task)) if kind == "classification" else None
    return own or QAT_RECIPES.get(f"{preset}/{kind}", QAT_RECIPES[preset])


def qat_budget(
    preset: str = "default",
    kind: str = "classification",
    bits: int = MOST_BITS,
    task: str = "",
    **overrides: Any,
) -> Budget:
    """The budget of quantisation-aware training as ``preset`` (default or paper) has it for such tasks."""
    return qat_recipe(preset, kind, task).settled(bits, **overrides)
