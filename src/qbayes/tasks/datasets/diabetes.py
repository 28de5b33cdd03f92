"""Diabetes: 442 patients, 10 measurements and the progression after a year (Efron et al., 2004).

Bundled with scikit-learn; read in the units of measurement.
"""

from pathlib import Path

from qbayes.tasks.base import Task, split_rows
from qbayes.tasks.dataset import DATASETS, Dataset
from qbayes.tasks.files.download import table_of_scikit_learn


def load(data: Path, variant: str, *, split: int = 0, validation: float = 0.0, seed: int = 0) -> Task:
    x, y = table_of_scikit_learn("diabetes_data_raw"), table_of_scikit_learn("diabetes_target")
    train, test = split_rows(len(x), split)
    return Task.from_arrays(
        x[train],
        y[train],
        x[test],
        y[test],
        kind="regression",
        validation=validation,
        seed=seed,
        labels=["progression"],
        name="diabetes",
    )


DIABETES = DATASETS.register("diabetes")(
    Dataset(
        name="diabetes",
        summary="442 patients, 10 features, disease progression; nothing to download",
        kind="regression",
        terms="public, with scikit-learn",
        load=load,
    )
)
