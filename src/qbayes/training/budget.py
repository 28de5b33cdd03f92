"""How much training: a frozen value that checks itself."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qbayes.errors import BadInput, unknown_name

SCHEDULES = ("cosine", "linear", "constant")
_LIMITS: Mapping[str, tuple[int, int]] = {
    "epochs": (0, 1_000_000),
    "batch_size": (1, (1 << 31) - 1),
    "least_steps": (0, 1_000_000_000),
}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Epochs, batch, learning rate and its schedule, and how the arithmetic runs.

    ``epochs=0`` is for quantisation, where it means: calibrate only. ``least_steps`` raises the epochs on
    small data, where a pass over the rows is only a few steps.
    ``warmup`` is the share of the steps over which the rate rises from 0; ``clip`` bounds the gradient's norm
    of each network. ``bf16`` multiplies in bfloat16; ``"auto"`` does so for images where the processor has
    such products (``qbayes.training.arithmetic``). ``compile`` applies on CUDA only.
    ``average`` is the share of the last steps whose weights are averaged; the average is what is kept, with
    its batch statistics measured anew. ``small_images`` is the share of the first epochs whose images are
    shrunk to three quarters of their side: they take little more than half the time.
    """

    epochs: int = 100
    least_steps: int = 0
    batch_size: int = 128
    learning_rate: float = 1e-3
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = 0.0
    clip: float | None = None
    bf16: bool | Literal["auto"] = False
    compile: bool = False
    channels_last: bool = False
    average: float = 0.0
    small_images: float = 0.0

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            holds = type(value) is int and least <= value <= most
            self._require(holds, name, f"a whole number from {least} to {most:,}")
        for name in ("compile", "channels_last"):
            self._require(isinstance(getattr(self, name), bool), name, "true or false")
        automatic = isinstance(self.bf16, str) and self.bf16 == "auto"
        self._require(isinstance(self.bf16, bool) or automatic, "bf16", "true, false or 'auto'")
        for name in ("average", "small_images"):
            self._require(_between(getattr(self, name), 0, 1), name, "a share from 0 to below 1")
        self._require(
            _between(self.learning_rate, 0, math.inf, open_below=True), "learning_rate", "above 0 and finite"
        )
        self._require(_between(self.warmup, 0, 1), "warmup", "a share from 0 to below 1")
        self._require(
            self.clip is None or _between(self.clip, 0, math.inf, open_below=True), "clip", "above 0, or None"
        )
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", str(self.schedule), SCHEDULES)

    def _require(self, holds: bool, field: str, must: str) -> None:
        if not holds:
            raise BadInput(f"budget: {field} must be {must}", f"{getattr(self, field)!r}", f"change {field}")

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
        known = {field.name for field in dataclasses.fields(cls)}
        merged = {**options, **overrides}
        if "epochs" in overrides and "least_steps" not in overrides:
            merged["least_steps"] = 0
        for option in merged:
            if option not in known:
                raise unknown_name("option of the budget", option, known)
        return cls(**merged)


def steps_in_epoch(rows: int, batch_size: int) -> int:
    """Batches of an epoch; a last batch of a single row is left out where there is another."""
    full, rest = divmod(rows, batch_size)
    return full + (1 if rest > 1 or (rest == 1 and full == 0) else 0)


def rows_in_epoch(rows: int, batch_size: int) -> int:
    """Rows that the batches of an epoch hold."""
    full, rest = divmod(rows, batch_size)
    return rows - (1 if rest == 1 and full > 0 else 0)


def _between(value: object, low: float, high: float, *, open_below: bool = False) -> bool:
    """Whether ``value`` is a number with ``low ≤ value < high`` (``low < value`` if open below)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return low <= value < high and not (open_below and value == low)
