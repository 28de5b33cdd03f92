"""qbayes: Bayesian neural networks with honest uncertainty, in float and on integers.

>>> import qbayes as qb
>>> task = qb.load_task("digits")
>>> network = qb.network("lenet", task, style="relu")
>>> posterior = qb.fit(network, task, qb.method("mcd", rate=0.2), qb.Budget(epochs=2), seed=0)
>>> quantized = qb.quantize(posterior, task, qb.Precision(weight=4, activation=4), qb.Budget(epochs=1))
>>> deployed = qb.load(qb.lower(quantized))
>>> scores = qb.evaluate(deployed, task, draws=5)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qbayes.api import (
        Assignment,
        BadFile,
        BadInput,
        BitBudget,
        Budget,
        Interrupted,
        Method,
        NetworkPosterior,
        Posterior,
        Precision,
        Predictive,
        Program,
        ProgramPosterior,
        QbayesError,
        RunFailed,
        Scores,
        Study,
        Task,
        assign_bits,
        attach,
        evaluate,
        fine_tune,
        fit,
        load,
        load_posterior,
        load_task,
        lower,
        method,
        network,
        prepare,
        qat_budget,
        quantize,
        recipe,
        results,
        run_study,
        save_posterior,
    )

__version__ = "0.1.0"
__all__ = [
    "Assignment",
    "BadFile",
    "BadInput",
    "BitBudget",
    "Budget",
    "Interrupted",
    "Method",
    "NetworkPosterior",
    "Posterior",
    "Precision",
    "Predictive",
    "Program",
    "ProgramPosterior",
    "QbayesError",
    "RunFailed",
    "Scores",
    "Study",
    "Task",
    "assign_bits",
    "attach",
    "evaluate",
    "fine_tune",
    "fit",
    "load",
    "load_posterior",
    "load_task",
    "lower",
    "method",
    "network",
    "prepare",
    "qat_budget",
    "quantize",
    "recipe",
    "results",
    "run_study",
    "save_posterior",
]


def __getattr__(name: str) -> Any:
    """Public names on first use: ``qbayes --help`` and Ctrl-C need not wait for torch."""
    if name in __all__:
        return getattr(import_module("qbayes.api"), name)
    raise AttributeError(f"module 'qbayes' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
