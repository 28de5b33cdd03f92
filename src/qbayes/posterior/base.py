"""A posterior is anything that answers ``predict(x, draws, seed)``: float, fake-quantised or integer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from qbayes import noise
from qbayes.errors import BadInput
from qbayes.posterior.predictive import Predictive
from qbayes.posterior.signature import Signature

if TYPE_CHECKING:
    from qbayes.posterior.network import NetworkPosterior

ArrayLike = Tensor | np.ndarray | Sequence[Any]


class Posterior(ABC):
    """Answers with the predictive distribution of raw inputs, in the task's units."""

    signature: Signature

    def predict(
        self,
        x: ArrayLike,
        draws: int = 20,
        seed: int = 0,
        *,
        first_row: int = 0,
        batch_size: int | None = None,
    ) -> Predictive:
        """The predictive distribution of each row of ``x`` from ``draws`` draws.

        The noise of a row is keyed by (seed, draw, site, ``first_row`` + its index in ``x``), so that the answer
        does not depend on the batch it came in. ``batch_size`` bounds memory only.
        """
        rows = check_inputs(x, self.signature)
        noise.check_seed(seed)
        if draws < 1 or first_row < 0 or (batch_size is not None and batch_size < 1):
            raise BadInput(
                "draws and batch_size must be at least 1, first_row at least 0",
                f"draws={draws}, batch_size={batch_size}, first_row={first_row}",
                "try draws=20",
            )
        return self._predict(rows, draws, seed, first_row, batch_size)

    @abstractmethod
    def _predict(
        self, x: Tensor, draws: int, seed: int, first_row: int, batch_size: int | None
    ) -> Predictive: ...

    @staticmethod
    def from_trained(
        network: nn.Module,
        signature: Signature,
        *,
        members: Sequence[Mapping[str, Tensor]] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> "NetworkPosterior":
        """A posterior from a network trained in one's own loop.

        ``network`` is what ``qb.attach`` returned, trained; ``members`` its collected states (its own state
        if not given); ``signature`` usually ``task.signature``.
        """
        from qbayes.posterior.network import NetworkPosterior

        states = [network.state_dict()] if members is None else list(members)
        return NetworkPosterior(network, states, signature, provenance=dict(provenance or {}))


def check_inputs(x: ArrayLike, signature: Signature) -> Tensor:
    """``x`` as a tensor of rows with the signature's shape and finite numbers."""
    rows = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
    if tuple(rows.shape[1:]) != signature.input_shape or rows.ndim == 0:
        raise BadInput(
            f"inputs must have the shape (rows, {', '.join(map(str, signature.input_shape))})",
            f"{tuple(rows.shape)}",
            "add the axis of rows, or reshape each row as in training",
        )
    if rows.shape[0] == 0:
        raise BadInput("there must be at least one row to predict", "0 rows", "check where the inputs come from")
    if rows.is_complex() or rows.dtype == torch.bool:
        raise BadInput("inputs must be real numbers", f"{rows.dtype}", "convert them to float32")
    if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
        bad = int((~torch.isfinite(rows)).flatten(1).any(1).nonzero()[0])
        raise BadInput("inputs must be finite", f"NaN or infinity in row {bad}", "clean or impute the inputs")
    return rows
