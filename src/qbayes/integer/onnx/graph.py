"""An ONNX graph while it is written: nodes, constants, inputs and outputs, each under a name of its own.

``onnx`` is an extra and is imported here alone, when a graph is made. Tensors are named by strings; every
call that adds a node gives the name of its result. Nodes are called after the op of the program that they
belong to (``scope``), so that a runtime's profile can be read by the layers of the network.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from qbayes.integer.onnx.runtimes import require

OPSET = 18
# The version of the file format that came with the opset: older runtimes refuse newer ones.
IR_VERSION = 8

# An axis that is known when the model runs, by name, or a length.
Axis = str | int


def require_onnx() -> Any:
    """The package ``onnx``, or how to install it."""
    require("onnx")
    import onnx

    return onnx


class Graph:
    """Collects what an ONNX model is made of."""

    def __init__(self) -> None:
        self.onnx = require_onnx()
        self._helper = self.onnx.helper
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._scope = ""
        self._count = 0
        self._serial = 0
        self._outer: Graph | None = None

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes and constants added within are called after ``name``."""
        before, self._scope = self._scope, f"{self._scope}{name}/"
        try:
            yield
        finally:
            self._scope = before

    def input(self, name: str, dtype: Any, shape: Sequence[Axis]) -> str:
        self._inputs.append(self._value(name, dtype, shape))
        return name

    def output(self, tensor: str, name: str, dtype: Any, shape: Sequence[Axis]) -> None:
        """Hand ``tensor`` out under ``name``."""
        if tensor != name:
            self._nodes.append(self._helper.make_node("Identity", [tensor], [name], f"{name}/Identity"))
        self._outputs.append(self._value(name, dtype, shape))

    def constant(self, numbers: Any, dtype: Any = None, name: str = "constant", *, own: bool = False) -> str:
        """A tensor that is part of the model; equal ones are kept once, outside of any loop.

        With ``own`` no other node reads it.
        """
        if self._outer is not None:
            return self._outer.constant(numbers, dtype, name, own=own)
        array = np.ascontiguousarray(_array(numbers, dtype)).reshape(np.shape(numbers))
        key = (array.dtype.str, array.shape, array.tobytes())
        if own or key not in self._known:
            title = self._fresh(name)
            self._constants[title] = self.onnx.numpy_helper.from_array(array, title)
            self._known[key] = title
        return self._known[key]

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one result and give its name."""
        return self.nodes(kind, *inputs, results=1, **attributes)[0]

    def nodes(self, kind: str, *inputs: str, results: int, **attributes: Any) -> list[str]:
        """Add a node with several results."""
        name = self._fresh(kind)
        names = [name] if results == 1 else [f"{name}.{at}" for at in range(results)]
        self._nodes.append(self._helper.make_node(kind, list(inputs), names, name, **attributes))
        return names

    def cast(self, tensor: str, dtype: Any) -> str:
        return self.node("Cast", tensor, to=self.type_of(dtype))

    def whole(self, *numbers: int) -> str:
        """A vector of int64, as shapes, axes and pads are given."""
        return self.constant(np.array(numbers, np.int64), name="shape")

    def serial(self) -> int:
        """A number from 1 on that is given once in the whole model."""
        if self._outer is not None:
            return self._outer.serial()
        self._serial += 1
        return self._serial

    def zeros(self) -> Any:
        """The attribute that fills a tensor with zeros of float32."""
        return self._helper.make_tensor("value", self.type_of(np.float32), [1], [0.0])

    def body(self, name: str, inputs: Sequence[tuple[str, Any, Sequence[Axis]]]) -> "Graph":
        """A graph inside this one, for a loop: it sees this one's tensors, and its constants are here."""
        inner = Graph()
        inner._scope, inner._outer = f"{self._scope}{name}/", self
        for title, dtype, shape in inputs:
            inner.input(title, dtype, shape)
        return inner

    def proto(self, name: str) -> Any:
        """The graph as ONNX writes it."""
        return self._helper.make_graph(
            self._nodes, name, self._inputs, self._outputs, list(self._constants.values())
        )

    def model(self, name: str, doc: str = "", metadata: Mapping[str, str] | None = None) -> Any:
        """The model, which the ONNX checker has accepted with all its shapes."""
        made = self._helper.make_model(
            self.proto(name),
            opset_imports=[self._helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="qbayes",
            doc_string=doc,
        )
        self._helper.set_model_props(made, dict(metadata or {}))
        self.onnx.checker.check_model(made, full_check=True)
        return made

    def type_of(self, dtype: Any) -> int:
        return int(self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def _value(self, name: str, dtype: Any, shape: Sequence[Axis]) -> Any:
        return self._helper.make_tensor_value_info(name, self.type_of(dtype), list(shape))

    def _fresh(self, name: str) -> str:
        self._count += 1
        return f"{self._scope}{name}_{self._count}"


def _array(numbers: Any, dtype: Any) -> np.ndarray:
    array = numbers.cpu().numpy() if isinstance(numbers, Tensor) else np.asarray(numbers)
    return array if dtype is None else array.astype(dtype)
