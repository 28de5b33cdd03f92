"""Jobs that answer: from one float posterior to the scores of one precision."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import Tensor

from qbayes.integer.posterior import ProgramPosterior, load
from qbayes.integer.program import Program
from qbayes.lab.study.plan.result_row import measured_row
from qbayes.lab.study.plan.stages import answers_in_float, evaluate_values
from qbayes.lab.study.spec.sections import FLOAT, is_control
from qbayes.lab.study.store.keys import canonical
from qbayes.lab.study.store.store import CHECKPOINT, ROW, ROWS
from qbayes.lab.study.work.training_jobs import quantize_job
from qbayes.lab.study.work.worker_context import Job, Workplace, bits_name, method_name, task_name
from qbayes.metrics import evaluate
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.storage.save import save_posterior, write_atomically
from qbayes.quant.finetune.job import quickest_place
from qbayes.quant.finetune.quantize import quantize_members
from qbayes.tasks import Task
from qbayes.training.checkpoint import Checkpoint

# weights of all draws that are kept on a GPU, a byte or two each.
_KEPT_WEIGHTS = 1 << 30


class Answers:
    """From one float posterior to the scores of its runs, which share a precision and its training."""

    def __init__(self, workplace: Workplace, job: Job) -> None:
        self.at, self.job = workplace, job
        self.runs: list[tuple[str, Mapping[str, Any]]] = [(key, run) for key, run in job["runs"]]
        self.run = self.runs[0][1]
        self._float: NetworkPosterior | None = None
        self._quantised: NetworkPosterior | None = None
        self._program: Program | None = None

    def do(self) -> None:
        self.at.say(
            f"{method_name(self.run)} on {task_name(self.run)}, {bits_name(self.run)}, "
            f"seed {self.run['seed']}"
        )
        if self.run["precision"] == FLOAT:
            self._score(self._as_trained)
        elif is_control(self.run["precision"]):
            if self.at.attempt("quantised", self.job["quantised"], self._quantise):
                self._score(self._as_trained)
        elif self.at.attempt("quantised", self.job["quantised"], self._quantise) and self.at.lower(
            self.job["program"], self.run, self.quantised
        ):
            self._score(self._deployed)

    def float(self) -> NetworkPosterior:
        if self._float is None:
            self._float = self.at.posterior("float", self.job["float"], self.run)
        return self._float

    def quantised(self) -> NetworkPosterior:
        if self._quantised is None:
            self._quantised = self.at.posterior("quantised", self.job["quantised"], self.run)
        return self._quantised

    def in_float(self) -> NetworkPosterior:
        """The float posterior that answers: the control is fine-tuned."""
        return self.quantised() if is_control(self.run["precision"]) else self.float()

    def program(self) -> Program:
        if self._program is None:
            self._program = self.at.program(self.job["program"])
        return self._program

    def _quantise(self, folder: Path) -> Mapping[str, Any]:
        job = quantize_job(self.run, self.float(), self.task(), self.at.place)
        self._quantised = quantize_members(
            job,
            device=self.at.place,
            checkpoint=Checkpoint(folder / CHECKPOINT, resume=True),
            progress=False,
        )
        save_posterior(self._quantised, folder, overwrite=True)
        return {"method": method_name(self.run), "task": task_name(self.run)}

    def _as_trained(self, run: Mapping[str, Any]) -> NetworkPosterior:
        posterior = self.in_float()
        weights = sum(parameter.numel() for parameter in posterior.network.parameters())
        return posterior.to(quickest_place(weights, self.at.place))

    def _deployed(self, run: Mapping[str, Any]) -> ProgramPosterior:
        constants = self.program().members[0].constants.values()
        weights = sum(value.numel() for of_op in constants for value in of_op.values())
        place = quickest_place(weights, self.at.place)
        values = evaluate_values(run)
        # drawing weights takes a GPU longer than using them: they are kept for all rows, as far as they fit.
        kept = min(values["draws"], _KEPT_WEIGHTS // max(1, weights)) if place.type == "cuda" else 0
        return load(self.program(), values["backend"], frozen_draws=kept, device=place)

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
            shift_rows=values.get("shift_rows"),
            ood_rows=values.get("ood_rows"),
            each_row=each,
        )
        deployed = self.in_float() if answers_in_float(run) else self.program()
        row = measured_row(run, found, task, deployed, posterior)
        write_atomically(
            folder / ROWS, save_tensors({name: held.contiguous() for name, held in each.items()})
        )
        write_atomically(folder / ROW, canonical(row).encode())
        return {"method": method_name(run), "task": task_name(run)}

    def task(self) -> Task:
        return self.at.tasks.load(self.run["task"])
