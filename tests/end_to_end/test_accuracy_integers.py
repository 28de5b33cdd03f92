"""What integers cost: scores of integer programs beside float, from 8 down to 3 bits, for the four methods.

The floors leave room for what a small test set can tell: on digits one row is 0.22 points, and the standard
error of a paired difference of error is about half a point. Improvements always pass.
"""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import qbayes as qb
from handmade.threads import one_thread

__all__ = ["one_thread"]

METHODS = ("pointwise", "mcd", "bbb", "sghmc")
DRAWS = 20
# short training, for a posterior that is worth quantising; the full sweep trains to the end.
SHORT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pointwise": ({}, {"epochs": 10, "learning_rate": 2e-3}),
    "mcd": ({"rate": 0.2}, {"epochs": 15, "learning_rate": 2e-3}),
    "bbb": ({"prior_sigma": 0.1, "kl_weight": 0.1}, {"epochs": 15, "learning_rate": 3e-3}),
    "sghmc": (
        {"members": 4, "every": 2},
        {"epochs": 20, "learning_rate": 1e-2, "schedule": "constant"},
    ),
}
FULL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pointwise": ({}, {"epochs": 30, "learning_rate": 1e-3}),
    "mcd": ({"rate": 0.2}, {"epochs": 40, "learning_rate": 1e-3}),
    "bbb": ({"prior_sigma": 0.1, "kl_weight": 0.1}, {"epochs": 40, "learning_rate": 2e-3}),
    "sghmc": (
        {"members": 8, "every": 2},
        {"epochs": 40, "learning_rate": 1e-2, "schedule": "constant"},
    ),
}
# one hidden layer with one noise for all rows; MC dropout has a head for the noise too.
TABLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pointwise": ({}, {"hidden": (50,), "noise": "constant"}),
    "mcd": ({"rates": {"log_variance": 0.5}}, {"hidden": (50, 50), "noise": "row"}),
    "bbb": ({}, {"hidden": (50,), "noise": "constant"}),
    "sghmc": ({"members": 4}, {"hidden": (50,), "noise": "constant"}),
}
CHANCE = 0.9


@functools.cache
def digits() -> qb.Task:
    return qb.load_task("digits")


@functools.cache
def diabetes(split: int) -> qb.Task:
    return qb.load_task("diabetes", split=split)


@functools.cache
def on_digits(method: str, seed: int = 0, full: bool = False) -> qb.NetworkPosterior:
    options, training = (FULL if full else SHORT)[method]
    budget = qb.Budget(batch_size=64, **training)
    network = functools.partial(qb.network, "lenet", digits(), style="relu")
    return qb.fit(network, digits(), qb.method(method, **options), budget, seed=seed, progress=False)


@functools.cache
def on_diabetes(method: str, split: int = 1, full: bool = False) -> qb.NetworkPosterior:
    options, layers = TABLES[method]
    task = diabetes(split)
    chosen, budget = qb.recipe(method, task, **options)
    if method == "sghmc" and not full:
        budget = qb.Budget(epochs=100, batch_size=64, learning_rate=1e-2, schedule="constant")
    network = functools.partial(qb.network, "mlp", task, **layers)
    return qb.fit(network, task, chosen, budget, seed=split, progress=False)


def deployed(
    posterior: qb.NetworkPosterior, task: qb.Task, precision: qb.Precision, budget: qb.FineTuning
) -> qb.ProgramPosterior:
    return qb.load(qb.lower(qb.quantize(posterior, task, precision, budget, progress=False)))


def scores(posterior: Any, task: qb.Task) -> dict[str, float]:
    return dict(qb.evaluate(posterior, task, DRAWS, shifts=False, confusion=False).clean)


def short_qat(precision: str) -> qb.FineTuning:
    """8 bits are calibrated alone; below, a few epochs of training."""
    return qb.FineTuning(epochs=0 if precision == "W8A8" else 4, batch_size=64)


def bits(precision: str) -> qb.Precision:
    weight, activation = (int(part) for part in precision[1:].split("A"))
    return qb.Precision(weight=weight, activation=activation)


# points of error, NLL and points of ECE above float that a program may cost on digits.
FLOORS = {
    "W8A8": (0.5, 0.02, 1.0),
    "W8A7": (0.5, 0.02, 1.0),
    "W4A4": (1.0, 0.04, 2.0),
    "W3A3": (1.5, 0.08, 3.0),
}


def check_classification(found: dict[str, float], reference: dict[str, float], precision: str) -> None:
    error, nll, ece = FLOORS[precision]
    assert 100 * (found["error"] - reference["error"]) <= error
    assert found["nll"] - reference["nll"] <= nll
    assert 100 * (found["ece"] - reference["ece"]) <= ece


# Mutual information beside float's, calibrated at 8 bits and trained at 4. Training by the likelihood alone
# moves every SGHMC member from where it was drawn towards a mode: error and NLL fall, but the members come to
# agree, at any width and rate that trains.
SPREAD = {
    ("mcd", "W8A8"): (0.8, 1.25),
    ("bbb", "W8A8"): (0.8, 1.25),
    ("sghmc", "W8A8"): (0.8, 1.25),
    ("mcd", "W4A4"): (0.5, 2.0),
    ("bbb", "W4A4"): (0.5, 2.0),
    ("sghmc", "W4A4"): (0.1, 1.25),
}


@pytest.mark.parametrize("method", METHODS)
def test_digits(method: str) -> None:
    posterior = on_digits(method)
    reference = scores(posterior, digits())
    assert reference["error"] <= 0.06
    for precision in ("W8A8", "W4A4"):
        found = scores(deployed(posterior, digits(), bits(precision), short_qat(precision)), digits())
        check_classification(found, reference, precision)
        if method == "pointwise":
            assert found["mutual_information"] == pytest.approx(0.0, abs=1e-6)
        else:
            least, most = SPREAD[method, precision]
            assert least <= found["mutual_information"] / reference["mutual_information"] <= most


# relative RMSE, and NLL, above float; the target's standard deviation is 77, the float RMSE about 50.
REGRESSION_FLOORS = {"W8A8": (0.02, 0.03), "W8A7": (0.02, 0.03), "W4A4": (0.05, 0.06), "W3A3": (0.08, 0.1)}


@pytest.mark.parametrize("method", METHODS)
def test_diabetes(method: str) -> None:
    posterior, task = on_diabetes(method), diabetes(1)
    reference = scores(posterior, task)
    assert reference["rmse"] <= 60
    for precision in ("W8A8", "W4A4"):
        found = scores(deployed(posterior, task, bits(precision), short_qat(precision)), task)
        rmse, nll = REGRESSION_FLOORS[precision]
        assert found["rmse"] / reference["rmse"] - 1 <= rmse
        assert found["nll"] - reference["nll"] <= nll
        assert abs(found["interval_width_90"] / reference["interval_width_90"] - 1) <= 0.15


def with_large_activations(posterior: qb.NetworkPosterior, factor: float) -> qb.NetworkPosterior:
    """The same function in other units: a layer before a ReLU times ``factor``, the one behind divided.

    relu(f·x) = f·relu(x), and with a power of 2 every float stays exactly the same but for its exponent.
    """
    (state,) = posterior.members
    for name, value in state.items():
        if name.startswith("hidden."):
            state[name] = value * factor
        elif name.startswith("logits.") and name.endswith("weight"):
            state[name] = value / factor
    return qb.NetworkPosterior(
        posterior.network, [state], posterior.signature, architecture=posterior.architecture
    )


def some_rows() -> tuple[Tensor, Tensor]:
    return next(iter(digits().batches("test", 256)))


def probabilities(posterior: qb.NetworkPosterior, precision: qb.Precision, budget: qb.FineTuning) -> Tensor:
    prediction: Any = deployed(posterior, digits(), precision, budget).predict(some_rows()[0], DRAWS)
    return prediction.mean


def error_of(mean: Tensor) -> float:
    return float((mean.argmax(-1) != some_rows()[1]).double().mean())


@pytest.mark.parametrize("activation", [4, 3])
def test_mc_dropout_does_not_collapse(activation: int) -> None:
    """With our mask the units of the activations mean nothing: the codes are the same ones."""
    posterior = on_digits("mcd")
    large = with_large_activations(posterior, 64.0)
    x, _ = some_rows()
    assert torch.equal(large.predict(x, DRAWS).mean, posterior.predict(x, DRAWS).mean)
    precision, budget = qb.Precision(weight=8, activation=activation), qb.FineTuning(epochs=0)
    as_is, scaled = (probabilities(one, precision, budget) for one in (posterior, large))
    assert torch.equal(as_is, scaled)
    assert error_of(as_is) <= error_of(posterior.predict(x, DRAWS).mean) + 0.015
    first, second = deployed(posterior, digits(), precision, budget).predict(x, 2).draws
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("preset", "epochs", "activation"),
    [("default", 0, 4), ("default", 2, 3), ("paper", 2, 4), ("paper", 0, 3)],
)
def test_the_papers_mask_collapses_once_its_step_exceeds_2(preset: str, epochs: int, activation: int) -> None:
    """ "1" on the product's grid is S·round(1/S) = 0 for S > 2: no row's activations pass, trained or not."""
    large = with_large_activations(on_digits("mcd"), 64.0)
    precision = qb.Precision(weight=8, activation=activation, mask="product")
    if preset == "paper":
        precision = qb.Precision.preset("paper", weight=8, activation=activation)
    mean = probabilities(large, precision, qb.FineTuning(epochs=epochs, batch_size=64))
    # every row gets the same answer: the head's bias.
    assert torch.equal(mean, mean[:1].expand_as(mean))
    assert error_of(mean) >= CHANCE - 0.1


@pytest.mark.full
@pytest.mark.parametrize("precision", ["W8A8", "W8A7", "W4A4", "W3A3"])
@pytest.mark.parametrize("method", METHODS)
def test_digits_over_three_seeds(method: str, precision: str) -> None:
    """The default recipe, paired with float and averaged over seeds."""
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    for seed in range(3):
        posterior = on_digits(method, seed, full=True)
        program = deployed(posterior, digits(), bits(precision), qb.FineTuning())
        pairs.append((scores(program, digits()), scores(posterior, digits())))
    found, reference = (
        {name: sum(one[side][name] for one in pairs) / 3 for name in ("error", "nll", "ece")}
        for side in (0, 1)
    )
    check_classification(found, reference, precision)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["W8A8", "W8A7", "W4A4", "W3A3"])
@pytest.mark.parametrize("method", METHODS)
def test_diabetes_over_three_splits(method: str, precision: str) -> None:
    rmse, nll = REGRESSION_FLOORS[precision]
    worse: list[tuple[float, float]] = []
    for split in range(3):
        posterior, task = on_diabetes(method, split, full=True), diabetes(split)
        reference = scores(posterior, task)
        found = scores(deployed(posterior, task, bits(precision), qb.FineTuning()), task)
        worse.append((found["rmse"] / reference["rmse"] - 1, found["nll"] - reference["nll"]))
    assert sum(one for one, _ in worse) / 3 <= rmse
    assert sum(one for _, one in worse) / 3 <= nll
