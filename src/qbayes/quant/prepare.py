"""From a float network to a fake-quantised one: trace, fold, and put a quantiser behind every computation."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.networks.base import run_example
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.likelihood import ConstantNoise
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.signature import Signature
from qbayes.quant.graph.bit_widths import WIDE_HEADROOM, WIDE_RULE, Widened, input_bits, output_bits, widen
from qbayes.quant.graph.convert import Traces
from qbayes.quant.graph.fold import fold, fold_bias, fold_weight
from qbayes.quant.graph.kinds import limits_of
from qbayes.quant.graph.nodes import NARROW, Graph, Node
from qbayes.quant.graph.trace import EXAMPLE_ROWS
from qbayes.quant.layers.base import QuantLayer
from qbayes.quant.layers.gaussian import GaussianWeights
from qbayes.quant.layers.single_grid import SingleGridWeights
from qbayes.quant.layers.weighted import Geometry, PointWeights, QuantWeighted
from qbayes.quant.network import QuantNetwork, Step
from qbayes.quant.observers import QUANTIZERS
from qbayes.quant.precision import Precision
from qbayes.quant.quantizer import Quantizer

# rounding in float32 stays far below; a wrong graph lies far above.
_LARGEST_ERROR, _LEAST_ERROR = 1e-2, 1e-6


def prepare(posterior: NetworkPosterior, precision: Precision, member: int = 0) -> nn.Module:
    """The fake-quantised network of one member, for people with a training loop of their own.

    Training mode simulates quantisation (the first batch sets the ranges, or calibrate on some); evaluation
    mode computes on codes. ``qb.quantize`` does all this with our loop.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> network = qb.prepare(posterior, qb.Precision(weight=4, activation=4))
        >>> tuple(network(task.example(rows=8)).shape)
        (8, 10)

    Args:
        posterior: A float posterior; it stays as it is.
        precision: The bits and the grids.
        member: Index of the member; the first by default.

    Returns:
        A module in training mode that reads network inputs.

    Raises:
        BadInput: The posterior is not float, there is no such member, or the network cannot become integers.
    """
    if not isinstance(posterior, NetworkPosterior):
        raise BadInput(
            "a float posterior is needed", type(posterior).__name__, "give what qb.fit or load_posterior gave"
        )
    if not 0 <= member < len(posterior.networks):
        count = len(posterior.networks)
        raise BadInput(f"the member must be 0 … {count - 1}", f"{member}", "choose one of the members")
    signature = posterior.signature
    settled = precision.for_likelihood(signature.likelihood)
    return prepare_module(posterior.networks[member], signature.input_shape, settled)


def prepare_module(
    network: nn.Module, input_shape: tuple[int, ...], precision: Precision, traces: Traces | None = None
) -> nn.Module:
    """As ``prepare``, for a module; a constant noise stays around it in float, as part of the likelihood.

    What the likelihood decides of the precision (``Precision.for_likelihood``) is the caller's to settle.
    ``traces`` remembers the graph for the next network of the same structure.
    """
    if isinstance(network, ConstantNoise):
        inner = quant_network(network.network, input_shape, precision, traces)
        wrapped = ConstantNoise(inner, tuple(network.tenth_log_variance.shape))
        wrapped.tenth_log_variance.data.copy_(network.tenth_log_variance)
        return wrapped.to(network.tenth_log_variance.device)
    return quant_network(network, input_shape, precision, traces)


def prepare_again(network: nn.Module, signature: Signature, precision: Mapping[str, Any]) -> nn.Module:
    """The fake-quantised structure of a saved posterior, into which its state is then read."""
    settled = Precision.from_json(precision).for_likelihood(signature.likelihood)
    return prepare_module(network, signature.input_shape, settled).eval()


def quant_network(
    network: nn.Module, input_shape: tuple[int, ...], precision: Precision, traces: Traces | None = None
) -> QuantNetwork:
    device = next((value.device for value in network.state_dict().values()), torch.device("cpu"))
    example = torch.zeros(EXAMPLE_ROWS, *input_shape, device=device)
    graph = fold((Traces() if traces is None else traces).graph(network, example))
    if precision.mask == "product":
        _quantise_masks(graph)
    if not any(node.traits.becomes_op for node in graph.nodes):
        raise BadInput(
            "a network must compute something to become integers",
            f"{type(network).__name__}, which computes nothing",
            "give a network with layers between its input and its output",
        )
    wide = widen(graph, precision)
    named = [node.layer for node in graph.nodes if node.traits.computes]
    precision.check_overrides([*named, *wide.layers])
    built = Builder(graph, precision, wide).build().to(device)
    _check_same(network, built, input_shape, device)
    return built


@torch.no_grad()
def _check_same(
    network: nn.Module, built: QuantNetwork, input_shape: tuple[int, ...], device: torch.device
) -> None:
    """Raise unless what was built computes, before any rounding, what the network does.

    On another number of rows than it was traced with: a network that counts its rows shows itself here.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLE_ROWS - 1, *input_shape, generator=generator).to(device)
    wanted, got = run_example(copy.deepcopy(network).eval(), x.clone()), built.without_rounding(x)
    for head in built.heads:
        one = wanted[head] if isinstance(wanted, dict) else wanted
        other = got[head] if isinstance(got, dict) else got
        _check_head(head, one.float(), other)


def _check_head(head: str, wanted: Tensor, got: Tensor) -> None:
    size = wanted.square().mean().sqrt()
    right = wanted.shape == got.shape
    # a function with a jump may fall to either side of it, here and there: hence a mean, not the worst.
    if right and bool(torch.isfinite(size)):
        right = bool((got - wanted).square().mean().sqrt() <= _LARGEST_ERROR * size + _LEAST_ERROR)
    if not right:
        raise BadInput(
            "a network must do the same to every row, whatever the number of rows, and keep no state",
            f"the head '{head}' gives other numbers than its traced graph",
            "write forward so that it uses layers and functions on whole batches only",
        )


def _quantise_masks(graph: Graph) -> None:
    """The paper's mask product: a quantiser behind every mask."""
    for node in [node for node in graph.nodes if node.kind == "mask"]:
        readers = graph.users(node)
        product = Node("product", f"{node.name}.product", [node], node.shape)
        for reader in readers:
            reader.inputs = [product if source is node else source for source in reader.inputs]
        graph.heads = {name: product if head is node else head for name, head in graph.heads.items()}
        graph.nodes.insert(graph.nodes.index(node) + 1, product)


class Builder:
    """Makes the layer of each node."""

    def __init__(self, graph: Graph, precision: Precision, wide: Widened) -> None:
        self.graph, self.precision, self.wide = graph, precision, wide
        self.answers = graph.producers(graph.heads.values())
        self.weights: dict[int, nn.Module] = {}

    def build(self) -> QuantNetwork:
        nodes = self.graph.nodes
        steps = [Step(node.name, tuple(source.name for source in node.inputs)) for node in nodes]
        layers = [self.layer(node) for node in nodes]
        heads = {head: node.name for head, node in self.graph.heads.items()}
        return QuantNetwork(steps, layers, heads)

    def layer(self, node: Node) -> QuantLayer:
        """The fake-quantised layer of a node."""
        make = node.traits.make
        assert make is not None, f"folding leaves no node of kind {node.kind}"
        return make(self, node)

    def out(self, node: Node) -> Quantizer:
        """The quantiser of a node's output."""
        at = self.precision.for_layer(node.layer)
        if node.kind == NARROW:
            at = self.precision.for_narrow(node.options["of"], node.layer)
        bits = self.wide.bits.get(id(node), at.activation)
        # the ends have bits of their own, but what is said of a layer by name comes first.
        if not self.precision.overrides_bits(node.layer, "activation"):
            if id(node) in self.answers:
                bits = output_bits(self.graph, node, self.precision)
            if node.kind == "input":
                bits = input_bits(self.graph, node, self.precision)
        # the input's range is that of the data: there is nothing to trade by moving it.
        learn = node.kind != "input"
        symmetric = at.activation_scheme == "symmetric"
        rule, headroom = at.activation_range, 0.0
        if bits > MOST_BITS:
            rule, headroom = WIDE_RULE if QUANTIZERS[rule].learned else rule, WIDE_HEADROOM
        return Quantizer(bits, rule=rule, signed=False, symmetric=symmetric, learn=learn, headroom=headroom)

    def weight_quantizer(self, at: Precision, channels: int) -> Quantizer:
        return Quantizer(
            at.weight,
            rule=at.weight_range,
            signed=True,
            symmetric=at.weight_scheme == "symmetric",
            channels=channels if at.granularity == "channel" else None,
        )

    def weighted_layer(self, node: Node) -> QuantLayer:
        module = node.module
        assert module is not None
        if id(module) not in self.weights:
            _check_finite(node.layer, module)
            make = self._gaussian if isinstance(module, GaussianLayer) else self._point
            self.weights[id(module)] = make(node, module)
        return QuantWeighted(self.weights[id(module)], self.out(node), limits_of(node))

    def _point(self, node: Node, module: Any) -> PointWeights:
        gain, shift = node.options.get("gain"), node.options.get("shift")
        weight = fold_weight(module.weight.detach(), gain)
        bias: Tensor | None = None
        if module.bias is not None or gain is not None:
            bias = fold_bias(module.bias, gain, shift, len(weight))
        quantizer = self.weight_quantizer(self.precision.for_layer(node.layer), len(weight))
        return PointWeights(weight, bias, quantizer, Geometry.of(node.options["geometry"]))

    def _gaussian(self, node: Node, module: Any) -> GaussianWeights:
        at = self.precision.for_layer(node.layer)
        gain, shift = node.options.get("gain"), node.options.get("shift")
        channels = len(module.weight_mean)
        bias: Tensor | None = None
        if module.bias_mean is not None or gain is not None:
            bias = fold_bias(module.bias_mean, gain, shift, channels)
        quantizer = self.weight_quantizer(at, channels)
        sigma = Quantizer(
            at.sigma_bits,
            rule="minmax",
            signed=False,
            symmetric=True,
            channels=channels if at.granularity == "channel" else None,
            weight=True,
        )
        geometry = Geometry.of(node.options["geometry"])
        if at.gaussian == "keep":
            self._check_keeping(node, at)
            return GaussianWeights(
                module, gain, bias, quantizer, sigma, at.noise, geometry, train_sigma=False
            )
        self._check_single(node, at)
        product, sample = (
            Quantizer(at.weight, rule=at.weight_range, signed=True, symmetric=symmetric, weight=False)
            for symmetric in (True, False)
        )
        return SingleGridWeights(module, gain, bias, quantizer, sigma, product, sample, at.noise, geometry)

    def _check_keeping(self, node: Node, at: Precision) -> None:
        if at.weight_scheme != "symmetric":
            raise BadInput(
                "Gaussian weights that keep their noise are symmetric about 0",
                f"weight_scheme='{at.weight_scheme}' at '{node.name}'",
                "use weight_scheme='symmetric', or gaussian='single', the paper's grid",
            )

    def _check_single(self, node: Node, at: Precision) -> None:
        if at.granularity != "tensor" or at.weight_scheme != "affine":
            raise BadInput(
                "the paper's single grid has one affine scale a tensor",
                f"granularity='{at.granularity}', weight_scheme='{at.weight_scheme}' at '{node.name}'",
                "use granularity='tensor' and weight_scheme='affine', or gaussian='keep'",
            )


def _check_finite(name: str, module: nn.Module) -> None:
    for parameter, value in module.state_dict().items():
        if not bool(torch.isfinite(value).all()):
            raise BadInput(
                "the weights to quantise must be finite numbers",
                f"NaN or infinity in {parameter} of '{name}'",
                "fit the network again with a lower learning rate, or leave this member out",
            )
