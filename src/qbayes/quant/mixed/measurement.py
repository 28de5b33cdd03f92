"""One float posterior at every width: what each place is worth, what it costs, and the best that fits."""

import dataclasses
import glob
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.program import Program
from qbayes.noise import derive_seed
from qbayes.posterior.network import NetworkPosterior
from qbayes.quant.finetune.fine_tuning import FineTuning
from qbayes.quant.finetune.job import QuantizeJob, network_of, settle_state
from qbayes.quant.lower import lower
from qbayes.quant.mixed.allocate import allocate
from qbayes.quant.mixed.costs import NetworkCosts, network_costs
from qbayes.quant.mixed.places import ACTIVATION, Place, free_places, narrow_layers, sources
from qbayes.quant.mixed.sensitivity import Answers, Sensitivity, pool_losses
from qbayes.quant.precision import Precision
from qbayes.tasks import Task

# ranges alone, of batches that do not depend on the recipe; channels are equalized where the recipe does so.
_CALIBRATED = FineTuning(epochs=0, batch_size=128, distill=0.0)


class Measurement:
    """The network at every width, its costs and its sensitivities."""

    def __init__(
        self,
        posterior: NetworkPosterior,
        task: Task,
        base: Precision,
        widths: tuple[int, ...],
        activations: bool,
        device: torch.device,
    ) -> None:
        self.posterior, self.task, self.base, self.widths = posterior, task, base, widths
        self.activations, self.device = activations, device
        self._narrowed: list[str] = []
        first = network_of(self._job(self.at(widths[0])).prepare(0))
        if activations:
            # where values are rounded on their way to the layers at few bits, they are at all widths below 8.
            self._narrowed = narrow_layers(first, base)
        self.jobs = {width: self._job(self.at(width)) for width in widths}
        self.places = free_places(first, base, activations=activations)
        self._sources = sources(first)
        self.sensitivities: list[Sensitivity] = []
        self.costs: NetworkCosts

    def at(self, width: int) -> Precision:
        """The base with all that is free at ``width``."""
        bits = width if self.activations else self.base.activation
        by_name = {glob.escape(layer): {ACTIVATION: width} for layer in self._narrowed}
        return dataclasses.replace(self.base, weight=width, activation=bits).with_overrides(by_name)

    def _job(self, precision: Precision) -> QuantizeJob:
        return QuantizeJob(self.posterior, self.task, precision, _CALIBRATED)

    def measure(self, rows: int, draws: int, seed: int) -> None:
        """All places at all widths, over as many members as draws reach."""
        x = self._rows(rows, seed)
        members = min(draws, self.jobs[self.widths[0]].members)
        passes = draws if self.posterior.is_stochastic else members
        seeds = [derive_seed(seed, "sensitivity", draw) for draw in range(passes)]
        answers = Answers(self.posterior.signature)
        programs: dict[int, Program] = {}
        for member in range(members):
            mine = seeds[member::members]
            for width, job in self.jobs.items():
                module = job.prepare(member)
                job.calibrate(module, member, self.device)
                if width == self.widths[0]:
                    answers.add_float(module, x, mine)
                answers.add(module, width, self.places, x, mine)
                if member == 0:
                    made = job.result(module, [settle_state(module)], [], self.device)
                    programs[width] = lower(made)
        self.sensitivities = answers.sensitivities()
        self.costs = network_costs(programs, self._sources, len(self.posterior.networks))

    def _rows(self, rows: int, seed: int) -> Tensor:
        if "validation" in self.task.splits:
            x, _ = next(iter(self.task.batches("validation", rows)))
            return self.posterior.signature.transform.apply(x.to(self.device))
        order = torch.Generator().manual_seed(derive_seed(seed, "sensitivity rows", 0))
        return next(iter(self.task.training_batches(rows, order, self.device, 0)))[0]

    def limit(self, kind: str, limit: float | Precision) -> float:
        """The limit as a number; that of a precision is its cost."""
        if not isinstance(limit, Precision):
            return float(limit)
        wanted = {place: getattr(limit, place.part) for place in self.places}
        for place, width in wanted.items():
            if width not in self.widths:
                raise BadInput(
                    "a budget must name bits that can be assigned",
                    f"{limit.label}; to assign are {', '.join(map(str, self.widths))} ({place.part})",
                    "name others, or add them to widths",
                )
        return self.costs.total(wanted)[kind]

    def best(self, limits: Mapping[str, float], doubt: float) -> dict[Place, int]:
        """The bits of every place with the least sensitivity in all that fit the limits."""
        measured: dict[Place, dict[int, float]] = {place: {} for place in self.places}
        for one in self.sensitivities:
            measured[one.place][one.bits] = one.answer + doubt * one.doubt
        losses = {place: pool_losses(by_width) for place, by_width in measured.items()}

        def costs(chosen: Sequence[int]) -> list[float]:
            found = self.costs.total(dict(zip(self.places, chosen, strict=True)))
            return [found[kind] for kind in limits]

        chosen = allocate([losses[place] for place in self.places], costs, list(limits.values()))
        least = costs(chosen)
        for (kind, limit), needed in zip(limits.items(), least, strict=True):
            if needed > limit:
                raise BadInput(
                    f"the budget must allow {self.widths[0]} bits everywhere",
                    f"{limit:,.0f} {kind.replace('_', '-')}, of which {needed:,.0f} are needed",
                    "raise the budget, or choose a smaller network",
                )
        return dict(zip(self.places, chosen, strict=True))
