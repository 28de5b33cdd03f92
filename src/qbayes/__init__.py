"""qbayes: Bayesian neural networks with honest uncertainty, in float and (next) on integers.

>>> import qbayes as qb
>>> task = qb.load_task("digits")
>>> network = qb.network("lenet", task, style="relu")
>>> posterior = qb.fit(network, task, qb.method("mcd", rate=0.2), qb.Budget(epochs=2), seed=0)
>>> scores = qb.evaluate(posterior, task, draws=5)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qbayes.api import (
        BadFile,
        BadInput,
        Budget,
        Interrupted,
        Method,
        NetworkPosterior,
        Posterior,
        Predictive,
        QbayesError,
        RunFailed,
        Scores,
        Task,
        attach,
        evaluate,
        fit,
        load_posterior,
        load_task,
        method,
        network,
        recipe,
        save_posterior,
    )

__version__ = "0.1.0"
__all__ = [
    "BadFile",
    "BadInput",
    "Budget",
    "Interrupted",
    "Method",
    "NetworkPosterior",
    "Posterior",
    "Predictive",
    "QbayesError",
    "RunFailed",
    "Scores",
    "Task",
    "attach",
    "evaluate",
    "fit",
    "load_posterior",
    "load_task",
    "method",
    "network",
    "recipe",
    "save_posterior",
]


def __getattr__(name: str) -> Any:
    """Public names on first use: ``qbayes --help`` and Ctrl-C need not wait for torch."""
    if name in __all__:
        return getattr(import_module("qbayes.api"), name)
    raise AttributeError(f"module 'qbayes' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
