"""Tasks: what is learnt, from bundled, downloaded or one's own data."""

from qbayes.tasks.base import Split, Task
from qbayes.tasks.dataset import DATASETS, Dataset
from qbayes.tasks.files.download import data_folder, fetch, verify
from qbayes.tasks.load import TaskLike, load_task, resolve_task

__all__ = [
    "DATASETS",
    "Dataset",
    "Split",
    "Task",
    "TaskLike",
    "data_folder",
    "fetch",
    "load_task",
    "resolve_task",
    "verify",
]
