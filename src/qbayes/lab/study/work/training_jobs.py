"""Jobs that train: float posteriors, alone or as a stack, and stacks of quantised ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qbayes.errors import QbayesError, RunFailed
from qbayes.lab.study.plan.network import make_network
from qbayes.lab.study.plan.stacks import stack_job
from qbayes.lab.study.plan.stages import method_and_budget
from qbayes.lab.study.spec.sections import fine_tuning_of, is_control, mixed_of, precision_of
from qbayes.lab.study.store.store import CHECKPOINT
from qbayes.lab.study.work.worker_context import Job, Stage, Workplace, method_name, task_name
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.storage.save import WEIGHTS, save_posterior
from qbayes.quant.finetune.job import QuantizeJob
from qbayes.quant.finetune.stacked import quantize_stacked
from qbayes.quant.mixed.assign import BitBudget, assign_bits
from qbayes.tasks import Task
from qbayes.training.checkpoint import Checkpoint
from qbayes.training.fit import fit
from qbayes.training.stacked.fit import fit_stacked


class Floats:
    """Trains one posterior, or several as a stack."""

    def __init__(self, workplace: Workplace, job: Job) -> None:
        self.at, self.job = workplace, job

    def do(self) -> None:
        stages = [(key, run) for key, run in self.job["stages"]]
        if len(stages) > 1:
            self.at.attempt_stack(
                "float", self.job["name"], stages, lambda folder: self._stack(folder, stages)
            )
            return
        key, run = stages[0]
        self.at.say(f"{method_name(run)} on {task_name(run)}, seed {run['seed']}")
        self.at.attempt("float", key, lambda folder: self._train(folder, run))

    def _stack(self, checkpoint: Path, stages: Sequence[Stage]) -> Sequence[NetworkPosterior | QbayesError]:
        return fit_stacked(
            [stack_job(run, self.at.tasks) for _, run in stages],
            device=self.at.place,
            checkpoint=checkpoint,
            resume=True,
            progress=False,
        )

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
            checkpoint=Checkpoint(folder / CHECKPOINT, resume=True),
            progress=False,
        )
        save_posterior(posterior, folder, overwrite=True)
        return {
            "bytes": (folder / WEIGHTS).stat().st_size,
            "method": method_name(run),
            "task": task_name(run),
        }

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


class Tuned:
    """Fine-tunes a stack of float posteriors; one whose float training failed is left out."""

    def __init__(self, workplace: Workplace, job: Job) -> None:
        self.at, self.job = workplace, job

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
        return quantize_stacked(
            jobs, device=self.at.place, checkpoint=checkpoint, resume=True, progress=False
        )


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
