"""The network of a section, made for a task."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from qbayes.errors import BadInput
from qbayes.lab.study.plan.tasks import Facts
from qbayes.lab.study.spec.sections import named
from qbayes.networks import build_network, is_own
from qbayes.posterior.storage.outline import within
from qbayes.tasks import Task
from qbayes.training.networks import network

# parameters, buffers and modules of a network; bytes of its weights.
_MOST_PARTS, _MOST_BYTES = 3_000, 1 << 33


def make_network(section: Any, task: Task) -> nn.Module:
    name, options = _named(section)
    return network(name, task, **options)


def check_network(section: Any, facts: Facts) -> None:
    """Raise unless a network of ours can be made for such a task: on ``meta``, where it takes no memory."""
    name, options = _named(section)
    if is_own(name):
        return
    try:
        with within(_MOST_PARTS, _MOST_BYTES), torch.device("meta"):
            build_network(name, facts.input_shape, facts.outputs, facts.kind, **options)
    except BadInput:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise BadInput(
            f"the network '{name}' must be one that can be made",
            f"{type(error).__name__}: {reason}",
            "mend its options",
        ) from None


def _named(section: Any) -> tuple[str, Mapping[str, Any]]:
    name, options = named(section, "network", "lenet")
    return name, {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
