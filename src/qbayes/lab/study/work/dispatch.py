"""The work of a study: one job at a time, in whatever process an executor runs it.

A job is plain JSON. ``float`` jobs train posteriors, alone or as a stack; ``quantised`` jobs fine-tune a
stack of them; ``answers`` jobs take one float posterior to the scores of one precision: quantise (where no
stack did), lower, evaluate. What is done already is not done again.
"""

from collections.abc import Callable, Mapping

import torch

from qbayes.lab.study.store.store import StageDamaged, writing
from qbayes.lab.study.work.evaluation_jobs import Answers
from qbayes.lab.study.work.training_jobs import Floats, Tuned
from qbayes.lab.study.work.worker_context import Job, Workplace

_KINDS: Mapping[str, Callable[[Workplace, Job], Floats | Tuned | Answers]] = {
    "float": Floats,
    "quantised": Tuned,
    "answers": Answers,
}


def perform(at: Workplace, job: Job) -> None:
    """Do a job; a stage that fails is recorded with its reason, and only the disk's trouble is raised.

    And a stage before it that is damaged, after it was set back: the job is for later.
    """
    torch.set_num_threads(job["threads"])
    with writing(at.store.folder):
        try:
            _KINDS[job["kind"]](at, job).do()
        except StageDamaged as damage:
            at.store.set_back(damage.stage, damage.key)
            raise
