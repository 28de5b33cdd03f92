"""What an op from outside is registered with, put back afterwards: other tests count what is there."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from qbayes.export.c.emitters import EMITTERS
from qbayes.export.float_onnx.nodes import WRITERS as FLOAT_WRITERS
from qbayes.integer.backends.c_kernels import MAKERS
from qbayes.integer.onnx.dialect import DIALECTS
from qbayes.integer.onnx.op_context import WRITERS
from qbayes.integer.ops import OPS
from qbayes.quant.graph.capture import CAPTURES
from qbayes.quant.graph.nodes import KINDS


@contextmanager
def kept_registries() -> Iterator[None]:
    """Within this block anything may be registered or removed."""
    assert DIALECTS  # it registers our writers
    registries: list[dict[Any, Any]] = [OPS, KINDS, CAPTURES, EMITTERS, MAKERS, FLOAT_WRITERS]
    with ExitStack() as stack:
        for registry in (*registries, *WRITERS.values()):
            stack.enter_context(patch.dict(registry))
        yield
