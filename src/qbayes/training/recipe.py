"""A method and its budget for a task: our measured defaults, or the paper's own values."""

from collections.abc import Mapping
from typing import Any

from qbayes.methods import METHODS, Method, make_method
from qbayes.tasks import Task
from qbayes.training.budget import Budget


def recipe(
    name: str, task: Task, preset: str = "default", *, budget: Mapping[str, Any] | None = None, **options: Any
) -> tuple[Method, Budget]:
    """The method called ``name`` and a budget, as ``preset`` (default or paper) has them for ``task``.

    ``options`` replace the method's and ``budget`` the budget's: ``qb.recipe("mcd", task, rate=0.1)``.
    """
    values = METHODS[name].preset(preset, task.name, task.kind)
    training = Budget.from_options(values.budget, **(budget or {}))
    return make_method(name, **{**values.method, **options}), training.for_rows(task.train_rows)
