"""Rows of results with numbers that a test chooses: what a study would have written."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from qbayes.lab.analysis.frame import Frame, Loaded

Made = dict[str, Any]
Bits = tuple[int, int] | None


def row(method: str = "mcd", bits: Bits = None, seed: int = 0, **columns: Any) -> Made:
    """One run; without ``bits`` the float run that its quantised ones are paired with."""
    task, fold = columns.get("task", "mnist"), columns.get("fold")
    network, recipe = columns.get("network", "lenet"), columns.get("recipe", "default")
    weight, activation = bits or (32, 32)
    made = {
        "task": task,
        "fold": fold,
        "network": network,
        "method": method,
        "recipe": recipe,
        "seed": seed,
        "draws": 20,
        "weight": weight,
        "activation": activation,
        "precision": "float" if bits is None else f"W{weight}A{activation}",
        "scheme": "float" if bits is None else "default",
        "training": "float" if bits is None else "trained",
        "backend": "float" if bits is None else "reference",
        "float": f"float of {task} {network} {method} {recipe} {fold} {seed}",
        "status": "done",
        **columns,
    }
    told = ("task", "fold", "network", "method", "recipe", "seed", "draws", "precision", "scheme", "training")
    places = [f"{name}={made[name]}" for name in sorted(made) if name.startswith("axis:")]
    return {"run": " ".join(str(made[name]) for name in (*told, "backend")) + " ".join(places), **made}


def classified(
    method: str, bits: Bits = None, seeds: Iterable[int] = range(3), error: float = 0.01, **columns: Any
) -> list[Made]:
    """Runs of ten classes; ``wiggle`` times (0, 1, −1, …) is added to the error of each seed."""
    wiggle = columns.pop("wiggle", 0.0)
    scores = {"nll": 3 * error, "ece": 0.01, "entropy": 0.05, "classes": 10, "bytes": 4_000_000}
    if bits is not None:
        scores["bytes"] = 4_000_000 * bits[0] // 32
    return [
        row(method, bits, seed, **{"error": error + wiggle * _sway(seed), **scores, **columns})
        for seed in seeds
    ]


def regressed(
    method: str, bits: Bits = None, seeds: Iterable[int] = range(3), rmse: float = 3.0, **columns: Any
) -> list[Made]:
    """Runs of a regression whose targets deviate by 10."""
    scores = {"rmse": rmse, "nll": 2.0, "interval_width_90": 9.0, "target_deviation": 10.0, "classes": None}
    given = {"task": "uci/boston", "network": "mlp", **scores, **columns}
    return [row(method, bits, seed, **given) for seed in seeds]


def study(
    rows: Iterable[Mapping[str, Any]],
    details: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    planned: int | None = None,
) -> Frame:
    """The frame of these rows, sorted by run as if it had been read."""
    ordered = sorted(rows, key=lambda one: str(one["run"]))
    done = tuple(one for one in ordered if one["status"] == "done")
    failed = tuple(one for one in ordered if one["status"] != "done")
    count = len(ordered) if planned is None else planned
    return Frame("made", "what for?", {}, done, failed, count, loaded=Loaded(details))


def _sway(seed: int) -> int:
    return (0, 1, -1)[seed % 3]
