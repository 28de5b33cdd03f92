"""How much training: a frozen value that checks itself."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qbayes.errors import BadInput, unknown_name

SCHEDULES = ("cosine", "constant")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Epochs, batch, learning rate and its schedule, and how the arithmetic runs.

    ``warmup`` is the share of the steps over which the rate rises from 0; ``clip`` bounds the gradient's norm of each
    network; ``bf16`` and ``compile`` apply on CUDA only.
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.0
    clip: float | None = None
    bf16: bool = False
    compile: bool = False
    channels_last: bool = False

    def __post_init__(self) -> None:
        self._require(isinstance(self.epochs, int) and self.epochs >= 1, "epochs", "a whole number of at least 1")
        self._require(isinstance(self.batch_size, int) and self.batch_size >= 1, "batch_size", "at least 1")
        self._require(0 < self.learning_rate < math.inf, "learning_rate", "above 0 and finite")
        self._require(0 <= self.warmup < 1, "warmup", "a share from 0 to below 1")
        self._require(self.clip is None or self.clip > 0, "clip", "above 0, or None")
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)

    def _require(self, holds: bool, field: str, must: str) -> None:
        if not holds:
            raise BadInput(f"budget: {field} must be {must}", f"{getattr(self, field)!r}", f"change {field}")

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of ``step`` (from 0): linear warm-up, then ``½ (1 + cos πt)`` to 0, or constant."""
        warm = round(self.warmup * steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        if self.schedule == "constant":
            return self.learning_rate
        t = (step - warm) / max(1, steps - warm)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * t))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Budget":
        known = {field.name for field in dataclasses.fields(cls)}
        for option in options:
            if option not in known:
                raise unknown_name("option of the budget", option, known)
        return cls(**options)
