"""How quantisation trains by default: by the kind of task and the bits, and never against what is said."""

import pytest
import torch

import qbayes as qb
from qbayes.errors import BadInput
from qbayes.quant.recipe import PRESETS, QAT_RECIPES, RECIPES_OF_DATA, QatRecipe, qat_recipe


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
    assert (record["optimiser"], record["teacher"], record["equalise"]) == ("adam", 1.0, True)
    assert record["budget"]["learning_rate"] == pytest.approx(1.5e-4 * 2**4)
    # 48 rows are one batch of 64.
    assert record["budget"]["epochs"] == 2000


def test_a_classification_learns_from_labels() -> None:
    task = blobs()
    made = qb.quantize(fitted(task), task, qb.Precision(4, 4), device="cpu", progress=False)
    record = made.provenance["quantised"]
    assert (record["optimiser"], record["teacher"], record["equalise"]) == ("sgd", 0.0, False)
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
    assert (plain["teacher"], own["teacher"]) == (0.0, 1.0)
    assert plain["budget"]["learning_rate"] == 1e-2
    assert own["budget"]["learning_rate"] == pytest.approx(3e-3 * 1.5**4)
    assert qb.qat_budget(task="cifar10") == RECIPES_OF_DATA["default", "cifar10"].settled(8)
    assert qat_recipe("paper", "classification", "cifar10") is QAT_RECIPES["paper"]
    assert qat_recipe("default", "regression", "nobody") is QAT_RECIPES["default/regression"]
    assert qat_recipe("default", "classification", "regression") is QAT_RECIPES["default"]


def test_blended_rows_go_where_labels_come_back() -> None:
    recipe = QatRecipe({"learning_rate": 1e-2}, optimiser="sgd", teacher=1.0, equalise=False, blend=0.5)
    assert recipe.told()["blend"] == 0.5
    told = recipe.told(teacher=0.5)
    assert told == {"optimiser": "sgd", "teacher": 0.5, "equalise": False, "blend": 0.0, "match": False}
    # said by name it stands, and is refused where it is used.
    assert recipe.told(teacher=0.5, blend=0.25)["blend"] == 0.25


def test_sharpness_is_matched_by_those_who_imitate() -> None:
    recipe = RECIPES_OF_DATA["default", "cifar10"]
    assert recipe.told()["match"] is True
    assert recipe.told(teacher=0.5)["match"] is False
    assert recipe.told(teacher=0.0, match=True)["match"] is True
    # a recipe of a data set is for what it was measured on.
    assert qat_recipe("default", "regression", "cifar10") is QAT_RECIPES["default/regression"]


def test_what_is_said_stands() -> None:
    task = line()
    budget = qb.Budget(epochs=1, batch_size=16, learning_rate=1e-3)
    made = qb.quantize(
        fitted(task),
        task,
        qb.Precision(3, 3),
        budget,
        teacher=0.25,
        optimiser="sgd",
        equalise=False,
        device="cpu",
    )
    record = made.provenance["quantised"]
    assert (record["optimiser"], record["teacher"], record["equalise"]) == ("sgd", 0.25, False)
    assert record["budget"] == budget.to_json()


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_rate_doubles_with_every_bit_less(bits: int) -> None:
    assert qb.qat_budget(kind="regression", bits=bits).learning_rate == pytest.approx(
        1.5e-4 * 2 ** (8 - bits)
    )
    assert qb.qat_budget(bits=bits).learning_rate == 1e-2
    assert qb.qat_budget("paper", "regression", bits).learning_rate == 1e-5
    assert qb.qat_budget(kind="regression", bits=bits, learning_rate=0.5).learning_rate == 0.5


def test_the_papers_recipe_is_the_papers_for_every_kind() -> None:
    assert qat_recipe("paper", "regression") is qat_recipe("paper", "classification") is QAT_RECIPES["paper"]
    assert not QAT_RECIPES["paper"].equalise
    assert set(PRESETS) == {name.partition("/")[0] for name in QAT_RECIPES}


def test_an_unknown_preset_is_told() -> None:
    with pytest.raises(BadInput, match="preset of quantisation") as error:
        qat_recipe("papr")
    assert "paper" in error.value.do


def test_the_precision_counts_the_fewest_bits() -> None:
    assert qb.Precision(8, 3).fewest_bits == qb.Precision(3, 8).fewest_bits == 3
