"""How quantisation trains by default: by the kind of task and the bits, and never against what is given."""

from typing import Any

import pytest
import torch

import qbayes as qb
from qbayes.errors import BadInput
from qbayes.quant.finetune import fine_tuning
from qbayes.quant.finetune.fine_tuning import PRESETS, RECIPES, RECIPES_OF_DATA, AnyTask, Recipe, find_recipe


def line(rows: int = 48) -> qb.Task:
    x = torch.linspace(-1, 1, rows)[:, None]
    return qb.Task.from_arrays(x, x.sin(), x, x.sin(), kind="regression", name="line")


def blobs(rows: int = 48) -> qb.Task:
    return qb.Task.from_arrays(*task_rows(rows), kind="classification", name="blobs")


def task_rows(rows: int = 48) -> tuple[torch.Tensor, ...]:
    y = torch.arange(rows) % 2
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0)) + 3 * y[:, None]
    return x, y, x, y


def fitted(task: qb.Task) -> qb.NetworkPosterior:
    network = qb.network("mlp", task, hidden=(6,))
    return qb.fit(
        network,
        task,
        qb.method("pointwise"),
        qb.Budget(epochs=2, batch_size=16),
        device="cpu",
        progress=False,
    )


def test_a_regression_is_taught_by_its_float_network() -> None:
    task = line()
    made = qb.quantize(fitted(task), task, qb.Precision(4, 6), device="cpu", progress=False)
    record = made.provenance["quantised"]
    assert (record["optimizer"], record["distill"], record["equalize"]) == ("adam", 1.0, True)
    assert record["budget"]["learning_rate"] == pytest.approx(1.5e-4 * 2**4)
    # 48 rows are one batch of 64.
    assert record["budget"]["epochs"] == 2000


def test_a_classification_learns_from_labels() -> None:
    task = blobs()
    made = qb.quantize(fitted(task), task, qb.Precision(4, 4), device="cpu", progress=False)
    record = made.provenance["quantised"]
    assert (record["optimizer"], record["distill"], record["equalize"]) == ("sgd", 0.0, False)
    assert record["budget"]["learning_rate"] == 1e-2


def test_a_data_set_may_have_a_recipe_of_its_own() -> None:
    """CIFAR-10's networks know their training rows by heart: they imitate, others learn from labels."""
    task = blobs()
    named = qb.Task.from_arrays(*task_rows(), kind="classification", name="cifar10")
    made = [
        qb.quantize(fitted(one), one, qb.Precision(4, 4), device="cpu", progress=False)
        for one in (task, named)
    ]
    plain, own = (one.provenance["quantised"] for one in made)
    assert (plain["distill"], own["distill"]) == (0.0, 1.0)
    assert plain["budget"]["learning_rate"] == 1e-2
    assert own["budget"]["learning_rate"] == pytest.approx(3e-3 * 1.5**4)
    named = AnyTask("classification", "cifar10")
    assert qb.FineTuning().resolve(task=named).learning_rate == 3e-3
    assert find_recipe("default", "classification", "cifar10") is RECIPES_OF_DATA["default", "cifar10"]
    assert find_recipe("paper", "classification", "cifar10") is RECIPES["paper"]
    assert find_recipe("default", "regression", "nobody") is RECIPES["default/regression"]
    assert find_recipe("default", "classification", "regression") is RECIPES["default"]
    # a recipe of a data set is for what it was measured on.
    assert find_recipe("default", "regression", "cifar10") is RECIPES["default/regression"]


def test_mixup_goes_where_labels_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    mixing = Recipe({**RECIPES["default"].options, "distill": 1.0, "mixup": 0.5})
    monkeypatch.setattr(fine_tuning, "find_recipe", lambda *_: mixing)
    assert qb.FineTuning().resolve().mixup == 0.5
    assert qb.FineTuning(distill=0.5).resolve().mixup == 0.0
    # given by name it stays, and is refused where it is used.
    assert qb.FineTuning(distill=0.5, mixup=0.25).resolve().mixup == 0.25


def test_the_temperature_is_matched_where_distillation_is_all() -> None:
    task = AnyTask("classification", "cifar10")
    assert qb.FineTuning().resolve(task=task).match_temperature is True
    assert qb.FineTuning(distill=0.5).resolve(task=task).match_temperature is False
    assert qb.FineTuning(distill=0.0, match_temperature=True).resolve(task=task).match_temperature is True


def test_epochs_that_are_given_are_kept() -> None:
    assert qb.FineTuning().resolve().least_steps == 200
    assert qb.FineTuning(epochs=3).resolve().least_steps == 0
    assert qb.FineTuning(epochs=3, least_steps=50).resolve().least_steps == 50


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_resolved_options_stay_what_they_are(preset: str, kind: str) -> None:
    task = AnyTask(kind, "digits")
    for given in ({}, {"clip": 0}, {"distill": 1.0, "mixup": 0.5}, {"epochs": 0}):
        done = qb.FineTuning(preset=preset, **given).resolve(qb.Precision(3, 4), task)
        assert done.resolve(qb.Precision(3, 4), task) == done
        assert done.with_budget(done.budget) == done


def test_what_is_given_stands() -> None:
    task = line()
    given = qb.FineTuning(
        epochs=1, batch_size=16, learning_rate=1e-3, distill=0.25, optimizer="sgd", equalize=False, clip=0
    )
    made = qb.quantize(fitted(task), task, "W3A3", given, device="cpu")
    record = made.provenance["quantised"]
    assert (record["optimizer"], record["distill"], record["equalize"]) == ("sgd", 0.25, False)
    assert record["budget"] == qb.Budget(epochs=1, batch_size=16, learning_rate=1e-3).to_json()


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_rate_doubles_with_every_bit_less(bits: int) -> None:
    def rate(kind: str, **given: Any) -> float:
        return qb.FineTuning(**given).resolve(qb.Precision(bits, 8), AnyTask(kind)).learning_rate

    assert rate("regression") == pytest.approx(1.5e-4 * 2 ** (8 - bits))
    assert rate("classification") == 1e-2
    assert rate("regression", preset="paper") == 1e-5
    assert rate("regression", learning_rate=0.5) == 0.5


def test_the_papers_recipe_is_the_papers_for_every_kind() -> None:
    assert find_recipe("paper", "regression") is find_recipe("paper", "classification") is RECIPES["paper"]
    assert RECIPES["paper"].options["equalize"] is False
    assert set(PRESETS) == {name.partition("/")[0] for name in RECIPES}


def test_an_unknown_preset_is_told() -> None:
    with pytest.raises(BadInput, match="preset") as error:
        qb.FineTuning(preset="papr")
    assert "paper" in error.value.do
    with pytest.raises(BadInput, match="preset of quantisation"):
        find_recipe("papr")


def test_a_budget_is_no_fine_tuning() -> None:
    task = blobs()
    with pytest.raises(BadInput, match="must be a FineTuning") as error:
        qb.quantize(fitted(task), task, "W8A8", qb.Budget(epochs=0))  # type: ignore[arg-type]
    assert "qb.FineTuning(epochs=3)" in error.value.do


def test_the_precision_counts_the_fewest_bits() -> None:
    assert qb.Precision(8, 3).fewest_bits == qb.Precision(3, 8).fewest_bits == 3
