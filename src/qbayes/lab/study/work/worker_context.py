"""Where the jobs of a study are done: store, data and device of one process, and what a stage takes."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qbayes.device import choose_device
from qbayes.errors import BadFile, BadInput, Interrupted, QbayesError
from qbayes.integer.program import Program
from qbayes.lab.study.plan.tasks import Tasks, make_network
from qbayes.lab.study.spec.sections import label_of, named
from qbayes.lab.study.store.store import (
    CHECKPOINT,
    STACKS,
    StageDamaged,
    Store,
    StoreFull,
    read_object,
    reason_of,
    why_full,
)
from qbayes.networks import Architecture, is_own
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.storage.outline import Outlined
from qbayes.posterior.storage.save import load_posterior, save_posterior, write_atomically
from qbayes.posterior.storage.stored import NetworkSource
from qbayes.posterior.storage.weights_header import Damaged
from qbayes.provenance import provenance, versions
from qbayes.quant.finetune.job import FINE_TUNED, QUANTISED
from qbayes.quant.lower import lower
from qbayes.quant.prepare import prepare_again
from qbayes.training.checkpoint import BadCheckpoint

_FILE = "spent.json"
SECONDS, CORE_SECONDS = "seconds", "core_seconds"
PROGRAM = "program.qbayes"
# what a network or a method may raise on its own: that run fails, the others go on.
FAILURES = (
    QbayesError, RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, MemoryError,
)  # fmt: skip
# how torch begins the news of a fault on a GPU, after which no call of this process succeeds there.
_FAULT = "CUDA error"
Job = Mapping[str, Any]
Stage = tuple[str, Mapping[str, Any]]
Say = Callable[[str], None]


class DeviceLost(RuntimeError):
    """The device answers this process no more: what it did is to be done again, by another one."""


@dataclass
class Workplace:
    """Where jobs are done: the store, the data, the device."""

    store: Store
    data_dir: Path | None = None
    device: str = "cpu"
    say: Say = field(default=lambda text: None)
    note: Say = field(default=lambda text: None)

    def __post_init__(self) -> None:
        self.place = choose_device(self.device)
        self.tasks = Tasks(self.data_dir, self.place)

    def attempt(self, stage: str, key: str, do: Callable[[Path], Mapping[str, Any]]) -> bool:
        """One stage, unless it is done: ``do`` fills its folder and says what to record."""
        if self.store.is_done(stage, key):
            return True
        folder = self.store.begin(stage, key)
        spent = Spent(folder / CHECKPOINT)
        record: dict[str, Any] = {}
        try:
            reason = self._why_failed(lambda: record.update(do(folder)), spent.folder, f"{stage} {key}")
        except Interrupted:
            spent.keep()
            raise
        if reason is not None:
            self.store.fail(stage, key, reason)
            return False
        # a stack's seconds are shared out; its process's are not known by network.
        stacked = record.get("stacked_seconds")
        seconds = spent.so_far() if stacked is None else {SECONDS: round(stacked, 3)}
        self.store.finish(stage, key, {**record, **seconds, **self.record()})
        return True

    def attempt_stack(
        self,
        stage: str,
        name: str,
        stages: Sequence[Stage],
        train: Callable[[Path], Sequence[NetworkPosterior | QbayesError]],
        then: Callable[[Sequence[NetworkPosterior | QbayesError]], None] = lambda results: None,
    ) -> None:
        """All stages at once; those that are done already are trained with the others and not written."""
        method, task, bits = method_name(stages[0][1]), task_name(stages[0][1]), bits_name(stages[0][1])
        what = f"{method} on {task}" + ("" if stage == "float" else f", {bits}")
        self.say(f"{len(stages)} × {what} and others, stacked")
        checkpoint = self.store.folder / STACKS / name
        results: list[NetworkPosterior | QbayesError] = []
        reason = self._why_failed(lambda: results.extend(train(checkpoint)), checkpoint, name)
        if reason is not None:
            for key in (key for key, _ in stages if not self.store.is_done(stage, key)):
                self.store.fail(stage, key, reason)
            return
        for (key, run), result in zip(stages, results, strict=True):
            self.attempt(stage, key, lambda folder, run=run, result=result: _keep(folder, run, stage, result))
        then(results)
        shutil.rmtree(checkpoint, ignore_errors=True)

    def lower(self, key: str, run: Mapping[str, Any], quantised: Callable[[], NetworkPosterior]) -> bool:
        """The program of a quantised posterior, unless it is there."""

        def write(folder: Path) -> Mapping[str, Any]:
            lower(quantised()).save(folder / PROGRAM)
            return {"bytes": (folder / PROGRAM).stat().st_size, **names_of(run)}

        return self.attempt("program", key, write)

    def program(self, key: str) -> Program:
        try:
            return Program.open(self.store.stage("program", key) / PROGRAM)
        except BadFile as error:
            raise StageDamaged("program", key, reason_of(error)) from error

    def posterior(self, stage: str, key: str, run: Mapping[str, Any]) -> NetworkPosterior:
        """The float or the quantised posterior that is kept there, of the network that ``run`` names."""
        wrap = prepare_again if stage == "quantised" else None
        try:
            return load_posterior(self.store.stage(stage, key), self._network(run), wrap)
        except Damaged as error:
            raise StageDamaged(stage, key, reason_of(error)) from error

    def _network(self, run: Mapping[str, Any]) -> NetworkSource:
        """What builds the recorded network, if it is the run's: one's own by what the study says alone."""
        name, options = named(run["network"], "network", "lenet")

        def check(architecture: Mapping[str, Any]) -> Architecture:
            recorded = Architecture.from_json(architecture)
            wanted = {**recorded.options, **Architecture(name, (1,), (1,), options=options).options}
            if recorded.name != name or dict(recorded.options) != wanted:
                got = f"'{recorded.name}' with {dict(recorded.options)}, where the study has '{name}'"
                raise Damaged("a stage must hold the network of its study", got, "let it be made again")
            return recorded

        def own(architecture: Mapping[str, Any]) -> nn.Module:
            check(architecture)
            return make_network(run["network"], self.tasks.load(run["task"]))

        return own if is_own(name) else Outlined(lambda architecture: check(architecture).build())

    def _why_failed(self, do: Callable[[], None], checkpoint: Path, what: str) -> str | None:
        """As below; a checkpoint that cannot be gone on from is left, and training starts again."""
        try:
            return _failure_of(do)
        except BadCheckpoint as error:
            self.note(f"{what}: {reason_of(error)}; its training starts from the beginning")
            shutil.rmtree(checkpoint)
            return _failure_of(do)

    def record(self) -> dict[str, Any]:
        made = provenance(self.place)
        told = {name: made[name] for name in ("device", "commit", "processor", "instructions")}
        return {"threads": torch.get_num_threads(), "versions": versions(), **told}


def _failure_of(do: Callable[[], None]) -> str | None:
    """Why ``do`` failed, or None; trouble with the disk, a lost device and a stop are raised."""
    try:
        do()
    except (StoreFull, Interrupted, BadCheckpoint):
        raise
    except FAILURES as error:
        if why_full(error) is not None:
            raise
        # one that is lost before it is used is refused by name.
        refused = isinstance(error, BadInput) and f": {_FAULT}" in error.got
        if refused or (isinstance(error, RuntimeError) and str(error).startswith(_FAULT)):
            raise DeviceLost(str(error)) from error
        return reason_of(error)
    return None


def _keep(
    folder: Path, run: Mapping[str, Any], stage: str, result: NetworkPosterior | QbayesError
) -> Mapping[str, Any]:
    """Write one posterior of a stack, or raise its failure."""
    if isinstance(result, QbayesError):
        raise result
    save_posterior(result, folder, overwrite=True)
    provenance = result.provenance
    recorded = provenance if stage == "float" else provenance.get(FINE_TUNED, provenance.get(QUANTISED))
    assert recorded is not None
    return {**names_of(run), "stacked_seconds": recorded["seconds"]}


def names_of(run: Mapping[str, Any]) -> dict[str, str]:
    """What the record of every stage says of its run."""
    return {"method": method_name(run), "task": task_name(run)}


def method_name(run: Mapping[str, Any]) -> str:
    return named(run["method"], "method", "mcd")[0]


def task_name(run: Mapping[str, Any]) -> str:
    return named(run["task"], "task", "digits")[0]


def bits_name(run: Mapping[str, Any]) -> str:
    return label_of(run["precision"])


class Spent:
    """The seconds of a stage from now on, and those that earlier attempts left in ``folder``.

    ``core_seconds`` are those of this process on all of its threads: what others do on the machine is not in
    them. An attempt that is killed leaves nothing behind.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / _FILE
        found = read_object(self._path) or {}
        self._before = {name: _number(found.get(name)) for name in (SECONDS, CORE_SECONDS)}
        self._begun = time.monotonic(), time.process_time()

    def so_far(self) -> dict[str, float]:
        clocks = time.monotonic(), time.process_time()
        now = zip((SECONDS, CORE_SECONDS), clocks, self._begun, strict=True)
        return {name: round(self._before[name] + clock - begun, 3) for name, clock, begun in now}

    def keep(self) -> None:
        """Leave it for the next attempt."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(self.so_far()).encode())


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and value >= 0 else 0.0
