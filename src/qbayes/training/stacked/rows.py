"""The training rows of a stack: each network's own order, of its own task; equal tasks are held once."""

from collections.abc import Iterator, Sequence

import torch

from qbayes.tasks import Task
from qbayes.tasks.source import Batch
from qbayes.training.budget import steps_in_epoch
from qbayes.training.stacked.noise import OrderGenerators


class StackedRows:
    """Rows in network units on ``device``, standardised once."""

    def __init__(self, tasks: Sequence[Task], device: torch.device) -> None:
        self.device, self.rows = device, tasks[0].train_rows
        distinct = {task.fingerprint: task for task in tasks}
        place = {fingerprint: index for index, fingerprint in enumerate(distinct)}
        parts = [self._whole(task) for task in distinct.values()]
        self.x = torch.cat([x for x, _ in parts])
        self.y = torch.cat([y for _, y in parts])
        first_rows = [place[task.fingerprint] * self.rows for task in tasks]
        self.first_rows = torch.tensor(first_rows, device=device)[:, None]

    def batches(self, batch_size: int, order: OrderGenerators) -> Iterator[Batch]:
        """One shuffled epoch of batches ``(networks, rows, …)``."""
        chosen = order.permutations(self.rows).to(self.device) + self.first_rows
        for step in range(steps_in_epoch(self.rows, batch_size)):
            batch = chosen[:, step * batch_size : (step + 1) * batch_size]
            flat = batch.flatten()
            x, y = self.x.index_select(0, flat), self.y.index_select(0, flat)
            yield x.view(*batch.shape, *x.shape[1:]), y.view(*batch.shape, *y.shape[1:])

    def _whole(self, task: Task) -> Batch:
        x, y = next(task.batches("train", self.rows))
        signature = task.signature
        x, y = signature.transform.apply(x.to(self.device)), y.to(self.device)
        return x, y if signature.target is None else signature.target.apply(y)
