"""A training step recorded once as a CUDA graph for each shape of batch, and replayed from then on.

A step of a stack of small networks is a few hundred kernels of microseconds each, which Python starts more
slowly than the device runs them. A graph starts them all at once. It computes what the eager step computes,
kernel for kernel, from inputs copied to fixed places; the rate is a tensor, for numbers would be frozen.
An optimiser that counts its steps, as a sampler does, stays outside: the graph ends with the gradient.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

# steps of each shape that run eagerly first: they allocate the optimiser's state and choose kernels.
_WARM_UP = 3
_OF_KERNELS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)

Gradient = Callable[[Tensor, Tensor], Tensor]


def can_be_replayed(device: torch.device) -> bool:
    return device.type == "cuda"


def _is_of_kernels(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this optimiser's step consists of kernels only: torch's own, fused ones."""
    return isinstance(optimizer, _OF_KERNELS) and all(group.get("fused") for group in optimizer.param_groups)


@dataclass
class _Recorded:
    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor
    loss: Tensor
    # where this graph leaves the gradients: those of another shape of batch lie elsewhere.
    gradients: list[tuple[Tensor, Tensor | None]]


class ReplayedSteps:
    """``gradient(x, y)`` fills the gradients and gives the losses, and the optimiser moves the parameters.

    Calls of one shape are replayed.
    """

    def __init__(self, gradient: Gradient, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._gradient, self._optimizer, self._device = gradient, optimizer, device
        self._recorded: dict[Hashable, _Recorded] = {}
        self._seen: dict[Hashable, int] = {}
        self._stream = torch.cuda.Stream(device)
        self._whole = _is_of_kernels(optimizer)
        if self._whole:
            for group in optimizer.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=device)
                if "capturable" in group:
                    group["capturable"] = True

    def set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            if self._whole:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

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
        if not self._whole:
            for parameter, gradient in recorded.gradients:
                parameter.grad = gradient
            self._optimizer.step()
        return recorded.loss

    def _eagerly(self, x: Tensor, y: Tensor) -> Tensor:
        # on a stream of its own, as graphs are recorded: gradients must not wait for another one.
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            loss = self._gradient(x, y)
            self._optimizer.step()
        here.wait_stream(self._stream)
        return loss

    def _record(self, x: Tensor, y: Tensor) -> _Recorded:
        graph, x, y = torch.cuda.CUDAGraph(), x.clone(), y.clone()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, stream=self._stream):
            loss = self._gradient(x, y)
            if self._whole:
                self._optimizer.step()
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        return _Recorded(graph, x, y, loss.detach(), [(p, p.grad) for p in parameters])
