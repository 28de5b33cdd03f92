"""Tasks that the networks of the zoo can learn in seconds, and the posteriors that the methods learn there.

``trained(name, method)`` gives the float posterior of a network of ``ZOO``: learnt once in a process and,
where ``keep_in`` was told a folder, once for all processes that share it.
"""

import fcntl
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_friedman1
from torch import nn

import qbayes as qb
from qbayes.metrics.evaluate import Predicts
from zoo import networks, spellings

METHODS = ("pointwise", "mcd", "bbb", "sghmc")
BAYESIAN = ("mcd", "bbb", "sghmc")


def digits() -> qb.Task:
    """Handwritten digits, 1×8×8 pixels of 0 … 16, 10 classes: 1,437 rows to learn from, 360 to test."""
    pixels, y = load_digits(return_X_y=True)
    x, y = np.asarray(pixels, np.float32).reshape(-1, 1, 8, 8), np.asarray(y)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1437], order[1437:]
    return qb.Task.from_arrays(x[train], y[train], x[test], y[test], kind="classification", name="zoo-digits")


def motifs(rows: int = 1200, length: int = 32, motif: int = 8) -> qb.Task:
    """Noise of two channels with one of four motifs at a random time: which one?"""
    draw = np.random.default_rng(1)
    shapes = 1.6 * draw.choice([-1.0, 1.0], size=(4, 2, motif))
    y = np.arange(rows) % 4
    x = draw.normal(0.0, 0.5, size=(rows, 2, length)).astype(np.float32)
    for row, start in enumerate(draw.integers(0, length - motif + 1, rows)):
        x[row, :, start : start + motif] += shapes[y[row]]
    cut = rows * 3 // 4
    return qb.Task.from_arrays(x[:cut], y[:cut], x[cut:], y[cut:], kind="classification", name="zoo-motifs")


def surface(rows: int = 1200) -> qb.Task:
    """Two smooth functions of the plane: ``sin 2a + b/2`` and ``a b``, with a noise of 0.1."""
    draw = np.random.default_rng(2)
    x = draw.uniform(-2, 2, size=(rows, 2)).astype(np.float32)
    a, b = x.T
    y = np.stack([np.sin(2 * a) + b / 2, a * b], axis=1) + draw.normal(0, 0.1, (rows, 2))
    cut = rows * 3 // 4
    return qb.Task.from_arrays(x[:cut], y[:cut], x[cut:], y[cut:], kind="regression", name="zoo-surface")


def friedman(rows: int = 1200) -> qb.Task:
    """Friedman's function of five inputs, with a noise that grows with the fourth."""
    x, y = make_friedman1(rows, n_features=5, random_state=3)
    y = y + np.random.default_rng(3).normal(size=rows) * (0.3 + x[:, 3])
    cut = rows * 3 // 4
    return qb.Task.from_arrays(x[:cut], y[:cut], x[cut:], y[cut:], kind="regression", name="zoo-friedman")


def _blobs(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noisy images 1×7×10 of one bright spot; its row, column and brightness; the images without noise."""
    draw = np.random.default_rng(4)
    row, column = draw.uniform(1, 5, rows), draw.uniform(1, 8, rows)
    bright = draw.uniform(0.7, 1.5, rows)
    down, right = np.mgrid[:7, :10]
    distance = (down - row[:, None, None]) ** 2 + (right - column[:, None, None]) ** 2
    clean = bright[:, None, None] * np.exp(-distance / 3)
    noisy = clean + draw.normal(0, 0.15, clean.shape)
    return noisy[:, None].astype(np.float32), np.stack([row, column, bright], 1), clean[:, None]


def blobs(rows: int = 1000) -> qb.Task:
    """Where is the spot, and how bright? Three numbers an image."""
    x, y, _ = _blobs(rows)
    cut = rows * 3 // 4
    return qb.Task.from_arrays(x[:cut], y[:cut], x[cut:], y[cut:], kind="regression", name="zoo-blobs")


def denoise(rows: int = 800) -> qb.Task:
    """The image without its noise: one number a pixel."""
    x, _, clean = _blobs(rows)
    cut = rows * 3 // 4
    return qb.Task.from_arrays(
        x[:cut], clean[:cut], x[cut:], clean[cut:], kind="regression", name="zoo-denoise"
    )


TASKS: dict[str, Callable[[], qb.Task]] = {
    maker.__name__: functools.cache(maker) for maker in (digits, motifs, surface, friedman, blobs, denoise)
}

# few epochs: SGHMC runs with large steps on a sharpened (cold) posterior, and keeps the last four of them.
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.05},
    "bbb": {"prior_sigma": 0.3, "kl_weight": 0.1},
    "sghmc": {"members": 4, "every": 1, "resample_prior": 50, "likelihood_weight": 30.0},
}
_BUDGETS: Mapping[str, Mapping[str, Any]] = {
    "pointwise": {"epochs": 8, "batch_size": 64, "learning_rate": 1e-2},
    "mcd": {"epochs": 8, "batch_size": 64, "learning_rate": 1e-2},
    "bbb": {"epochs": 8, "batch_size": 64, "learning_rate": 1e-2},
    "sghmc": {"epochs": 11, "batch_size": 64, "learning_rate": 2e-2, "schedule": "constant"},
}


@dataclass(frozen=True)
class Entry:
    """A network, its task, and for each method the score it must reach with these options and this budget.

    The score is the accuracy, or R² (see ``score``), of the test rows. ``options`` and ``budgets`` hold, by
    method, what differs from the zoo's common ones; ``all`` speaks of every method.
    """

    build: Callable[[], nn.Module]
    task: str
    floors: Mapping[str, float]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    budgets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    def method(self, name: str) -> qb.Method:
        return qb.method(name, **{**_OPTIONS[name], **self.options.get(name, {})})

    def budget(self, name: str) -> qb.Budget:
        return qb.Budget(**{**_BUDGETS[name], **self.budgets.get("all", {}), **self.budgets.get(name, {})})


def _floors(pointwise: float, mcd: float, bbb: float, sghmc: float) -> dict[str, float]:
    return {"pointwise": pointwise, "mcd": mcd, "bbb": bbb, "sghmc": sghmc}


# steps of a small MLP cost next to nothing, and a smooth function wants many.
_LONGER = {"all": {"epochs": 24, "learning_rate": 2e-2}}
_STEEPER = {"all": {"learning_rate": 2e-2}}
_STEEPEST = {**_STEEPER, "sghmc": {"learning_rate": 3e-2, "epochs": 12}}
# where large steps would outrun the norms' running averages: smaller ones.
_CALM = {"all": {"epochs": 6}, "sghmc": {"epochs": 9, "learning_rate": 1.5e-2}}

ZOO: dict[str, Entry] = {
    "vgg": Entry(networks.Vgg, "digits", _floors(0.95, 0.95, 0.95, 0.94)),
    "mobilenet_v2": Entry(networks.MobileNetV2, "digits", _floors(0.95, 0.95, 0.95, 0.95), {}, _CALM),
    "densenet": Entry(
        networks.DenseNet,
        "digits",
        _floors(0.95, 0.94, 0.95, 0.95),
        {"mcd": {"rate": 0.03}, "sghmc": {"likelihood_weight": 10.0}},
        {"all": {"epochs": 7}, "sghmc": {"epochs": 8, "learning_rate": 3e-2}},
    ),
    "squeeze_excite": Entry(networks.SqueezeExcite, "digits", _floors(0.95, 0.95, 0.95, 0.95)),
    "preactivation": Entry(networks.PreActivationResNet, "digits", _floors(0.95, 0.95, 0.95, 0.95)),
    "sequence": Entry(networks.SequenceNet, "motifs", _floors(0.95, 0.95, 0.95, 0.95)),
    "mlp_tanh": Entry(
        networks.MlpTanh, "surface", _floors(0.9, 0.9, 0.9, 0.9), {"mcd": {"rate": 0.03}}, _LONGER
    ),
    "mlp_silu": Entry(networks.MlpSilu, "friedman", _floors(0.9, 0.9, 0.9, 0.88), {}, _LONGER),
    "unet": Entry(networks.UNet, "blobs", _floors(0.9, 0.9, 0.9, 0.88)),
    "unet_map": Entry(lambda: networks.UNet(None), "denoise", _floors(0.9, 0.9, 0.9, 0.9)),
    "shared_layer": Entry(spellings.SharedLayer, "digits", _floors(0.95, 0.95, 0.95, 0.94)),
    "pools": Entry(spellings.Pools, "digits", _floors(0.95, 0.95, 0.95, 0.94)),
    "mobilenet_v3": Entry(spellings.MobileNetV3, "digits", _floors(0.94, 0.94, 0.94, 0.9), {}, _STEEPEST),
    "shufflenet": Entry(
        spellings.ShuffleNet,
        "digits",
        _floors(0.95, 0.95, 0.95, 0.93),
        {"sghmc": {"likelihood_weight": 100.0}},
        _CALM,
    ),
    "wavenet": Entry(spellings.WaveNet, "motifs", _floors(0.95, 0.95, 0.95, 0.95), {}, _STEEPER),
}

# the method by which the short test run learns each network; the full run takes all.
SHORT = {
    "vgg": "mcd",
    "mobilenet_v2": "mcd",
    "densenet": "mcd",
    "squeeze_excite": "sghmc",
    "preactivation": "sghmc",
    "sequence": "bbb",
    "mlp_tanh": "bbb",
    "mlp_silu": "sghmc",
    "unet": "bbb",
    "unet_map": "mcd",
    "shared_layer": "bbb",
    "pools": "sghmc",
    "mobilenet_v3": "mcd",
    "shufflenet": "pointwise",
    "wavenet": "sghmc",
}
# every network by every method, as parameters ``(name, method)`` of a test.
CASES = [
    pytest.param(name, method, marks=() if SHORT[name] == method else pytest.mark.full)
    for name in ZOO
    for method in METHODS
]

_shared_folder: list[Path] = []


def keep_in(folder: Path) -> None:
    """From now on posteriors are kept in ``folder`` too, for the other processes of a test run."""
    _shared_folder[:] = [folder]


@functools.cache
def trained(name: str, method: str) -> qb.NetworkPosterior:
    """The float posterior of a network of the zoo by a method; treat it as read-only."""
    if not _shared_folder:
        return _fit(name, method)
    folder = _shared_folder[0] / f"{name}-{method}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # the first process in learns, the others wait at the lock and read; a process that dies lets it go.
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return qb.load_posterior(folder, network=ZOO[name].build())
        posterior = _fit(name, method)
        qb.save_posterior(posterior, folder)
    return posterior


def _fit(name: str, method: str) -> qb.NetworkPosterior:
    entry = ZOO[name]
    task = TASKS[entry.task]()
    return qb.fit(
        entry.build, task, entry.method(method), entry.budget(method), seed=0, device="cpu", progress=False
    )


def held_out(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Raw test inputs and targets of a network's task."""
    return next(iter(TASKS[ZOO[name].task]().batches("test", 10_000)))


def score(posterior: Predicts, name: str, draws: int = 8) -> float:
    """Accuracy of the averaged draws on the test rows, or ``R² = 1 − Σ(y − ŷ)² / Σ(y − ȳ)²``.

    R² is the mean over targets, each against its own mean: a large target does not hide a small one.
    """
    x, y = held_out(name)
    mean = posterior.predict(x, draws=draws, seed=0).mean
    if TASKS[ZOO[name].task]().kind == "classification":
        return float((mean.argmax(1) == y).double().mean())
    missed = ((y - mean) ** 2).double().sum(0)
    return float((1 - missed / ((y - y.mean(0)) ** 2).double().sum(0)).mean())
