"""The work of a study: one job at a time, in whatever process an executor runs it.

A job is plain JSON. ``float`` jobs train posteriors, alone or as a stack; ``answers`` jobs take one float
posterior to the scores of one precision: quantise, lower, evaluate. What is done already is not done again.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from qbayes.errors import Interrupted, QbayesError, RunFailed
from qbayes.integer.lower import lower
from qbayes.integer.posterior import ProgramPosterior, load
from qbayes.integer.program import Program
from qbayes.metrics import evaluate
from qbayes.networks import Architecture
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.save import WEIGHTS, load_posterior, save_posterior, write_atomically
from qbayes.provenance import device_name, versions
from qbayes.quant.prepare import requantised
from qbayes.quant.qat import quantize
from qbayes.study.measured import measured_row
from qbayes.study.network import make_network
from qbayes.study.sections import FLOAT, QUANTISE, named, precision_of, qat_budget_of
from qbayes.study.stacks import stack_job
from qbayes.study.stages import Tasks, canonical, evaluate_values, method_and_budget
from qbayes.study.store import CHECKPOINT, STACKS, Store, StoreFull, reason_of, why_full, writing
from qbayes.tasks import Task
from qbayes.training.fit import choose_device, fit
from qbayes.training.stacked import fit_stacked

PROGRAM, ROW, ROWS = "program.qbayes", "row.json", "rows.safetensors"
# what a network or a method may raise on its own: that run fails, the others go on.
FAILURES = (
    QbayesError,
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    MemoryError,
)
Job = Mapping[str, Any]
Say = Callable[[str], None]


@dataclass
class Workplace:
    """Where jobs are done: the store, the data, the device."""

    store: Store
    data_dir: Path | None = None
    device: str = "cpu"
    say: Say = field(default=lambda text: None)

    def __post_init__(self) -> None:
        self.tasks = Tasks(self.data_dir)
        self.place = choose_device(self.device)

    def perform(self, job: Job) -> None:
        """Do a job; a stage that fails is recorded with its reason, and only the disk's trouble is raised."""
        torch.set_num_threads(job["threads"])
        with writing(self.store.folder):
            if job["kind"] == "float":
                _Floats(self, job).do()
            else:
                _Answers(self, job).do()

    def attempt(self, stage: str, key: str, do: Callable[[Path], Mapping[str, Any]]) -> bool:
        """One stage, unless it is done: ``do`` fills its folder and says what to record."""
        if self.store.is_done(stage, key):
            return True
        begun = time.monotonic()
        folder = self.store.begin(stage, key)
        try:
            record = do(folder)
        except (StoreFull, Interrupted):
            raise
        except FAILURES as error:
            if why_full(error) is not None:
                raise
            self.store.fail(stage, key, reason_of(error))
            return False
        seconds = record.get("stacked_seconds", time.monotonic() - begun)
        self.store.finish(stage, key, {**record, **self.record(seconds)})
        return True

    def record(self, seconds: float) -> dict[str, Any]:
        return {
            "seconds": round(seconds, 3),
            "device": device_name(self.place),
            "threads": torch.get_num_threads(),
            "versions": versions(),
        }


class _Floats:
    """Trains one posterior, or several as a stack."""

    def __init__(self, workplace: Workplace, job: Job) -> None:
        self.at, self.job = workplace, job

    def do(self) -> None:
        stages = [(key, run) for key, run in self.job["stages"]]
        if len(stages) > 1:
            self._train_stack(stages)
            return
        key, run = stages[0]
        self.at.say(f"{_method(run)} on {_task(run)}, seed {run['seed']}")
        self.at.attempt("float", key, lambda folder: self._train(folder, run))

    def _train_stack(self, stages: list[tuple[str, Mapping[str, Any]]]) -> None:
        """All of them at once; those that are done already are trained with the others and not written."""
        run = stages[0][1]
        self.at.say(f"{len(stages)} × {_method(run)} on {_task(run)} and others, stacked")
        checkpoint = self.at.store.folder / STACKS / str(self.job["name"])
        try:
            found = fit_stacked(
                [stack_job(one, self.at.tasks) for _, one in stages],
                device=self.at.place,
                checkpoint=checkpoint,
                resume=True,
                progress=False,
            )
        except FAILURES as error:
            for key, _ in stages:
                if not self.at.store.is_done("float", key):
                    self.at.store.fail("float", key, reason_of(error))
            return
        for (key, one), result in zip(stages, found, strict=True):
            self.at.attempt(
                "float", key, lambda folder, one=one, result=result: self._keep(folder, one, result)
            )
        shutil.rmtree(checkpoint, ignore_errors=True)

    def _keep(
        self, folder: Path, run: Mapping[str, Any], result: NetworkPosterior | RunFailed
    ) -> Mapping[str, Any]:
        if isinstance(result, RunFailed):
            raise result
        save_posterior(result, folder, overwrite=True)
        seconds = result.provenance["seconds"]
        return {"method": _method(run), "task": _task(run), "stacked_seconds": seconds}

    def _train(self, folder: Path, run: Mapping[str, Any]) -> Mapping[str, Any]:
        task = self.at.tasks.load(run["task"])
        method, budget = method_and_budget(run, self.at.tasks.facts(run["task"]))
        posterior = fit(
            lambda: make_network(run["network"], task),
            task,
            method,
            budget,
            seed=run["seed"],
            device=self.at.place,
            checkpoint=folder / CHECKPOINT,
            resume=True,
            progress=False,
        )
        save_posterior(posterior, folder, overwrite=True)
        return {"bytes": (folder / WEIGHTS).stat().st_size, "method": _method(run), "task": _task(run)}


class _Answers:
    """From one float posterior to the scores of its runs, which share a precision and its training."""

    def __init__(self, workplace: Workplace, job: Job) -> None:
        self.at, self.job = workplace, job
        self.runs: list[tuple[str, Mapping[str, Any]]] = [(key, run) for key, run in job["runs"]]
        self.run = self.runs[0][1]
        self._float: NetworkPosterior | None = None
        self._quantised: NetworkPosterior | None = None
        self._program: Program | None = None

    def do(self) -> None:
        self.at.say(f"{_method(self.run)} on {_task(self.run)}, {_bits(self.run)}, seed {self.run['seed']}")
        if self.run["precision"] == FLOAT:
            self._score(lambda run: self.float().to(self.at.place))
        elif self.at.attempt("quantised", self.job["quantised"], self._quantise) and self.at.attempt(
            "program", self.job["program"], self._lower
        ):
            self._score(self._deployed)

    def float(self) -> NetworkPosterior:
        if self._float is None:
            folder = self.at.store.stage("float", self.job["float"])
            self._float = load_posterior(folder, self._rebuilt)
        return self._float

    def quantised(self) -> NetworkPosterior:
        if self._quantised is None:
            folder = self.at.store.stage("quantised", self.job["quantised"])
            self._quantised = load_posterior(folder, self._rebuilt, requantised)
        return self._quantised

    def program(self) -> Program:
        if self._program is None:
            self._program = Program.open(self.at.store.stage("program", self.job["program"]) / PROGRAM)
        return self._program

    def _quantise(self, folder: Path) -> Mapping[str, Any]:
        settings = {**QUANTISE, **self.run["quantise"]}
        self._quantised = quantize(
            self.float(),
            self.task(),
            precision_of(self.run["precision"]),
            qat_budget_of(self.run["quantise"]),
            seed=self.run["seed"],
            keep=settings["keep"],
            freeze=settings["freeze"],
            device=self.at.place,
            checkpoint=folder / CHECKPOINT,
            resume=True,
            progress=False,
        )
        save_posterior(self._quantised, folder, overwrite=True)
        return {"method": _method(self.run), "task": _task(self.run)}

    def _lower(self, folder: Path) -> Mapping[str, Any]:
        self._program = lower(self.quantised())
        self._program.save(folder / PROGRAM)
        size = (folder / PROGRAM).stat().st_size
        return {"bytes": size, "method": _method(self.run), "task": _task(self.run)}

    def _deployed(self, run: Mapping[str, Any]) -> ProgramPosterior:
        return load(self.program(), evaluate_values(run)["backend"], device=self.at.place)

    def _score(self, posterior: Callable[[Mapping[str, Any]], Any]) -> None:
        for key, run in self.runs:
            self.at.attempt(
                "scores", key, lambda folder, run=run: self._evaluate(folder, run, posterior(run))
            )

    def _evaluate(self, folder: Path, run: Mapping[str, Any], posterior: Any) -> Mapping[str, Any]:
        values, task = evaluate_values(run), self.task()
        each: dict[str, Tensor] = {}
        found = evaluate(
            posterior,
            task,
            values["draws"],
            values["seed"],
            batch_size=values["batch_size"],
            split=values["split"],
            shifts=values["shifts"],
            confusion=values["confusion"],
            each_row=each,
        )
        program = None if run["precision"] == FLOAT else self.program()
        row = measured_row(run, found, task, self.float(), program, self.at.place)
        write_atomically(
            folder / ROWS, save_tensors({name: held.contiguous() for name, held in each.items()})
        )
        write_atomically(folder / ROW, canonical(row).encode())
        return {"method": _method(run), "task": _task(run)}

    def task(self) -> Task:
        return self.at.tasks.load(self.run["task"])

    def _rebuilt(self, architecture: Mapping[str, Any]) -> nn.Module:
        """The network that the study itself names: its own factories may be imported."""
        return Architecture.from_json(architecture).build(allow_import=True)


def _method(run: Mapping[str, Any]) -> str:
    return named(run["method"], "method", "mcd")[0]


def _task(run: Mapping[str, Any]) -> str:
    return named(run["task"], "task", "digits")[0]


def _bits(run: Mapping[str, Any]) -> str:
    return FLOAT if run["precision"] == FLOAT else precision_of(run["precision"]).label
