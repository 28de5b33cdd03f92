"""What ``posterior.predict`` answers: the outputs of D draws for B rows, and what follows from them.

Uncertainty splits in two (Depeweg et al., 2018): the entropy of the averaged prediction is the expected
entropy of a draw (noise in the data) plus the mutual information of prediction and draw (doubt about the
model).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Self, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qbayes.errors import BadInput
from qbayes.posterior.likelihood import Categorical, Outputs, gaussian_heads
from qbayes.posterior.mixture import mixture_cdf, mixture_entropy, mixture_quantile
from qbayes.posterior.signature import Signature

Columns = dict[str, list[float] | list[str]]


class Predictive(ABC):
    """What ``predict`` answers: the outputs of D draws for B rows, and what follows from them.

    Results have the type of the outputs; sums run in float64. Classifiers answer with a
    ``CategoricalPredictive``, regressions with a ``GaussianPredictive``.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> x, _ = next(iter(task.batches("test", 8)))
        >>> answer = posterior.predict(x, draws=4)
        >>> tuple(answer.mean.shape), tuple(answer.entropy.shape), len(answer.rows(slice(3)))
        ((8, 10), (8,), 3)
    """

    labels: tuple[str, ...]
    # how exact the entropies are, in nats and relative to them.
    _entropy_error: ClassVar[float]

    @abstractmethod
    def _fields(self) -> tuple[Tensor, ...]:
        """The tensors ``(D, B, …)`` that the class is built from, in the order of its constructor."""

    @abstractmethod
    def _entropies(self) -> tuple[Tensor, Tensor]:
        """Entropy of the mixture of draws and mean entropy of the draws, ``(B,)`` in nats and float64."""

    @property
    @abstractmethod
    def draws(self) -> Tensor:
        """The output of each draw, ``(D, B, …)``: class probabilities, or means in the task's units."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The average over the draws, ``(B, …)``."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance of the prediction, ``(B, …)``."""

    @abstractmethod
    def as_dict(self) -> Columns:
        """Named columns of one value a row, for JSON and CSV."""

    @property
    def entropy(self) -> Tensor:
        """Total uncertainty ``H[E_d p_d]``, ``(B,)`` in nats."""
        return self._both_entropies[0].to(self.draws.dtype)

    @property
    def expected_entropy(self) -> Tensor:
        """Uncertainty in the data ``E_d H[p_d]``, ``(B,)`` in nats."""
        return self._both_entropies[1].to(self.draws.dtype)

    @property
    def mutual_information(self) -> Tensor:
        """Uncertainty about the model ``H[E_d p_d] − E_d H[p_d] ≥ 0``, ``(B,)`` in nats."""
        total, expected = self._both_entropies
        difference = total - expected
        # what rounding leaves of equal draws must be a tie at 0, not a score that ranks rows by chance.
        known = difference > self._entropy_error * (1 + total.abs())
        return torch.where(known | difference.isnan(), difference, 0.0).to(self.draws.dtype)

    @cached_property
    def _both_entropies(self) -> tuple[Tensor, Tensor]:
        return self._entropies()

    @property
    def draw_count(self) -> int:
        """The number of draws, D."""
        return self._fields()[0].shape[0]

    def __len__(self) -> int:
        return self._fields()[0].shape[1]

    def __repr__(self) -> str:
        shape = tuple(self.mean.shape[1:])
        return f"{type(self).__name__}({self.draw_count} draws, {len(self)} rows of shape {shape})"

    def rows(self, index: slice | Tensor) -> Self:
        """The same answer for some of the rows.

        Args:
            index: A slice, or a tensor of row numbers or booleans.
        """
        return self._rebuilt([field[:, index] for field in self._fields()])

    def to_cpu(self) -> Self:
        """The same answer with its tensors on the CPU."""
        return self._rebuilt([field.cpu() for field in self._fields()])

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """One answer for the rows of all parts, in their order.

        Args:
            parts: Answers of one posterior with the same number of draws.

        Raises:
            BadInput: There are no parts, or they differ in kind, draws, shape of a row or labels.
        """
        if not parts:
            raise BadInput("there must be predictions to join", "an empty sequence", "give at least one")
        forms = {(type(part), part.draw_count, tuple(part.mean.shape[1:]), part.labels) for part in parts}
        if len(forms) != 1:
            raise BadInput(
                "predictions to join must agree in kind, draws, shape of a row and labels",
                " and ".join(sorted(map(repr, parts[:8]))),
                "predict every batch with the same posterior and the same draws",
            )
        return parts[0]._rebuilt(
            [torch.cat(f, dim=1) for f in zip(*(p._fields() for p in parts), strict=True)]
        )

    def _rebuilt(self, fields: Sequence[Tensor]) -> Self:
        return type(self)(*fields, labels=self.labels)  # pyright: ignore[reportCallIssue]


@final
class CategoricalPredictive(Predictive):
    """Class probabilities of D draws, built from ``log_probabilities (D, B, K)``.

    Logarithms are kept because ``−log p`` of a wrong but very sure prediction underflows as a probability.
    """

    _entropy_error = 1e-13  # sums in float64

    def __init__(self, log_probabilities: Tensor, labels: Sequence[str] = ()) -> None:
        if log_probabilities.ndim != 3 or 0 in (log_probabilities.shape[0], log_probabilities.shape[2]):
            raise BadInput(
                "log-probabilities must have the axes (draws, rows, classes)",
                f"shape {tuple(log_probabilities.shape)}",
                "stack the draws along a new first axis",
            )
        if labels and len(labels) != log_probabilities.shape[2]:
            raise BadInput(
                "there must be one label a class",
                f"{len(labels)} labels for {log_probabilities.shape[2]} classes",
                "give as many labels as the network has outputs, or none",
            )
        self.log_draws = _at_least_float32(log_probabilities)
        self.labels = tuple(labels)

    @classmethod
    def from_logits(cls, logits: Tensor, labels: Sequence[str] = ()) -> "CategoricalPredictive":
        """From raw outputs ``(D, B, K)``: ``log softmax`` over the classes."""
        return cls(F.log_softmax(_at_least_float32(logits), dim=-1), labels)

    @classmethod
    def from_probabilities(cls, probabilities: Tensor, labels: Sequence[str] = ()) -> "CategoricalPredictive":
        """From probabilities ``(D, B, K)`` that sum to 1 over the classes."""
        off = (probabilities.double().sum(-1) - 1).abs() > 1e-3
        if bool(off.any() | (probabilities < 0).any()):
            raise BadInput(
                "probabilities must be at least 0 and sum to 1 over the last axis",
                f"sums from {probabilities.sum(-1).min():.4g} to {probabilities.sum(-1).max():.4g}",
                "apply softmax first, or use CategoricalPredictive.from_logits",
            )
        return cls(probabilities.log(), labels)

    def _fields(self) -> tuple[Tensor, ...]:
        return (self.log_draws,)

    @property
    def draws(self) -> Tensor:
        """Class probabilities of each draw, ``(D, B, K)``."""
        return self.log_draws.exp()

    @property
    def mean(self) -> Tensor:
        """``p̄_k = (1/D) Σ_d p_dk``, ``(B, K)``."""
        return self.log_draws.double().exp().mean(0).to(self.log_draws.dtype)

    @property
    def log_mean(self) -> Tensor:
        """``log p̄_k`` by ``logsumexp``, ``(B, K)``; finite where the probability itself underflows."""
        total = torch.logsumexp(self.log_draws.double(), dim=0) - math.log(self.draw_count)
        return total.to(self.log_draws.dtype)

    @property
    def variance(self) -> Tensor:
        """Unbiased variance of each class probability over the draws, ``(B, K)``; 0 for one draw."""
        return _variance_over_draws(self.log_draws.double().exp()).to(self.log_draws.dtype)

    @property
    def predicted(self) -> Tensor:
        """Index of the most probable class, ``(B,)``."""
        return self.log_mean.argmax(-1)

    def _entropies(self) -> tuple[Tensor, Tensor]:
        draws = self.log_draws.double().exp()
        # entr(p) = −p log p with entr(0) = 0; it is concave, so the difference is ≥ 0 however p was rounded.
        entropy, of_draws = torch.special.entr(draws.mean(0)).sum(-1), torch.special.entr(draws).sum(-1)
        return entropy, of_draws.mean(0)

    def as_dict(self) -> Columns:
        """``predicted``, ``confidence``, ``entropy``, ``mutual_information`` and ``probability_<label>``."""
        names = self.labels or tuple(str(k) for k in range(self.log_draws.shape[2]))
        mean = self.mean
        columns: Columns = {
            "predicted": [names[k] for k in self.predicted.tolist()],
            "confidence": mean.amax(-1).tolist(),
            "entropy": self.entropy.tolist(),
            "mutual_information": self.mutual_information.tolist(),
        }
        return columns | {f"probability_{name}": mean[:, k].tolist() for k, name in enumerate(names)}


@final
class GaussianPredictive(Predictive):
    """Gaussians of D draws, built from ``means`` and ``variances (D, B, *target)`` in the task's units.

    The prediction is their mixture ``p(y) = (1/D) Σ_d N(y | μ_d, v_d)``; targets of a draw are independent.
    """

    _entropy_error = 1e-9  # the quadrature of mixture_entropy

    def __init__(self, means: Tensor, variances: Tensor, labels: Sequence[str] = ()) -> None:
        if means.ndim < 3 or means.shape[0] == 0 or means.shape != variances.shape:
            raise BadInput(
                "means and variances must both have the axes (draws, rows, *target)",
                f"means {tuple(means.shape)}, variances {tuple(variances.shape)}",
                "stack the draws along a new first axis; one target a row is (draws, rows, 1)",
            )
        if bool((variances <= 0).any()):
            raise BadInput(
                "every variance must be above 0",
                f"a smallest variance of {variances.min():.4g}",
                "give variances, not their logarithms; rescale targets smaller than 1e-15",
            )
        self.draw_means = _at_least_float32(means)
        self.draw_variances = _at_least_float32(variances)
        self.labels = tuple(labels)

    def _fields(self) -> tuple[Tensor, ...]:
        return self.draw_means, self.draw_variances

    @property
    def draws(self) -> Tensor:
        """The mean of each draw, ``(D, B, *target)``."""
        return self.draw_means

    @property
    def mean(self) -> Tensor:
        """``(1/D) Σ_d μ_d``, ``(B, *target)``."""
        return self.draw_means.double().mean(0).to(self.draws.dtype)

    @property
    def variance(self) -> Tensor:
        """``Var_d(μ_d) + (1/D) Σ_d v_d``, ``(B, *target)``: the moment-matched Gaussian of the paper."""
        means, variances = self.draw_means.double(), self.draw_variances.double()
        return (_variance_over_draws(means) + variances.mean(0)).to(self.draws.dtype)

    @property
    def model_variance(self) -> Tensor:
        """Doubt about the model: unbiased variance of the draws' means; 0 for one draw."""
        return _variance_over_draws(self.draw_means.double()).to(self.draws.dtype)

    @property
    def data_variance(self) -> Tensor:
        """Noise in the data: the mean of the draws' variances."""
        return self.draw_variances.double().mean(0).to(self.draws.dtype)

    def log_prob(self, y: Tensor) -> Tensor:
        """``log (1/D) Σ_d Π_t N(y_t | μ_dt, v_dt)``, ``(B,)`` in nats."""
        means, variances = self.draw_means.double(), self.draw_variances.double()
        squares = (self._check(y).double() - means) ** 2 / variances
        per_draw = -0.5 * (squares + torch.log(2 * math.pi * variances)).flatten(2).sum(-1)
        return (torch.logsumexp(per_draw, dim=0) - math.log(self.draw_count)).to(self.draws.dtype)

    def cdf(self, y: Tensor) -> Tensor:
        """``(1/D) Σ_d Φ((y − μ_d)/σ_d)`` of each target by itself, ``(B, *target)``."""
        return mixture_cdf(self._check(y), self.draw_means, self.draw_variances).to(self.draws.dtype)

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """Where each target's cdf reaches ``q``: ``(B, *target)``, or ``(Q, B, *target)`` for a sequence."""
        if not isinstance(q, int | float):
            return torch.stack([self.quantile(one) for one in q])
        if not 0 < q < 1:
            raise BadInput("a quantile must lie strictly between 0 and 1", f"{q}", "use 0.5 for the median")
        return mixture_quantile(q, self.draw_means, self.draw_variances).to(self.draws.dtype)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds ``level`` of the mixture: quantiles ``(1 ∓ level)/2``."""
        if not 0 < level < 1:
            raise BadInput(
                "an interval's level must lie strictly between 0 and 1", f"{level}", "use 0.9 for 90 %"
            )
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _entropies(self) -> tuple[Tensor, Tensor]:
        """The mixture's entropy by quadrature; a draw's is ``½ log 2πe v`` in closed form.

        For several targets both are sums over the targets' marginals: the mutual information is that of each
        target with the draw, and the entropy an upper bound of the joint one.
        """
        of_draws = 0.5 * torch.log(2 * math.pi * math.e * self.draw_variances.double())
        expected = of_draws.flatten(2).sum(-1).mean(0)
        if self.draw_count == 1:
            return expected, expected
        entropy = mixture_entropy(self.draw_means, self.draw_variances)
        return entropy.flatten(1).sum(-1), expected

    def as_dict(self) -> Columns:
        """``mean``, ``std``, ``low_90`` and ``high_90``, with the label of each of several targets."""
        low, high = self.interval(0.9)
        parts = {"mean": self.mean, "std": self.variance.sqrt(), "low_90": low, "high_90": high}
        flat = {name: part.flatten(1) for name, part in parts.items()}
        count = flat["mean"].shape[1]
        labels = self.labels if len(self.labels) == count else tuple(str(t) for t in range(count))
        suffixes = [""] if count == 1 else [f"_{label}" for label in labels]
        return {name + end: flat[name][:, t].tolist() for t, end in enumerate(suffixes) for name in flat}

    def _check(self, y: Tensor) -> Tensor:
        if y.shape != self.draw_means.shape[1:]:
            raise BadInput(
                "targets must have the prediction's shape (rows, *target)",
                f"targets {tuple(y.shape)}, prediction {tuple(self.draw_means.shape[1:])}",
                "reshape the targets; one target a row is (rows, 1)",
            )
        return y.to(self.draw_means.device)


def predictive_from_outputs(outputs: Outputs, signature: Signature) -> Predictive:
    """The answer in the task's units from a network's raw outputs with a leading draw axis.

    Outputs are logits ``(D, B, K)``, or heads ``mean`` and ``log_variance``, each ``(D, B, *target)`` in
    network units: ``μ = mean · std + offset`` and ``v = exp(log_variance) · std²``.
    """
    if isinstance(signature.likelihood, Categorical):
        if not isinstance(outputs, Tensor):
            raise BadInput(
                "a classifier must return one tensor of logits", f"heads {sorted(outputs)}", "return it alone"
            )
        return CategoricalPredictive.from_logits(outputs, signature.labels)
    heads = gaussian_heads(outputs)
    mean, variance = heads[0].double(), heads[1].double().exp()
    if signature.target is not None:
        # one scale for each entry of the first axis after (draws, rows).
        shape = (-1,) + (1,) * (mean.ndim - 3)
        offset, std = (
            t.double().to(mean.device).view(shape) for t in (signature.target.mean, signature.target.std)
        )
        mean, variance = mean * std + offset, variance * std**2
    dtype = torch.promote_types(heads[0].dtype, torch.float32)
    return GaussianPredictive(mean.to(dtype), variance.to(dtype), signature.labels)


def _variance_over_draws(draws: Tensor) -> Tensor:
    return draws.var(dim=0) if draws.shape[0] > 1 else torch.zeros_like(draws[0])


def _at_least_float32(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))
