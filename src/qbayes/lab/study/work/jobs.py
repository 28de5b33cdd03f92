"""The work of a study: one job at a time, in whatever process an executor runs it.

A job is plain JSON. ``float`` jobs train posteriors, alone or as a stack; ``quantised`` jobs fine-tune a
stack of them; ``answers`` jobs take one float posterior to the scores of one precision: quantise (where no
stack did), lower, evaluate. What is done already is not done again.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from qbayes.errors import QbayesError, RunFailed
from qbayes.integer.posterior import ProgramPosterior, load
from qbayes.integer.program import Program
from qbayes.lab.study.plan.result_row import make_row
from qbayes.lab.study.plan.stacks import stack_job
from qbayes.lab.study.plan.stages import answers_in_float, evaluate_values, method_and_budget
from qbayes.lab.study.plan.tasks import make_network
from qbayes.lab.study.spec.sections import FLOAT, fine_tuning_of, is_control, mixed_of, precision_of
from qbayes.lab.study.store.keys import canonical
from qbayes.lab.study.store.store import CHECKPOINT, ROW, ROWS, StageDamaged, writing
from qbayes.lab.study.work.worker_context import (
    Job,
    Stage,
    Workplace,
    bits_name,
    method_name,
    names_of,
    task_name,
)
from qbayes.metrics import evaluate
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.storage.save import WEIGHTS, save_posterior, write_atomically
from qbayes.quant.finetune.job import QuantizeJob, quickest_place
from qbayes.quant.finetune.quantize import quantize_members
from qbayes.quant.finetune.stacked import quantize_stacked
from qbayes.quant.mixed.assign import BitBudget, assign_bits
from qbayes.tasks import Task
from qbayes.training.checkpoint import Checkpoint
from qbayes.training.fit import fit
from qbayes.training.stacked.fit import fit_stacked

# weights of all draws that are kept on a GPU, a byte or two each.
_KEPT_WEIGHTS = 1 << 30
# settings of an evaluation that are called as the arguments of ``evaluate``.
_SCORED_BY = ("batch_size", "split", "shifts", "confusion", "shift_rows", "ood_rows")


class _Work:
    """A job, where it is done."""

    def __init__(self, workplace: Workplace, job: Job) -> None:
        self.at, self.job = workplace, job
        # how to train a stack: as a worker trains anything that may be stopped.
        self.stacked: dict[str, Any] = {"device": workplace.place, "resume": True, "progress": False}

    def checkpoint(self, folder: Path) -> Checkpoint:
        return Checkpoint(folder / CHECKPOINT, resume=True)


class Floats(_Work):
    """Trains one posterior, or several as a stack."""

    def do(self) -> None:
        stages = [(key, run) for key, run in self.job["stages"]]
        if len(stages) > 1:
            self.at.attempt_stack("float", self.job["name"], stages, lambda path: self._stack(path, stages))
            return
        key, run = stages[0]
        self.at.say(f"{method_name(run)} on {task_name(run)}, seed {run['seed']}")
        self.at.attempt("float", key, lambda folder: self._train(folder, run))

    def _stack(self, checkpoint: Path, stages: Sequence[Stage]) -> Sequence[NetworkPosterior | QbayesError]:
        jobs = [stack_job(run, self.at.tasks) for _, run in stages]
        return fit_stacked(jobs, checkpoint=checkpoint, **self.stacked)

    def _train(self, folder: Path, run: Mapping[str, Any]) -> Mapping[str, Any]:
        task = self.at.tasks.load(run["task"])
        method, budget = method_and_budget(run, self.at.tasks.facts(run["task"]))
        posterior = fit(
            lambda: make_network(run["network"], task),
            task,
            method,
            budget,
            seed=run["seed"],
            start=self._start(run),
            device=self.at.place,
            checkpoint=self.checkpoint(folder),
            progress=False,
        )
        save_posterior(posterior, folder, overwrite=True)
        return {"bytes": (folder / WEIGHTS).stat().st_size, **names_of(run)}

    def _start(self, run: Mapping[str, Any]) -> NetworkPosterior | None:
        """The posterior whose weights training starts from."""
        key: str | None = self.job["start"]
        if key is None:
            return None
        if not self.at.store.is_done("float", key):
            raise RunFailed(
                "the posterior that training starts from must be there",
                self.at.store.why_failed("float", key) or f"no float stage {key}",
                "mend what failed there and run the study again with --retry",
            )
        return self.at.posterior("float", key, run)


class Tuned(_Work):
    """Fine-tunes a stack of float posteriors; one whose float training failed is left out."""

    def do(self) -> None:
        given = zip(self.job["stages"], self.job["floats"], self.job["programs"], strict=True)
        found = [one for one in given if self.at.store.is_done("float", one[1])]
        stages = [(key, run) for (key, run), _, _ in found]
        starts = [start for _, start, _ in found]

        def lower(results: Sequence[NetworkPosterior | QbayesError]) -> None:
            """The programs too: here the posteriors are at hand, elsewhere they would be read again."""
            for ((_, run), _, program), result in zip(found, results, strict=True):
                if program is not None and isinstance(result, NetworkPosterior):
                    self.at.lower(program, run, lambda result=result: result)

        self.at.attempt_stack(
            "quantised", self.job["name"], stages, lambda folder: self._stack(folder, stages, starts), lower
        )

    def _stack(
        self, checkpoint: Path, stages: Sequence[Stage], starts: Sequence[str]
    ) -> Sequence[NetworkPosterior | QbayesError]:
        runs = {start: run for start, (_, run) in zip(starts, stages, strict=True)}
        posteriors = {start: self.at.posterior("float", start, run) for start, run in runs.items()}
        jobs = [
            quantize_job(run, posteriors[start], self.at.tasks.load(run["task"]), self.at.place)
            for (_, run), start in zip(stages, starts, strict=True)
        ]
        return quantize_stacked(jobs, checkpoint=checkpoint, **self.stacked)


def quantize_job(
    run: Mapping[str, Any], posterior: NetworkPosterior, task: Task, device: torch.device
) -> QuantizeJob:
    """What a run asks of quantisation; bits by layer are assigned here, on ``device``."""
    precision, rounds = precision_of(run["precision"]), not is_control(run["precision"])
    # the rate of the recipe is that of the precision before layers have bits of their own.
    tuning = fine_tuning_of(run["quantize"]).resolve(precision, task)
    mixed = mixed_of(run["quantize"])
    if mixed is not None and rounds:
        budget = BitBudget(**{mixed: precision})
        precision = assign_bits(posterior, task, budget, seed=run["seed"], device=device).precision
    return QuantizeJob(posterior, task, precision, tuning, run["seed"], rounds)


class Answers(_Work):
    """From one float posterior to the scores of its runs, which share a precision and its training."""

    def __init__(self, workplace: Workplace, job: Job) -> None:
        super().__init__(workplace, job)
        self.runs: list[tuple[str, Mapping[str, Any]]] = [(key, run) for key, run in job["runs"]]
        self.run = self.runs[0][1]

    def do(self) -> None:
        run = self.run
        self.at.say(f"{method_name(run)} on {task_name(run)}, {bits_name(run)}, seed {run['seed']}")
        if self.run["precision"] == FLOAT:
            self._score(self._as_trained)
        elif is_control(self.run["precision"]):
            if self.at.attempt("quantised", self.job["quantised"], self._quantise):
                self._score(self._as_trained)
        elif self.at.attempt("quantised", self.job["quantised"], self._quantise) and self.at.lower(
            self.job["program"], self.run, lambda: self.quantised
        ):
            self._score(self._deploy)

    @cached_property
    def float(self) -> NetworkPosterior:
        return self.at.posterior("float", self.job["float"], self.run)

    @cached_property
    def quantised(self) -> NetworkPosterior:
        return self.at.posterior("quantised", self.job["quantised"], self.run)

    @property
    def in_float(self) -> NetworkPosterior:
        """The float posterior that answers: the control is fine-tuned."""
        return self.quantised if is_control(self.run["precision"]) else self.float

    @cached_property
    def program(self) -> Program:
        return self.at.program(self.job["program"])

    @property
    def task(self) -> Task:
        return self.at.tasks.load(self.run["task"])

    def _quantise(self, folder: Path) -> Mapping[str, Any]:
        job = quantize_job(self.run, self.float, self.task, self.at.place)
        self.quantised = quantize_members(
            job, device=self.at.place, checkpoint=self.checkpoint(folder), progress=False
        )
        save_posterior(self.quantised, folder, overwrite=True)
        return names_of(self.run)

    def _as_trained(self, run: Mapping[str, Any]) -> NetworkPosterior:
        posterior = self.in_float
        weights = sum(parameter.numel() for parameter in posterior.network.parameters())
        return posterior.to(quickest_place(weights, self.at.place))

    def _deploy(self, run: Mapping[str, Any]) -> ProgramPosterior:
        constants = self.program.members[0].constants.values()
        weights = sum(value.numel() for of_op in constants for value in of_op.values())
        place = quickest_place(weights, self.at.place)
        values = evaluate_values(run)
        # drawing weights takes a GPU longer than using them: they are kept for all rows, as far as they fit.
        kept = min(values["draws"], _KEPT_WEIGHTS // max(1, weights)) if place.type == "cuda" else 0
        return load(self.program, values["backend"], frozen_draws=kept, device=place)

    def _score(self, posterior: Callable[[Mapping[str, Any]], Any]) -> None:
        for key, run in self.runs:
            self.at.attempt(
                "scores", key, lambda folder, run=run: self._evaluate(folder, run, posterior(run))
            )

    def _evaluate(self, folder: Path, run: Mapping[str, Any], posterior: Any) -> Mapping[str, Any]:
        values, task = evaluate_values(run), self.task
        each: dict[str, Tensor] = {}
        settings = {name: values[name] for name in _SCORED_BY if name in values}
        found = evaluate(posterior, task, values["draws"], values["seed"], each_row=each, **settings)
        deployed = self.in_float if answers_in_float(run) else self.program
        row = make_row(run, found, task, deployed, posterior)
        rows = {name: values.contiguous() for name, values in each.items()}
        write_atomically(folder / ROWS, save_tensors(rows))
        write_atomically(folder / ROW, canonical(row).encode())
        return names_of(run)


_KINDS: Mapping[str, Callable[[Workplace, Job], Floats | Tuned | Answers]] = {
    "float": Floats,
    "quantised": Tuned,
    "answers": Answers,
}


def perform(at: Workplace, job: Job) -> None:
    """Do a job; a stage that fails is recorded with its reason, and only the disk's trouble is raised.

    And a stage before it that is damaged, after it was set back: the job is for later.
    """
    torch.set_num_threads(job["threads"])
    with writing(at.store.folder):
        try:
            _KINDS[job["kind"]](at, job).do()
        except StageDamaged as damage:
            at.store.set_back(damage.stage, damage.key)
            raise
