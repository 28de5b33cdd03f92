"""The public names: six nouns and the verbs, gathered for ``import qbayes as qb``."""

from pathlib import Path

from torch import nn

from qbayes.errors import BadFile, BadInput, Interrupted, QbayesError, RunFailed
from qbayes.integer.posterior import ProgramPosterior, load
from qbayes.integer.program import Program
from qbayes.lab.study.run import results, run_study
from qbayes.lab.study.spec.study import Study
from qbayes.methods import Method
from qbayes.methods import make_method as method
from qbayes.metrics import Scores, evaluate
from qbayes.networks import REBUILT
from qbayes.posterior.base import Posterior
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.predictive import Predictive
from qbayes.posterior.storage.save import load_posterior as _load_posterior
from qbayes.posterior.storage.save import save_posterior
from qbayes.quant.finetune.control import fine_tune
from qbayes.quant.finetune.fine_tuning import FineTuning
from qbayes.quant.finetune.quantize import quantize
from qbayes.quant.lower import lower
from qbayes.quant.mixed.assign import Assignment, BitBudget, assign_bits
from qbayes.quant.precision import Precision
from qbayes.quant.prepare import prepare, prepare_again
from qbayes.tasks import Task, load_task
from qbayes.training.budget import Budget, recipe
from qbayes.training.checkpoint import Checkpoint
from qbayes.training.fit import attach, fit
from qbayes.training.networks import network

__all__ = [
    "Assignment",
    "BadFile",
    "BadInput",
    "BitBudget",
    "Budget",
    "Checkpoint",
    "FineTuning",
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
    "quantize",
    "recipe",
    "results",
    "run_study",
    "save_posterior",
]


def load_posterior(folder: str | Path, network: nn.Module | None = None) -> NetworkPosterior:
    """Read a saved posterior, float or quantised.

    Nothing in the folder is unpickled or imported.

    Example:
        >>> import tempfile, qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     read = qb.load_posterior(qb.save_posterior(posterior, f"{folder}/mcd"))
        >>> len(read.members), read.signature.task
        (1, 'digits')

    Args:
        folder: The folder that ``save_posterior`` wrote.
        network: For a network of one's own, the plain module of the same structure; its weights do not
            matter. By default one of our networks is built again from what the folder records.

    Returns:
        A posterior, equal to the one that was saved.

    Raises:
        BadFile: A file is missing, damaged, or of another version.
        BadInput: The weights do not fit the network, or a network of one's own was not given.
    """
    return _load_posterior(folder, REBUILT if network is None else network, prepare_again)
