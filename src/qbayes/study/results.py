"""The results of a study for one's own analysis: a pandas table."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from qbayes.errors import BadFile, BadInput
from qbayes.metrics.scores import with_numbers
from qbayes.study.store import Store, columns

if TYPE_CHECKING:
    import pandas as pd


def results(store: str | Path) -> "pd.DataFrame":
    """One row a run, as in ``results.csv``, with the types of the numbers kept; failed runs too."""
    if importlib.util.find_spec("pandas") is None:
        raise BadInput(
            "results come as a pandas table", "pandas is not installed", "pip install 'qbayes[report]'"
        )
    import pandas as pd

    held = Store(store)
    if held.header() is None:
        raise BadFile(
            "a store must be the folder of a study", f"{store} has no study.json", "run the study there first"
        )
    rows = [with_numbers(row) for _, row in sorted(held.rows().items())]
    return pd.DataFrame(rows, columns=columns(rows))
