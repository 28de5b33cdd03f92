"""Fine-tuning for tests: steps that no recipe chooses, and options among other arguments."""

import dataclasses
from typing import Any

import qbayes as qb
from qbayes.options import options_of
from qbayes.quant.finetune.job import QuantizeJob


def tuning(**options: Any) -> qb.FineTuning:
    """Steps as ``Budget`` has them where they are not given; what a budget has not is for the recipe."""
    plain = {name: 0 if value is None else value for name, value in qb.Budget().to_json().items()}
    return qb.FineTuning(**{**plain, **options})


def with_options(base: qb.FineTuning, more: dict[str, Any]) -> qb.FineTuning:
    """The same with those of ``more`` that are options, which are taken out of it."""
    given = {name: more.pop(name) for name in options_of(qb.FineTuning) if name in more}
    return dataclasses.replace(base, **given)


def plain_job(
    posterior: qb.NetworkPosterior,
    task: qb.Task,
    precision: qb.Precision,
    base: qb.FineTuning,
    seed: int = 0,
    **more: Any,
) -> QuantizeJob:
    """A job that learns from labels by SGD where ``more`` says nothing else, whatever the task's recipe."""
    plain = {"distill": 0.0, "optimizer": "sgd", "equalize": False, "match_temperature": False, "mixup": 0.0}
    options = {**plain, **more}
    chosen = with_options(base, options)
    return QuantizeJob(posterior, task, precision, chosen, seed, **options)
