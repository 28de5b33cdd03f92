"""The training loop of a stack: as for one network, but each one's trouble is its own."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qbayes.errors import RunFailed
from qbayes.posterior.likelihood import Outputs
from qbayes.tasks import Task
from qbayes.tasks.source import Batch
from qbayes.training.budget import Budget
from qbayes.training.guard import check_losses, check_state
from qbayes.training.loop import Loop
from qbayes.training.progress import TrainingProgress
from qbayes.training.stacked.network import Stack
from qbayes.training.stacked.noise import NoiseGenerators, OrderGenerators
from qbayes.training.stacked.rows import StackedRows


class StackLoop(Loop):
    """Trains a ``Stack``; a network that fails is passed over from then on, and the others go on.

    It stays in the stack, so that the others keep their bits: no operation mixes networks.
    """

    def __init__(
        self,
        stack: Stack,
        tasks: Sequence[Task],
        budget: Budget,
        optimizer: torch.optim.Optimizer,
        collect: Callable[[int, int], bool],
        *,
        order: OrderGenerators,
        noise: NoiseGenerators,
        device: torch.device,
        fingerprint: str,
        checkpoint: Path | None,
        progress: TrainingProgress | None,
        before_epoch: Callable[[int], Hashable] | None = None,
        may_rise: bool = False,
    ) -> None:
        super().__init__(
            stack,
            tasks[0],
            budget,
            _as_given,
            optimizer,
            collect,
            seed=0,
            device=device,
            fingerprint=fingerprint,
            checkpoint=checkpoint,
            progress=progress,
            before_epoch=before_epoch,
            may_rise=may_rise,
            replay=True,
        )
        self.stack, self.order, self.orders, self.noise = stack, order, order, noise
        self.rows = StackedRows(tasks, device)
        self.failures: dict[int, RunFailed] = {}
        # one list an epoch, with one loss a network.
        self.history: list[list[float]] = []
        self._noise_now: list[Tensor] = []

    @property
    def alive(self) -> list[int]:
        return [network for network in range(len(self.orders.generators)) if network not in self.failures]

    def _goes_on(self) -> bool:
        return super()._goes_on() and bool(self.alive)

    def _batches(self) -> Iterator[Batch]:
        return self.rows.batches(self.budget.batch_size, self.orders)

    def _descend(self, x: Tensor, y: Tensor, rate: float) -> Tensor:
        # each network's own generator fills the noise in its turn; the arithmetic is one program.
        self._noise_now = self.stack.draw_noise(x)
        return super()._descend(x, y, rate)

    def _loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        return self.stack.losses(x, y, self._noise_now)

    def _judge(self, mean: Tensor) -> float:
        self.history.append(mean.tolist())
        self._note(lambda network: check_losses(self.losses(network), may_rise=self.may_rise))
        return float(mean[self.alive].mean()) if self.alive else float("nan")

    def _judge_member(self) -> None:
        self._note(lambda network: check_losses(self.losses(network), kept=True, may_rise=self.may_rise))
        state = self.stack.state_dict()
        self._note(lambda network: check_state(self.stack.split(state, network), self.state.epoch))

    def losses(self, network: int) -> list[float]:
        """Of all epochs so far."""
        return [epoch[network] for epoch in self.history]

    def _note(self, check: Callable[[int], None]) -> None:
        """Keep the failure of each network that does not pass."""
        for network in self.alive:
            try:
                check(network)
            except RunFailed as failure:
                self.failures[network] = failure

    def _noise_states(self) -> dict[str, Tensor]:
        return {"rng": self.noise.get_state()}

    def _restore_noise(self, kept: Mapping[str, Tensor]) -> None:
        self.noise.set_state(kept["rng"])

    def _more_values(self) -> dict[str, Any]:
        failures = {str(network): [f.must, f.got, f.do] for network, f in self.failures.items()}
        return {"history": self.history, "failures": failures}

    def _restore_more(self, values: Mapping[str, Any]) -> None:
        self.history = values["history"]
        self.failures = {int(network): RunFailed(*parts) for network, parts in values["failures"].items()}


def _as_given(module: nn.Module, outputs: Outputs, target: Tensor) -> Tensor:
    """A stack gives losses, not outputs."""
    assert isinstance(outputs, Tensor)
    return outputs
