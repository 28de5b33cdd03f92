"""A training step recorded once as a CUDA graph for each shape of batch, and replayed from then on.

A step of a stack of small networks is a few hundred kernels of microseconds each, which Python starts more
slowly than the device runs them. A graph starts them all at once. It computes what the eager step computes,
kernel for kernel, from inputs copied to fixed places; the rate is a tensor, for numbers would be frozen.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

# steps of each shape that run eagerly first: they allocate the optimiser's state and choose kernels.
_WARM_UP = 3
_CAN_BE_REPLAYED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)

Step = Callable[[Tensor, Tensor], Tensor]


def can_be_replayed(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Whether this optimiser's step consists of kernels only: torch's own, fused ones on a GPU."""
    fused = all(group.get("fused") for group in optimizer.param_groups)
    return device.type == "cuda" and isinstance(optimizer, _CAN_BE_REPLAYED) and fused


@dataclass
class _Recorded:
    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor
    loss: Tensor


class ReplayedSteps:
    """``step(x, y)`` moves the parameters and gives the losses; calls of one shape are replayed."""

    def __init__(self, step: Step, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._step, self._optimizer, self._device = step, optimizer, device
        self._recorded: dict[Hashable, _Recorded] = {}
        self._seen: dict[Hashable, int] = {}
        self._stream = torch.cuda.Stream(device)
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
            if "capturable" in group:
                group["capturable"] = True

    def set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"].fill_(rate * group.get("lr_scale", 1.0))

    def __call__(self, x: Tensor, y: Tensor, phase: Hashable = None) -> Tensor:
        """One step; ``phase`` is whatever else the step depends on that is no tensor."""
        key = (tuple(x.shape), tuple(y.shape), phase)
        if key not in self._recorded:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] <= _WARM_UP:
                return self._eagerly(x, y)
            self._recorded[key] = self._record(x, y)
        recorded = self._recorded[key]
        recorded.x.copy_(x)
        recorded.y.copy_(y)
        recorded.graph.replay()
        return recorded.loss

    def _eagerly(self, x: Tensor, y: Tensor) -> Tensor:
        # on a stream of its own, as graphs are recorded: gradients must not wait for another one.
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            loss = self._step(x, y)
        here.wait_stream(self._stream)
        return loss

    def _record(self, x: Tensor, y: Tensor) -> _Recorded:
        graph, x, y = torch.cuda.CUDAGraph(), x.clone(), y.clone()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, stream=self._stream):
            loss = self._step(x, y)
        return _Recorded(graph, x, y, loss.detach())
