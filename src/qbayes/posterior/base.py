"""A posterior is anything that answers ``predict(x, draws, seed)``: float, fake-quantised or integer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

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
T = TypeVar("T", bound="NetworkPosterior")


class Posterior(ABC):
    """Answers with the predictive distribution of raw inputs, in the task's units.

    It is float, fake-quantised or on integers: ``fit``, ``quantize`` and ``load`` give one.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> x, _ = next(iter(task.batches("test", 8)))
        >>> posterior.predict(x, draws=4)
        CategoricalPredictive(4 draws, 8 rows of shape (10,))
    """

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
        """The predictive distribution of each row from a number of draws.

        The noise of a row is keyed by (seed, draw, site, ``first_row`` + its index in ``x``). The answer does
        not depend on the batch that a row came in.

        Args:
            x: Raw inputs ``(rows, *input_shape)``: a tensor, an array or lists.
            draws: Draws from the posterior.
            seed: Key of the noise. The same seed gives the same answer.
            first_row: Number of the first row, for inputs that come in parts.
            batch_size: Rows that are computed at once; it bounds memory only. By default as many as suit the
                device.

        Returns:
            A ``Predictive`` with one answer a row.

        Raises:
            BadInput: The inputs have another shape or are not finite, or a number is out of range.
        """
        rows = check_inputs(x, self.signature)
        seed = noise.check_seed(seed)
        least = {"draws": (draws, 1), "first_row": (first_row, 0)}
        least |= {} if batch_size is None else {"batch_size": (batch_size, 1)}
        for name, (number, bound) in least.items():
            if not isinstance(number, Integral) or number < bound:
                raise BadInput(
                    f"{name} must be a whole number of at least {bound}", f"{number!r}", "change it"
                )
        if max(first_row + len(rows), draws) > 1 << 32:
            raise BadInput(
                "rows and draws must be numbered below 2^32, the words of the noise's counter",
                f"rows up to {first_row + len(rows)}, {draws} draws",
                "number the rows of each file from 0, with a seed of its own",
            )
        return self._predict(rows, int(draws), seed, int(first_row), batch_size)

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

        Args:
            network: What ``qb.attach`` returned, trained.
            signature: Usually ``task.signature``.
            members: The states that were collected; by default the network's own state alone.
            provenance: What the posterior records of its making, as JSON; nothing by default.

        Returns:
            A float posterior.
        """
        states = [network.state_dict()] if members is None else list(members)
        return _of_networks[0](network, states, signature, provenance=dict(provenance or {}))


_of_networks: "list[type[NetworkPosterior]]" = []


def answers_for_networks(kind: "type[T]") -> "type[T]":
    """Marks the class that ``Posterior.from_trained`` makes: it stands above this module."""
    _of_networks[:] = [kind]
    return kind


def check_inputs(x: ArrayLike, signature: Signature) -> Tensor:
    """``x`` as a tensor of rows with the signature's shape and finite numbers."""
    try:
        rows = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
    except (TypeError, ValueError) as error:
        raise BadInput(
            "inputs must be a rectangular array of real numbers", f"{error}", "convert them to float32"
        ) from None
    if tuple(rows.shape[1:]) != signature.input_shape or rows.ndim == 0:
        raise BadInput(
            f"inputs must have the shape (rows, {', '.join(map(str, signature.input_shape))})",
            f"{tuple(rows.shape)}",
            "add the axis of rows, or reshape each row as in training",
        )
    if rows.shape[0] == 0:
        raise BadInput(
            "there must be at least one row to predict", "0 rows", "check where the inputs come from"
        )
    if rows.is_complex() or rows.dtype == torch.bool:
        raise BadInput("inputs must be real numbers", f"{rows.dtype}", "convert them to float32")
    # in float32, the network's type: 1e300 is infinite there.
    if rows.is_floating_point() and not bool((finite := torch.isfinite(rows.float())).all()):
        bad = int((~finite).flatten(1).any(1).nonzero()[0])
        raise BadInput("inputs must be finite", f"NaN or infinity in row {bad}", "clean or impute the inputs")
    return rows
