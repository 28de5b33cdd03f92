"""qbayes: Bayesian neural networks with honest uncertainty, in float and on integers.

>>> import qbayes as qb
>>> task = qb.load_task("digits")
>>> posterior = qb.fit("lenet", task, "mcd", qb.Budget(epochs=2), seed=0)
>>> quantized = qb.quantize(posterior, task, "W4A4", qb.FineTuning(epochs=1))
>>> deployed = qb.load(qb.lower(quantized))
>>> scores = qb.evaluate(deployed, task, draws=5)
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from qbayes.api import *  # noqa: F403  (what is public is listed there)
else:

    def __getattr__(name: str) -> Any:
        """Public names on first use: ``qbayes --help`` and Ctrl-C need not wait for torch."""
        # modules of the package and names that Python probes for are not public names, and must not load
        # torch.
        if name == "__all__" or not (name.startswith("_") or find_spec(f"qbayes.{name}")):
            api = import_module("qbayes.api")
            if name == "__all__" or name in api.__all__:
                return getattr(api, name)
        raise AttributeError(f"module 'qbayes' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*import_module("qbayes.api").__all__, "__version__"]
