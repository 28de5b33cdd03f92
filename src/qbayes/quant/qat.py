"""``quantize``: fold, insert fake-quantisers, calibrate, and train on by the same loop as ``fit``.

Quantisation-aware training minimises the negative log-likelihood alone: no KL, whatever the method was; the
deviations of Gaussian weights stay as they are (the paper's preset trains them). Every member of an ensemble
is fine-tuned by itself, with ranges of its own.
"""

import copy
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qbayes import noise
from qbayes.errors import BadInput, Interrupted, RunFailed, unknown_name
from qbayes.methods.descent import decay_groups
from qbayes.posterior.likelihood import ConstantNoise, Outputs
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.save import state_to
from qbayes.posterior.signature import Signature
from qbayes.posterior.transform import Standardize
from qbayes.provenance import device_name, versions
from qbayes.quant.layers.gaussian import GaussianWeights
from qbayes.quant.network import QuantNetwork
from qbayes.quant.precision import Precision
from qbayes.quant.prepare import quantised_module
from qbayes.tasks import Task
from qbayes.training.budget import Budget
from qbayes.training.fit import check_overwriting, choose_device, state_hash
from qbayes.training.loop import Loop, derived_seed
from qbayes.training.progress import TrainingProgress

Keep = Literal["last", "best"]
KEEPS = ("last", "best")
MOMENTUM = 0.9
# rows that set the ranges before training, in batches of the budget's size.
CALIBRATION_ROWS = 2048
_VALIDATION_DRAWS = 4
_SAME_SCALE = 1e-3
# Our recipe, found by measurement (docs/results/integers.md), and the paper's.
QAT_BUDGETS: Mapping[str, Mapping[str, Any]] = {
    "default": {
        "epochs": 10, "least_steps": 200, "batch_size": 128, "learning_rate": 1e-2, "clip": 1.0,
    },
    "paper": {"epochs": 10, "batch_size": 256, "learning_rate": 1e-5},
}  # fmt: skip


def qat_budget(preset: str = "default", **overrides: Any) -> Budget:
    """The budget of quantisation-aware training, as ``preset`` (default or paper) has it."""
    if preset not in QAT_BUDGETS:
        raise unknown_name("preset of quantisation", preset, QAT_BUDGETS)
    return Budget.from_options(QAT_BUDGETS[preset], **overrides)


def quantize(
    posterior: NetworkPosterior,
    task: Task,
    precision: Precision | None = None,
    budget: Budget | None = None,
    *,
    seed: int = 0,
    keep: Keep = "last",
    freeze: float = 0.5,
    device: str | torch.device = "auto",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> NetworkPosterior:
    """The posterior with weights and activations on n-bit grids, fine-tuned on ``task``.

    ``budget.epochs = 0`` only calibrates. ``keep="best"`` keeps the epoch with the least validation NLL
    instead of the last. Ranges that follow the data (minmax, ema, …) do so for the first ``freeze`` of the
    epochs and are frozen after; learned ones (lsq) are set by calibration and then trained.
    """
    precision = Precision() if precision is None else precision
    _check(posterior, task, precision, keep, freeze)
    budget = (qat_budget() if budget is None else budget).for_rows(task.train_rows)
    place, begun = choose_device(device), time.monotonic()
    run = _Quantisation(
        task, precision, budget, noise.check_seed(seed), keep, freeze, place, posterior, progress
    )
    folder = None if checkpoint is None else Path(checkpoint)
    paths = [
        None if folder is None else folder / f"member-{index:04d}.checkpoint"
        for index in range(len(posterior.networks))
    ]
    if not resume:
        check_overwriting(paths)
    members = run.alike([run.member(index, path, resume) for index, path in enumerate(paths)])
    provenance = {
        **posterior.provenance,
        "quantised": {
            **run.spec,
            "losses": run.losses,
            "seconds": round(time.monotonic() - begun, 3),
            "versions": versions(),
            "device": device_name(place),
        },
    }
    return NetworkPosterior(
        run.module.cpu(),
        members,
        posterior.signature,
        architecture=posterior.architecture,
        provenance=provenance,
        sites=posterior.sites,
        quantised=precision.to_json(),
    ).to(place)


def _check(posterior: NetworkPosterior, task: Task, precision: Precision, keep: str, freeze: float) -> None:
    if not isinstance(posterior, NetworkPosterior) or posterior.quantised is not None:
        raise BadInput(
            "a float posterior is needed to quantise",
            f"one at {Precision.from_json(posterior.quantised).label}"
            if isinstance(posterior, NetworkPosterior)
            else type(posterior).__name__,
            "give what qb.fit made, or load that posterior",
        )
    if not isinstance(task, Task) or not isinstance(precision, Precision):
        raise BadInput(
            "quantize takes a posterior, a Task and a Precision",
            f"{type(task).__name__} and {type(precision).__name__}",
            "call qb.quantize(posterior, task, qb.Precision(weight=8, activation=8))",
        )
    if keep not in KEEPS:
        raise unknown_name("choice of the epoch to keep", str(keep), KEEPS)
    if keep == "best" and "validation" not in task.splits:
        raise BadInput(
            "choosing the best epoch needs validation rows",
            f"'{task.name}' has none",
            "load the task with validation=0.1, or keep the last epoch",
        )
    if isinstance(freeze, bool) or not isinstance(freeze, int | float) or not 0 <= freeze <= 1:
        raise BadInput("freeze must be a share of the epochs from 0 to 1", f"{freeze!r}", "leave it at 0.5")
    _check_signature(posterior.signature, task)


def _check_signature(signature: Signature, task: Task) -> None:
    if task.signature.input_shape != signature.input_shape:
        raise BadInput(
            "the task must have the posterior's inputs",
            f"{task.signature.input_shape} instead of {signature.input_shape}",
            f"quantise on '{signature.task}'",
        )
    if task.signature.likelihood != signature.likelihood:
        raise BadInput(
            "the task must have the posterior's kind and number of outputs",
            f"'{task.name}' asks for {task.signature.likelihood.to_json()}",
            f"quantise on '{signature.task}'",
        )
    pairs = ((signature.transform, task.signature.transform), (signature.target, task.signature.target))
    if not all(_alike(one, other) for one, other in pairs):
        raise BadInput(
            "the task must scale inputs and targets as in the posterior's training",
            f"other means or deviations in '{task.name}': other training rows",
            "load the task with the same rows and validation share for fit and quantize",
        )


def _alike(one: Standardize | None, other: Standardize | None) -> bool:
    """Whether two scales agree to a thousandth of a deviation."""
    if one is None or other is None:
        return one is other
    shifted = ((one.mean - other.mean).abs() <= _SAME_SCALE * one.std).all()
    return bool(shifted & ((one.std - other.std).abs() <= _SAME_SCALE * one.std).all())


class _Quantisation:
    """Quantises the members one after the other, in one module (compiled once where it is compiled)."""

    def __init__(
        self,
        task: Task,
        precision: Precision,
        budget: Budget,
        seed: int,
        keep: Keep,
        freeze: float,
        device: torch.device,
        posterior: NetworkPosterior,
        progress: bool | None,
    ) -> None:
        self.task, self.precision, self.budget, self.seed = task, precision, budget, seed
        self.keep, self.freeze, self.device, self.progress = keep, freeze, device, progress
        self.posterior = posterior
        self.losses: list[list[float]] = []
        # every refusal comes here, before any training.
        self.module = self._prepared(0).to(device)
        self.spec: dict[str, Any] = {
            "task": task.provenance,
            "precision": precision.to_json(),
            "budget": budget.to_json(),
            "seed": seed,
            "keep": keep,
            "freeze": freeze,
        }

    @property
    def network(self) -> QuantNetwork:
        inner = self.module.network if isinstance(self.module, ConstantNoise) else self.module
        assert isinstance(inner, QuantNetwork)
        return inner

    def _prepared(self, index: int) -> nn.Module:
        shape = self.posterior.signature.input_shape
        return quantised_module(self.posterior.networks[index], shape, self.precision).cpu()

    def member(self, index: int, checkpoint: Path | None, resume: bool) -> dict[str, Tensor]:
        """The settled state of one member."""
        if index > 0:
            self.module.train()
            self.module.load_state_dict(self._prepared(index).state_dict())
        begins = state_hash(self.module)
        self._calibrate(index)
        if self.budget.epochs > 0:
            self.module.load_state_dict(self._trained(index, begins, checkpoint, resume))
            # from training to evaluation: this is where the network settles.
            self.module.train()
        self.module.eval()
        self.network.check_ready()
        return state_to(self.module.state_dict(), "cpu")

    def alike(self, members: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The members with the same number of grids for their noise, since they become one program."""
        grids = [{name: int(v) for name, v in m.items() if name.endswith(".grids")} for m in members]
        differing = {name for name in grids[0] if len({one[name] for one in grids}) > 1}
        if not differing:
            return members
        for name, layer in self.module.named_modules():
            if isinstance(layer, GaussianWeights):
                layer.always_two = f"{name}.grids" in differing
        settled: list[dict[str, Tensor]] = []
        for member in members:
            self.module.train()
            self.module.load_state_dict(member)
            self.module.eval()
            settled.append(state_to(self.module.state_dict(), "cpu"))
        return settled

    @torch.no_grad()
    def _calibrate(self, index: int) -> None:
        cuda = [self.device] if self.device.type == "cuda" else []
        order = torch.Generator().manual_seed(derived_seed(self.seed, "calibration", index))
        with torch.random.fork_rng(devices=cuda), self.network.calibrating():
            torch.manual_seed(derived_seed(self.seed, "calibration noise", index))
            seen = 0
            for x, _ in self.task.training_batches(self.budget.batch_size, order, self.device, 0):
                self.module(x)
                seen += len(x)
                if seen >= CALIBRATION_ROWS:
                    break

    def _trained(self, index: int, begins: str, checkpoint: Path | None, resume: bool) -> dict[str, Tensor]:
        budget, likelihood = self.budget, self.task.signature.likelihood
        parts = json.dumps([self.spec, index, begins], sort_keys=True)
        members = len(self.posterior.networks)
        title = f"{self.precision.label} on {self.task.name}" + (
            f", member {index + 1} of {members}" if members > 1 else ""
        )

        def loss(network: nn.Module, outputs: Outputs, target: Tensor) -> Tensor:
            return likelihood.nll(outputs, target).mean(-1)

        chooser = _Chooser(self.module, self.task) if self.keep == "best" else None
        with TrainingProgress(title, budget.epochs, self.progress) as bar:
            loop = Loop(
                self.module,
                self.task,
                budget,
                loss,
                self._optimizer(),
                chooser.collect if chooser is not None else lambda epoch, epochs: epoch == epochs,
                seed=derived_seed(self.seed, "quantise", index),
                device=self.device,
                fingerprint=hashlib.sha256(parts.encode()).hexdigest(),
                checkpoint=checkpoint,
                progress=bar,
                check=likelihood.check,
                before_epoch=lambda epoch: self.network.observe(epoch < self.freeze * budget.epochs),
            )
            if chooser is not None:
                chooser.loop = loop
            try:
                run = loop.run(resume=resume)
            except Interrupted:
                raise
            except RunFailed:
                if checkpoint is not None:
                    checkpoint.unlink(missing_ok=True)
                raise
        self.losses.append(run.losses)
        return run.members[-1]

    def _optimizer(self) -> torch.optim.Optimizer:
        scales = self.network.learned_scales()
        known = {id(scale) for scale in scales}
        rest = [p for p in self.module.parameters() if p.requires_grad and id(p) not in known]
        groups = decay_groups(rest, 0.0)
        if scales:
            groups.append({"params": scales, "weight_decay": 0.0})
        rate = self.budget.learning_rate
        return torch.optim.SGD(groups, rate, MOMENTUM, nesterov=True, fused=True)


class _Chooser:
    """Keeps the state with the least validation NLL so far, and only that."""

    def __init__(self, module: nn.Module, task: Task) -> None:
        self.module, self.task = module, task
        # evaluation settles a network: the one in training must not be touched by it.
        self.twin = copy.deepcopy(module)
        self.loop: Loop | None = None
        self.best: float | None = None

    def collect(self, epoch: int, epochs: int) -> bool:
        assert self.loop is not None
        kept = self.loop.state.members
        if self.best is None and kept:
            # resumed: what was kept before has to be beaten.
            self.best = self._nll(kept[-1])
        now = self._nll(self.module.state_dict())
        if self.best is not None and not now < self.best:
            return False
        self.best = now
        kept.clear()
        return True

    @torch.no_grad()
    def _nll(self, state: Mapping[str, Tensor]) -> float:
        """Mean NLL of the validation rows, in evaluation on codes, averaged over a few draws."""
        self.twin.train()
        self.twin.load_state_dict(dict(state))
        self.twin.eval()
        posterior = NetworkPosterior(self.twin, [self.twin.state_dict()], self.task.signature)
        total, rows = 0.0, 0
        for x, y in self.task.batches("validation", 2048):
            prediction = posterior.predict(x, _VALIDATION_DRAWS, 0, first_row=rows)
            total += float(_row_nll(prediction, y).sum())
            rows += len(x)
        return total / rows


def _row_nll(prediction: Any, y: Tensor) -> Tensor:
    if hasattr(prediction, "log_mean"):
        return -prediction.log_mean.gather(-1, y.long().cpu()[:, None])[:, 0]
    return -prediction.log_prob(y.cpu())
