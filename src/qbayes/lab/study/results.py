"""The results of a study for one's own analysis: a pandas table."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbayes.errors import BadFile, BadInput
from qbayes.lab.study.store.store import Store
from qbayes.lab.study.store.table import is_table, read_table
from qbayes.lab.study.store.tables import columns
from qbayes.metrics.scores import with_numbers

if TYPE_CHECKING:
    import pandas as pd


def results(store: str | Path) -> "pd.DataFrame":
    """The results of a study as a pandas table: one row a run, with the types of the numbers kept.

    Failed runs have a row too; the column ``status`` tells.

    Example:
        >>> import tempfile, qbayes as qb
        >>> run = {"task": "digits", "network": "mlp", "method": "mcd", "training": {"epochs": 1}}
        >>> run["evaluate"] = {"draws": 2, "shifts": False}
        >>> study = qb.Study.from_content({"study": {"name": "small"}, "run": run})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = qb.run_study(study, folder, workers=1, device="cpu")
        ...     qb.results(folder)["status"].tolist()
        ['done']

    Args:
        store: The folder of a study; or a CSV: a study's ``results.csv``, or one that ``qbayes study export``
            wrote.

    Returns:
        A ``pandas.DataFrame``.

    Raises:
        BadInput: pandas is not installed.
        BadFile: The folder is not that of a study, or the CSV is damaged.
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
