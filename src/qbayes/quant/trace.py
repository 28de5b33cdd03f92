"""A network as a graph: ``torch.fx`` with our stochastic layers and every parametrised layer as leaves.

Tracing runs ``forward`` once with symbols. What it cannot follow (control flow that depends on data) and what
it would freeze without a word (random numbers) is refused here, before any training.
"""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from qbayes.errors import BadInput
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.mask import Mask
from qbayes.posterior.sites import Masked

# rows of the example that shapes are read from; any number of at least 2 would do.
EXAMPLE_ROWS = 3
_PLAIN_FLOW = "write forward without 'if', 'while' or loops that look at the values of a tensor"


class _Tracer(fx.Tracer):
    """Leaves: layers with parameters or buffers of their own, ours, and those of torch."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, Mask | GaussianLayer):
            return True
        if isinstance(m, Masked | nn.Sequential | nn.ModuleList | nn.ModuleDict):
            return False
        return type(m).__module__.startswith("torch.nn")


class Traced:
    """The traced graph and, for every node, the value that it had on the example."""

    def __init__(self, module: fx.GraphModule, values: dict[fx.Node, Any], rows: int) -> None:
        self.module, self.values, self.rows = module, values, rows

    @property
    def nodes(self) -> list[fx.Node]:
        return list(self.module.graph.nodes)

    def is_tensor(self, node: fx.Node) -> bool:
        return isinstance(self.values[node], Tensor)

    def resolved(self, argument: Any) -> Any:
        """An argument with nodes that hold no tensor (sizes and the like) replaced by their values."""
        return fx.node.map_arg(argument, lambda n: n if self.is_tensor(n) else self.values[n])


def trace(network: nn.Module, example: Tensor) -> Traced:
    """The graph of ``network`` in evaluation; ``example`` is a batch of network inputs."""
    frozen = copy.deepcopy(network).eval()
    module = _traced(frozen)
    _refuse_frozen_randomness(module, frozen)
    recorder = _Recorder(module)
    with torch.no_grad():
        try:
            recorder.run(example)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
            raise BadInput(
                "the traced network must run on inputs of the task's shape",
                f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
                "write forward so that it does not depend on the number of rows or on hidden state",
            ) from error
    return Traced(module, recorder.values, len(example))


def _traced(network: nn.Module) -> fx.GraphModule:
    tracer = _Tracer()
    try:
        with torch.no_grad(), _own_functions_refused():
            graph = tracer.trace(network)
    except BadInput:
        raise
    except (fx.proxy.TraceError, TypeError, RuntimeError, ValueError, LookupError, AttributeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise BadInput(
            "forward must be a fixed graph of layers and functions to become integers",
            f"{_where(error)}{type(error).__name__}: {reason}",
            _PLAIN_FLOW,
        ) from None
    return fx.GraphModule(network, graph)


@contextmanager
def _own_functions_refused() -> Iterator[None]:
    """Tracing sees through an autograd function of one's own, and would lose the backward that it defines."""
    before = torch.autograd.Function.__dict__["apply"]

    def refuse(kind: type, *_: object, **__: object) -> None:
        raise BadInput(
            "every step of a network must be expressible in integers",
            f"an autograd function of your own, {kind.__name__}",
            "build it from torch's own functions: its backward would be lost",
        )

    torch.autograd.Function.apply = classmethod(refuse)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.autograd.Function.apply = before


def _where(error: BaseException) -> str:
    """The line of the user's forward that failed, if the traceback shows one."""
    step, found = error.__traceback__, ""
    while step is not None:
        code = step.tb_frame.f_code
        if code.co_name == "forward" and "torch/" not in code.co_filename:
            owner = step.tb_frame.f_locals.get("self")
            found = f"in {type(owner).__name__}.forward, line {step.tb_lineno}: "
        step = step.tb_next
    return found


def _refuse_frozen_randomness(first: fx.GraphModule, network: nn.Module) -> None:
    """Tracing writes ``torch.rand(…)`` into the graph as a constant: a second trace shows other numbers.

    The generators of torch, numpy and Python are watched too: what draws, even unused, is refused.
    """
    before = _generators()
    again = _traced(network)
    after = _generators()
    same = str(first.graph) == str(again.graph) and _constants(first).keys() == _constants(again).keys()
    pairs = zip(_constants(first).values(), _constants(again).values(), strict=False)
    if before != after or not same or not all(torch.equal(a, b) for a, b in pairs):
        raise BadInput(
            "a network must draw no random numbers in forward: tracing would freeze them into constants",
            "two traces of the network differ, or a random generator was used",
            "remove torch.rand and the like, or use nn.Dropout layers, which become sites",
        )
    random_calls = {torch.rand_like, torch.randn_like, torch.bernoulli, torch.randint_like, torch.normal}
    for node in first.graph.nodes:
        if node.op == "call_function" and node.target in random_calls:
            raise BadInput(
                "a network must draw no random numbers in forward",
                f"a call of {node.name}",
                "remove it, or use nn.Dropout layers, which become sites",
            )


def _generators() -> tuple[Any, ...]:
    numbers = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), str(numbers[1].tobytes()), numbers[2]


def _constants(module: fx.GraphModule) -> dict[str, Tensor]:
    """Tensors that tracing itself made part of the graph."""
    names = [node.target for node in module.graph.nodes if node.op == "get_attr"]
    found = {str(name): _attribute(module, str(name)) for name in names}
    return {name: value for name, value in found.items() if "_tensor_constant" in name}


def _attribute(module: nn.Module, path: str) -> Any:
    here: Any = module
    for part in path.split("."):
        here = getattr(here, part)
    return here


class _Recorder(fx.Interpreter):
    """Runs the graph and keeps what every node gave."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.values[n] = result
        return result
