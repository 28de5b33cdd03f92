"""How ``quantize`` trains where the caller leaves it open: by preset, by kind of task, by data set.

Recipes are data: options of ``FineTuning`` by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qbayes.errors import unknown_name

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
