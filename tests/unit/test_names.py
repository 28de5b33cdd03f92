"""The verbs take names, as the command line and TOML have them."""

from collections.abc import Callable

import pytest
import torch

import qbayes as qb

BUDGET, CALIBRATE = qb.Budget(epochs=1), qb.FineTuning(epochs=0)


def test_names_give_the_same_bits_as_what_they_stand_for() -> None:
    task = qb.load_task("digits")
    named = qb.quantize(qb.fit("mlp", "digits", "mcd", BUDGET, progress=False), "digits", "W4A4", CALIBRATE)
    float_posterior = qb.fit(lambda: qb.network("mlp", task), task, "mcd", BUDGET, progress=False)
    made = qb.quantize(float_posterior, task, qb.Precision(weight=4, activation=4), CALIBRATE)
    x = torch.linspace(0, 16, 2 * 64).view(2, 1, 8, 8)
    assert torch.equal(named.predict(x, draws=3).draws, made.predict(x, draws=3).draws)
    scores = [qb.evaluate(named, data, draws=2, shifts=False).clean for data in ("digits", task)]
    assert scores[0] == scores[1]


CALLS: dict[str, Callable[[qb.NetworkPosterior, object], object]] = {
    "fit": lambda posterior, task: qb.fit("mlp", task, "mcd", BUDGET),  # type: ignore[arg-type]
    "quantize": lambda posterior, task: qb.quantize(posterior, task),  # type: ignore[arg-type]
    "fine_tune": lambda posterior, task: qb.fine_tune(posterior, task),  # type: ignore[arg-type]
    "evaluate": lambda posterior, task: qb.evaluate(posterior, task),  # type: ignore[arg-type]
    "assign_bits": lambda posterior, task: qb.assign_bits(posterior, task, qb.BitBudget(bytes=9000)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("verb", CALLS)
def test_an_unknown_name_is_refused_with_the_nearest(verb: str) -> None:
    posterior = qb.fit("mlp", "digits", "pointwise", BUDGET, progress=False)
    with pytest.raises(qb.BadInput, match="did you mean 'digits'"):
        CALLS[verb](posterior, "digit")
