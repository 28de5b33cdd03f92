"""Diabetes: 442 patients, 10 measurements and the progression after a year (Efron et al., 2004).

Bundled with scikit-learn; read in the units of measurement.
"""

from pathlib import Path

from qbayes.tasks.base import Task, fixed_split
from qbayes.tasks.dataset import DATASETS, Dataset
from qbayes.tasks.files.download import bundled_table


def load(data: Path, variant: str, *, split: int = 0, validation: float = 0.0, seed: int = 0) -> Task:
    x, y = bundled_table("diabetes_data_raw"), bundled_table("diabetes_target")
    train, test = fixed_split(len(x), split)
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
