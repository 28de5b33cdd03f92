# torch's operations on lists of tensors bear private names:
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
r"""The average of the weights along the end of a training, with batch statistics of its own.

.. math:: \bar w_n = \bar w_{n-1} + \tfrac1n (w_n - \bar w_{n-1})

over the last steps (Polyak and Juditsky, 1992; Izmailov et al., *Averaging weights leads to wider optima*,
UAI 2018). The statistics of batch normalisation belong to other weights: they are measured anew.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# of these the running statistics are measured anew.
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_PREFIX = "average/"


class LateAverage:
    """The running mean of a module's parameters; it begins empty.

    Args:
        module: whose parameters are averaged.
        first_step: the step, counted over all epochs from 0, from which on they are.
    """

    def __init__(self, module: nn.Module, first_step: int) -> None:
        self._module, self._first = module, first_step
        self._mean: list[Tensor] = []
        self._count = 0

    @property
    def is_empty(self) -> bool:
        return self._count == 0

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Take in the parameters as they are behind ``step``."""
        if step < self._first:
            return
        self._count += 1
        parameters = [parameter.detach() for _, parameter in self._parameters()]
        if self._count == 1:
            self._mean = [parameter.clone() for parameter in parameters]
        else:
            torch._foreach_lerp_(self._mean, parameters, 1.0 / self._count)

    @torch.no_grad()
    def give(self, batches: Iterable[Tensor], run: Callable[[Tensor], Any]) -> None:
        """Put the mean into the module, and measure its batch statistics on ``batches`` of network inputs.

        ``run`` is the module in the arithmetic of its training. Layers that do not train (a teacher's) keep
        their statistics.
        """
        for (_, parameter), mean in zip(self._parameters(), self._mean, strict=True):
            parameter.copy_(mean)
        norms = [layer for layer in self._module.modules() if isinstance(layer, _NORMS)]
        norms = [norm for norm in norms if norm.track_running_stats and norm.training]
        if not norms:
            return
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            # None: each batch counts the same.
            norm.momentum = None
        for x in batches:
            run(x)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""
        names = (name for name, _ in self._parameters())
        held = {f"{_PREFIX}{name}": mean for name, mean in zip(names, self._mean, strict=False)}
        return held | {f"{_PREFIX}/count": torch.tensor(self._count)} if held else {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``tensors`` gave; raises LookupError where something is missing."""
        if f"{_PREFIX}/count" not in tensors:
            self._mean, self._count = [], 0
            return
        self._count = int(tensors[f"{_PREFIX}/count"])
        self._mean = [
            tensors[f"{_PREFIX}{name}"].to(parameter.device, copy=True)
            for name, parameter in self._parameters()
        ]
        for mean, (name, parameter) in zip(self._mean, self._parameters(), strict=True):
            if mean.shape != parameter.shape:
                raise ValueError(f"the average of {name} has the shape {tuple(mean.shape)}")

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, value) for name, value in self._module.named_parameters() if value.requires_grad]
