"""What writes each op as C. The target can express the ops that have an emitter here, and no others."""

from collections.abc import Callable
from typing import Any

from qbayes.export.base import refuse_op
from qbayes.export.c.walk import Context
from qbayes.integer.ops import Op

# The C statements that run the op; its constants go to ``Context.data``.
Emit = Callable[[Any, Context], list[str]]
EMITTERS: dict[type[Op], Emit] = {}


def emits(*ops: type[Op]) -> Callable[[Emit], Emit]:
    """Register a function as what writes these ops."""

    def register(emit: Emit) -> Emit:
        EMITTERS.update(dict.fromkeys(ops, emit))
        return emit

    return register


def emit(op: Op, context: Context) -> list[str]:
    """The C statements that run the op."""
    if type(op) not in EMITTERS:
        raise refuse_op(op, "c")
    return EMITTERS[type(op)](op, context)
