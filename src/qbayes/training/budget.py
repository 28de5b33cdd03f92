"""How much training, and in which arithmetic: a frozen value that checks itself."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

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

AUTO = "auto"
# what cpuinfo calls products of bfloat16: on x86 AVX-512 BF16 or AMX, on Arm BF16.
_PRODUCTS = ("avx512_bf16", "amx_bf16", "bf16")
# torch before 2.10 has no public list of what a processor can do.
_ASKED_BEFORE = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
# (channels, height, width)
_IMAGE = 3
_AMPERE = (8, 0)
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
    least_steps: int = option(
        0, "Least number of steps; small data get more epochs.", whole(0, 1_000_000_000)
    )
    batch_size: int = option(128, "Rows in a step.", whole(1, (1 << 31) - 1))
    learning_rate: float = option(1e-3, "Largest learning rate, or SGHMC's step.", POSITIVE)
    schedule: Literal["cosine", "linear", "constant"] = option(
        "cosine", "Schedule of the learning rate.", one_of("cosine", "linear", "constant")
    )
    warmup: float = option(0.0, "Share of the steps with linear warm-up.", SHARE_BELOW_ONE)
    clip: float | None = option(None, "Largest norm of the gradient; 0 means no limit.", _NORM)
    bf16: bool | Literal["auto"] = option(False, "Compute products in bfloat16, if the processor can.", _BF16)
    compile: bool = option(False, "Use torch.compile (on CUDA only).", SWITCH)
    channels_last: bool = option(False, "Store images with channels last.", SWITCH)
    average: float = option(0.0, "Share of the last steps whose weights are averaged.", SHARE_BELOW_ONE)
    small_images: float = option(0.0, "Share of the epochs on smaller images.", SHARE_BELOW_ONE)

    def __post_init__(self) -> None:
        check_options(self, "budget")
        if self.clip == 0:
            object.__setattr__(self, "clip", None)

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of ``step`` (from 0): linear warm-up, then as the schedule has it.

        That is ``½ (1 + cos πt)`` (cosine), ``1 − t`` (linear) or 1 (constant) of the largest.

        Args:
            step: Number of the step, from 0.
            steps: Steps of the whole training.
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
        """The same budget with the epochs that ``least_steps`` asks for.

        Args:
            rows: Number of training rows.

        Returns:
            A budget whose ``least_steps`` is 0 and whose ``epochs`` are at least as many as before.
        """
        # a task without training rows has no step; it is refused where its rows are first asked for.
        needed = math.ceil(self.least_steps / max(1, steps_in_epoch(rows, self.batch_size)))
        return dataclasses.replace(self, epochs=max(self.epochs, needed), least_steps=0)

    def to_json(self) -> dict[str, Any]:
        """The options by name, as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], **overrides: Any) -> "Budget":
        """A budget from a preset's options and what the user says instead; epochs named are epochs kept.

        Args:
            options: The preset's options by name.
            **overrides: Options that replace them. ``epochs`` alone also sets ``least_steps`` to 0.

        Raises:
            BadInput: An option is unknown, or its value is out of range.
        """
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
    """The method and the budget that a preset has for a task.

    Example:
        >>> import qbayes as qb
        >>> method, budget = qb.recipe("mcd", qb.load_task("digits"), rate=0.1)
        >>> method.rate, budget.epochs
        (0.1, 300)

    Args:
        name: The method's name: ``pointwise``, ``mcd``, ``bbb`` or ``sghmc``.
        task: Its name and kind choose the values, its training rows the number of epochs.
        preset: ``default``, or a file of hyper-parameters by name, such as ``paper``.
        budget: Options of ``Budget`` that replace the preset's; none by default.
        **options: Options of the method that replace the preset's.

    Returns:
        The method, and the budget with the epochs that this task's rows ask for.

    Raises:
        BadInput: The method, the preset or an option is unknown, or the preset has nothing for this task.
    """
    values = METHODS[name].preset(preset, task.name, task.kind)
    training = Budget.from_options(values.budget, **(budget or {}))
    return make_method(name, **{**values.method, **options}), training.for_rows(task.train_rows)


def resolve_arithmetic(budget: Budget, device: torch.device, input_shape: Sequence[int]) -> Budget:
    """The budget with ``bf16`` as a yes or a no: what will run on this device, and what keys record.

    Args:
        budget: its ``bf16`` may be ``"auto"``: bfloat16 for images, where the device has products of it.
        device: where training runs.
        input_shape: of one row; three axes are an image.

    Returns:
        The same budget, ``bf16`` being true or false. Where bfloat16 is asked for by name and the device has
        no such products, the answer is float32, with a warning: emulation would be slower than float32.

    Example:
        >>> from qbayes import Budget
        >>> resolve_arithmetic(Budget(bf16="auto"), torch.device("cpu"), (13,)).bf16
        False
    """
    if budget.bf16 is False:
        return budget
    fast = has_bf16(device)
    if budget.bf16 is True and not fast:
        warnings.warn(
            f"bf16 must have a processor with such products; {device.type} has none: training runs in "
            "float32, which is right and slower. Leave bf16 out, or at 'auto', to say so.",
            stacklevel=2,
        )
    wanted = budget.bf16 is True or len(input_shape) == _IMAGE
    return dataclasses.replace(budget, bf16=fast and wanted)


def has_bf16(device: torch.device) -> bool:
    """Whether products of bfloat16 are instructions of this device, not emulated."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _AMPERE
    return device.type == "cpu" and _processor_has_bf16()


@functools.cache
def _processor_has_bf16() -> bool:
    tell: Callable[[], Mapping[str, Any]] | None = getattr(torch.cpu, "get_capabilities", None)
    if tell is not None:
        capabilities = tell()
        return any(capabilities.get(name) for name in _PRODUCTS)
    asked = (getattr(torch.cpu, name, None) for name in _ASKED_BEFORE)
    return any(ask is not None and ask() for ask in asked)
