"""The hook of the capture: which layers and functions of a network become nodes of which kind.

``qbayes.quant.graph.convert`` knows torch's own. Whoever adds a kind of nodes says here where it comes from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qbayes.errors import BadInput

# From a layer, or from the arguments of a call behind its activations: the options of the node.
GiveOptions = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Capture:
    """The kind of the nodes that something becomes, and what gives their options."""

    kind: str
    options: GiveOptions


CAPTURES: dict[Any, Capture] = {}


def _no_options(*_: Any, **__: Any) -> Mapping[str, Any]:
    return {}


def capture(what: Any, kind: str, options: GiveOptions = _no_options) -> None:
    """Let a layer, or a call of a function, become a node of a registered kind.

    Args:
        what: the class of a layer, or a function of torch (of one's own: one that ``torch.fx.wrap`` marks).
        kind: the kind of its nodes (``qbayes.quant.graph.nodes.register_kind``).
        options: gives the node's options: from the layer itself, or from the arguments of the call behind
            its activations. By default there are none.

    Example:
        ``capture(nn.ChannelShuffle, "channel_shuffle", lambda layer: {"groups": layer.groups})``
    """
    made = Capture(kind, options)
    if CAPTURES.setdefault(what, made) != made:
        raise BadInput(
            "a layer or function must become one kind of nodes",
            f"{getattr(what, '__name__', what)}: '{CAPTURES[what].kind}' and '{kind}'",
            "capture it once",
        )
