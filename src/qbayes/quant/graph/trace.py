"""A network as a graph: ``torch.fx`` with our stochastic layers and every parametrised layer as leaves.

Tracing runs ``forward`` once with symbols. What it cannot follow (control flow that depends on data) and what
it would freeze without a word (random numbers) is refused here, before any training.
"""

import contextlib
import copy
import inspect
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError

from qbayes.errors import BadInput
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.sites import Mask, Masked
from qbayes.quant.graph.capture import CAPTURES

# rows of the example that shapes are read from; any number of at least 2 would do.
EXAMPLE_ROWS = 3
# while one network is traced, the calls of all modules in all threads go through its tracer.
_ONE_AT_A_TIME = threading.RLock()
# a network that draws does so every time; another thread that draws meanwhile, once or twice.
_ATTEMPTS = 5
_PLAIN_FLOW = "write forward without 'if', 'while' or loops that look at the values of a tensor"


def torch_type(module: nn.Module) -> type[nn.Module]:
    """The layer of torch that ``module`` is: its type, or what it inherits its computation from."""
    kind = type(module)
    base = next(known for known in kind.__mro__ if known.__module__.startswith("torch.nn"))
    inherited = ("forward", "_conv_forward")
    own = any(getattr(kind, name, None) is not getattr(base, name, None) for name in inherited)
    return kind if own else base


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is one step of a graph, and not made of several."""
    if isinstance(module, Mask | GaussianLayer):
        return True
    if isinstance(module, Masked | nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return False
    kind = torch_type(module)
    if kind in CAPTURES:
        return True
    return kind is not nn.Module and kind.__module__.startswith("torch.nn")


class _Tracer(fx.Tracer):
    """Leaves: our stochastic layers, and those of torch with all that only give them another name."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What another thread calls meanwhile is not traced."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)

    def create_proxy(self, kind: str, target: Any, args: Any, *more: Any, **named: Any) -> Any:
        """An optional argument of forward is not given by anyone: it is its default."""
        if kind == "placeholder" and args:
            return args[0]
        return super().create_proxy(kind, target, args, *more, **named)


class Traced:
    """The traced graph and, for every node, the value that it had on the example.

    ``changed[node]`` are the earlier nodes whose value ``node`` changed in place; ``fixed`` are those that do
    not depend on the input.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        values: dict[fx.Node, Any],
        changed: dict[fx.Node, list[fx.Node]],
        rows: int,
    ) -> None:
        self.module, self.values, self.changed, self.rows = module, values, changed, rows
        self.fixed: set[fx.Node] = set()
        for node in self.nodes:
            calls = node.op in ("call_function", "call_method") and bool(node.all_input_nodes)
            if node.op == "get_attr" or (calls and all(n in self.fixed for n in node.all_input_nodes)):
                self.fixed.add(node)

    @property
    def nodes(self) -> list[fx.Node]:
        return list(self.module.graph.nodes)

    def is_tensor(self, node: fx.Node) -> bool:
        return isinstance(self.values[node], Tensor)

    def resolve(self, argument: Any) -> Any:
        """An argument with nodes that hold no tensor (sizes and the like) replaced by their values."""
        return map_arg(argument, lambda n: n if self.is_tensor(n) else self.values[n])


class _Drew(BadInput):
    """Random numbers were drawn: by the network, or meanwhile by another thread."""


def trace(network: nn.Module, example: Tensor) -> Traced:
    """The graph of ``network`` in evaluation; ``example`` is a batch of network inputs."""
    with _ONE_AT_A_TIME:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(_Drew):
                return _trace(network, example.clone())
        return _trace(network, example)


def _trace(network: nn.Module, example: Tensor) -> Traced:
    frozen = _of_one_input(copy.deepcopy(network).eval())
    # a trace leaves the constants that it meets on the network: the next one must not find them.
    module = _run_tracer(copy.deepcopy(frozen))
    before = _state(frozen)
    _refuse_frozen_randomness(module, frozen)
    _refuse_changes(before, _state(frozen))
    recorder = _Recorder(module)
    with torch.no_grad():
        try:
            recorder.run(example)
        except BadInput:
            raise
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
            raise BadInput(
                "the traced network must run on inputs of the task's shape",
                f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
                "write forward so that it does not depend on the number of rows or on hidden state",
            ) from error
    return Traced(module, recorder.values, recorder.changed, len(example))


def _of_one_input(network: nn.Module) -> nn.Module:
    """``network`` (changed in place) with what else ``forward`` takes at its default.

    Tracing would put a symbol there, which is never None: ``if mask is None`` would go the wrong way.
    """
    kind = type(network)
    parameters = list(inspect.signature(network.forward).parameters.values())
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in named[1:] if p.default is p.empty]
    if needed:
        raise BadInput(
            "a network must take one input: the batch of rows",
            f"{kind.__name__}.forward also needs '{needed[0]}'",
            "give it a default, or join the inputs in one tensor and take them apart in forward",
        )
    if len(parameters) > 1 or not named:

        def forward(self: nn.Module, x: Tensor) -> Any:
            return kind.forward(self, x)

        network.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    return network


def _run_tracer(network: nn.Module) -> fx.GraphModule:
    tracer = _Tracer()
    try:
        with torch.no_grad(), _own_functions_refused():
            graph = tracer.trace(network)
    except BadInput:
        raise
    except (TraceError, TypeError, RuntimeError, ValueError, LookupError, AttributeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise BadInput(
            "forward must be a fixed graph of layers and functions to become integers",
            f"{_where(error)}{type(error).__name__}: {reason}",
            _PLAIN_FLOW,
        ) from None
    return fx.GraphModule(network, graph)


@contextlib.contextmanager
def _own_functions_refused() -> Iterator[None]:
    """Tracing sees through an autograd function of one's own, and would lose the backward that it defines."""
    before = torch.autograd.Function.__dict__["apply"]

    def refuse(kind: type, *args: object, **named: object) -> Any:
        if not any(isinstance(value, fx.Proxy) for value in (*args, *named.values())):
            return before.__get__(None, kind)(*args, **named)  # another thread's, or one on constants
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
    again = _run_tracer(network)
    after = _generators()
    same = str(first.graph) == str(again.graph) and _constants(first).keys() == _constants(again).keys()
    pairs = zip(_constants(first).values(), _constants(again).values(), strict=False)
    if before != after or not same or not all(torch.equal(a, b) for a, b in pairs):
        raise _Drew(
            "a network must draw no random numbers in forward: tracing would freeze them into constants",
            "two traces of the network differ, or a random generator was used",
            "remove torch.rand and the like, or use nn.Dropout layers, which become sites",
        )


def _state(network: nn.Module) -> dict[str, tuple[int, int]]:
    """Where every parameter and buffer lies, and how often it was changed in place."""
    return {name: (value.data_ptr(), value._version) for name, value in network.state_dict().items()}


def _refuse_changes(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> None:
    for name, held in before.items():
        if after.get(name) != held:
            raise BadInput(
                "a network must keep no state between calls",
                f"forward changes '{name}'",
                "compute from the input and the weights alone",
            )


def _generators() -> tuple[Any, ...]:
    """The states of torch's, Python's and numpy's generators."""
    cuda = [state.tolist() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else []
    held: Any = np.random.get_state(legacy=False)
    # as bytes: printing them took two thirds of the time to prepare a small network.
    numbers = {key: np.asarray(value).tobytes() for key, value in held["state"].items()}
    gauss = held.get("has_gauss"), held.get("gauss")
    return torch.get_rng_state().numpy().tobytes(), cuda, random.getstate(), numbers, gauss


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
    """Runs the graph and keeps what every node gave, and what it changed in place."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[fx.Node, Any] = {}
        self.changed: dict[fx.Node, list[fx.Node]] = {}

    def run_node(self, n: fx.Node) -> Any:
        before = {node: value._version for node, value in self.values.items() if isinstance(value, Tensor)}
        generators = _generators()
        result = super().run_node(n)
        if _generators() != generators:
            raise _Drew(
                "a network must draw no random numbers in forward",
                f"a call of {n.name}",
                "remove it, or use nn.Dropout layers, which become sites",
            )
        self.changed[n] = [node for node, version in before.items() if self.values[node]._version != version]
        self.values[n] = result
        return result

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().call_module(target, args, kwargs)
        mask = self.fetch_attr(target)
        # without a draw a mask hands its input on; with one it makes a new tensor, as it must be here.
        return result.clone() if isinstance(mask, Mask) and mask.rate > 0 else result
