"""How much training: a frozen value that checks itself."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qbayes.methods import METHODS, Method, make_method
from qbayes.options import (
    POSITIVE,
    SHARE_BELOW_ONE,
    SWITCH,
    Limit,
    check_names,
    check_options,
    is_number,
    one_of,
    option,
    whole,
)
from qbayes.tasks import Task

_NORM = Limit(
    "at least 0 and finite, or None",
    lambda value: value is None or POSITIVE.holds(value) or (is_number(value) and value == 0),
)
_BF16 = Limit("true, false or 'auto'", lambda value: isinstance(value, bool) or value == "auto")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a network is trained, in which steps, and in which arithmetic.

    Example:
        >>> Budget(epochs=5, learning_rate=0.01).rate_at(0, 100)
        0.01

    Attributes:
        epochs: Passes over the training rows.
        least_steps: Steps that there are at least. It raises the epochs where a pass is only a few steps;
            0 by default.
        batch_size: Rows in a step.
        learning_rate: The largest rate, or the step of SGHMC.
        schedule: How the rate falls: by ``cosine``, ``linear``, or not (``constant``).
        warmup: The share of the steps in which the rate rises from 0; none by default.
        clip: The largest norm of a network's gradient; unlimited by default and where it is 0.
        bf16: Whether products are of bfloat16. ``"auto"`` says yes for images on a processor that has them.
        compile: Whether ``torch.compile`` is used; it is on CUDA only.
        channels_last: Whether images lie with their channels last.
        average: The share of the last steps whose weights are averaged. The average is kept, and its batch
            statistics are measured anew. None by default.
        small_images: The share of the first epochs in which images have three quarters of their side. Such
            epochs take little more than half the time. None by default.
    """

    epochs: int = option(100, "Passes over the training rows.", whole(0, 1_000_000))
    least_steps: int = option(0, "Steps at least: small data get more epochs.", whole(0, 1_000_000_000))
    batch_size: int = option(128, "Rows in a step.", whole(1, (1 << 31) - 1))
    learning_rate: float = option(1e-3, "Largest learning rate, or SGHMC's step.", POSITIVE)
    schedule: Literal["cosine", "linear", "constant"] = option(
        "cosine", "How the rate falls.", one_of("cosine", "linear", "constant")
    )
    warmup: float = option(0.0, "Share of the steps in which the rate rises.", SHARE_BELOW_ONE)
    clip: float | None = option(None, "Largest norm of the gradient; 0 for any.", _NORM)
    bf16: bool | Literal["auto"] = option(False, "Products in bfloat16, where the processor has such.", _BF16)
    compile: bool = option(False, "torch.compile on CUDA.", SWITCH)
    channels_last: bool = option(False, "Images with channels last.", SWITCH)
    average: float = option(0.0, "Share of the last steps whose weights are averaged.", SHARE_BELOW_ONE)
    small_images: float = option(0.0, "Share of the epochs on smaller images.", SHARE_BELOW_ONE)

    def __post_init__(self) -> None:
        check_options(self, "budget")
        if self.clip == 0:
            object.__setattr__(self, "clip", None)

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of ``step`` (from 0): linear warm-up, then as the schedule has it.

        That is ``½ (1 + cos πt)`` (cosine), ``1 − t`` (linear) or 1 (constant) of the largest.
        """
        warm = round(self.warmup * steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        if self.schedule == "constant":
            return self.learning_rate
        t = (step - warm) / max(1, steps - warm)
        if self.schedule == "linear":
            return self.learning_rate * (1 - t)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * t))

    def for_rows(self, rows: int) -> "Budget":
        """The same budget with the epochs that ``least_steps`` asks for on ``rows`` training rows."""
        # a task without training rows has no step; it is refused where its rows are first asked for.
        needed = math.ceil(self.least_steps / max(1, steps_in_epoch(rows, self.batch_size)))
        return dataclasses.replace(self, epochs=max(self.epochs, needed), least_steps=0)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], **overrides: Any) -> "Budget":
        """A budget from a preset's options and what the user says instead; epochs named are epochs kept."""
        merged = {**options, **overrides}
        if "epochs" in overrides and "least_steps" not in overrides:
            merged["least_steps"] = 0
        check_names("the budget", merged, [field.name for field in dataclasses.fields(cls)])
        return cls(**merged)


def steps_in_epoch(rows: int, batch_size: int) -> int:
    """Batches of an epoch; a last batch of a single row is left out where there is another."""
    full, rest = divmod(rows, batch_size)
    return full + (1 if rest > 1 or (rest == 1 and full == 0) else 0)


def rows_in_epoch(rows: int, batch_size: int) -> int:
    """Rows that the batches of an epoch hold."""
    full, rest = divmod(rows, batch_size)
    return rows - (1 if rest == 1 and full > 0 else 0)


def recipe(
    name: str, task: Task, preset: str = "default", *, budget: Mapping[str, Any] | None = None, **options: Any
) -> tuple[Method, Budget]:
    """The method called ``name`` and a budget, as ``preset`` (default or paper) has them for ``task``.

    ``options`` replace the method's and ``budget`` the budget's: ``qb.recipe("mcd", task, rate=0.1)``.
    """
    values = METHODS[name].preset(preset, task.name, task.kind)
    training = Budget.from_options(values.budget, **(budget or {}))
    return make_method(name, **{**values.method, **options}), training.for_rows(task.train_rows)
