"""The results of a study for one's own analysis: a pandas table."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbayes.errors import BadFile, BadInput
from qbayes.lab.study.store.store import Store
from qbayes.lab.study.store.table import columns, is_table, read_table
from qbayes.metrics.scores import with_numbers

if TYPE_CHECKING:
    import pandas as pd


def results(store: str | Path) -> "pd.DataFrame":
    """One row a run, with the types of the numbers kept; failed runs too.

    ``store`` is the folder of a study, or a CSV: a study's ``results.csv``, or one that
    ``qbayes study export`` wrote.
    """
    if importlib.util.find_spec("pandas") is None:
        raise BadInput(
            "results come as a pandas table", "pandas is not installed", "pip install 'qbayes[report]'"
        )
    import pandas as pd

    rows = _rows(Path(store))
    return pd.DataFrame(rows, columns=columns(rows))


def _rows(store: Path) -> list[dict[str, Any]]:
    if is_table(store):
        return list(read_table(store).rows)
    held = Store(store)
    if held.header() is None:
        raise BadFile(
            "a store must be the folder of a study", f"{store} has no study.json", "run the study there first"
        )
    return [with_numbers(row) for _, row in sorted(held.rows().items())]
