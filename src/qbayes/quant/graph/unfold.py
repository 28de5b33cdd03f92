r"""The way back: from a folded network without quantisers to the float network that it was made of.

Folding (``qbayes.quant.graph.fold``) puts a BatchNorm into the layer before it, :math:`w \leftarrow g w` and
:math:`b \leftarrow g b + \beta - g m`. What was trained in that form is given back to a network of the old
structure: the layer has the folded weights, and its norm, with :math:`m = 0` and
:math:`v = 1 - \epsilon`, has the gain ±1 and the folded bias. Behind Gaussian weights the gain keeps the
sign of :math:`g`, so that a draw is the same draw. The function is the same up to the rounding of float32.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes.errors import BadInput
from qbayes.networks.base import run_example
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.likelihood import ConstantNoise
from qbayes.posterior.sites import Masked
from qbayes.quant.graph.convert import Traces
from qbayes.quant.graph.fold import fold
from qbayes.quant.graph.nodes import Graph
from qbayes.quant.graph.trace import EXAMPLE_ROWS, is_leaf
from qbayes.quant.layers.base import broadcast_vector
from qbayes.quant.layers.elementwise import QuantAffine
from qbayes.quant.layers.gaussian import GaussianWeights, rho_of
from qbayes.quant.layers.weighted import QuantWeighted
from qbayes.quant.network import QuantNetwork

# of the size of the outputs: rounding in float32 stays far below, a wrong place of a weight lies far above.
_LARGEST_ERROR = 1e-4
Shape = tuple[int, ...]
Find = Callable[[nn.Module | None], Any]


@torch.no_grad()
def unfold_network(network: nn.Module, module: nn.Module, input_shape: Shape, traces: Traces) -> nn.Module:
    """A copy of ``network`` that computes what ``module``, made from one like it, does without quantisers.

    Args:
        network: The float network, with its sites.
        module: What ``prepare_module`` made of such a network, in any state.
        input_shape: Of one row.
        traces: Remembers the graph for the next network of the same structure.
    """
    made = copy.deepcopy(network)
    if isinstance(made, ConstantNoise):
        assert isinstance(module, ConstantNoise)
        made.tenth_log_variance.data.copy_(module.tenth_log_variance)
        inner, quantised = made.network, module.network
    else:
        inner, quantised = made, module
    assert isinstance(quantised, QuantNetwork)
    graph, own = _graph(inner, input_shape, traces)
    norms = {node.name: node.module for node in graph.nodes if node.kind == "norm"}
    for node in fold(graph).nodes:
        layer = quantised.layer(node.name)
        if isinstance(layer, QuantWeighted):
            norm = node.options.get("norm")
            _give(layer.weights, own(node.module), None if norm is None else own(norms[norm]))
        elif isinstance(layer, QuantAffine):
            # of constants an affine map is made where the trace froze them: ``_graph`` refuses such networks.
            _settle_norm(own(norms[node.name]), layer.gain, layer.offset)
    _check_same(inner, quantised, input_shape)
    return made


@torch.no_grad()
def sharpen(network: nn.Module, factor: float, input_shape: Shape, traces: Traces) -> None:
    """Multiply the answers of a float network, in place: the weights of what gives them."""
    inner = network.network if isinstance(network, ConstantNoise) else network
    graph, own = _graph(inner, input_shape, traces)
    for name, node in graph.heads.items():
        alone = sum(other.module is node.module for other in graph.nodes) == 1
        if node.kind not in ("weighted", "norm") or not alone or graph.users(node):
            raise BadInput(
                "class scores must come from a layer that nothing else reads, to be made as sharp as wanted",
                f"a node of kind '{node.kind}' as the head '{name}'",
                "give match_temperature=False, to the quantised posteriors beside it too",
            )
        layer = own(node.module)
        if isinstance(layer, GaussianLayer):
            for mean, rho in layer.gaussians:
                mean.mul_(factor)
                rho.copy_(rho_of(F.softplus(rho) * factor))
            if layer.bias_mean is not None and layer.bias_rho is None:
                layer.bias_mean.mul_(factor)
            continue
        for part in (layer.weight, layer.bias):
            if part is not None:
                part.mul_(factor)


def _graph(network: nn.Module, input_shape: Shape, traces: Traces) -> tuple[Graph, Find]:
    """The graph of ``network``, and what finds its own module for one of the graph's."""
    device = next((value.device for value in network.state_dict().values()), torch.device("cpu"))
    graph = traces.graph(network, torch.zeros(EXAMPLE_ROWS, *input_shape, device=device))
    if graph.source is None:
        raise _cannot("numbers of the network's own outside of its layers")
    # a layer that is a network was traced with something around it.
    alone = is_leaf(network) or isinstance(network, Masked)
    root = nn.Sequential(OrderedDict(network=network)) if alone else network
    names = {id(part): name for name, part in graph.source.named_modules()}

    def own(part: nn.Module | None) -> Any:
        return root.get_submodule(names[id(part)])

    return graph, own


def _give(weights: Any, layer: Any, norm: Any) -> None:
    """The folded weights to their layer, and the folded bias to it or to its norm."""
    bias: Tensor | None
    if isinstance(weights, GaussianWeights):
        sign = broadcast_vector(weights.sign, weights.weight_mean.ndim, 0)
        layer.weight_mean.copy_(weights.weight_mean * (sign if norm is not None else 1))
        layer.weight_rho.copy_(weights.weight_rho)
        if layer.bias_rho is not None:
            layer.bias_rho.copy_(weights.bias_rho)
        of_layer, bias, gain = layer.bias_mean, weights.bias_mean, weights.sign
    else:
        layer.weight.copy_(weights.weight)
        of_layer, bias, gain = layer.bias, weights.bias, torch.ones(len(weights.weight))
    if norm is not None:
        assert bias is not None
        _settle_norm(norm, gain, bias)
    if of_layer is not None:
        assert bias is not None
        of_layer.copy_(bias if norm is None else torch.zeros_like(of_layer))


def _settle_norm(norm: Any, gain: Tensor, offset: Tensor) -> None:
    """``y = gain x + offset`` in evaluation."""
    if norm.weight is None or norm.bias is None:
        raise _cannot("a BatchNorm without weights of its own (affine=False)")
    norm.running_mean.zero_()
    norm.running_var.fill_(1.0 - norm.eps)
    norm.weight.copy_(gain)
    norm.bias.copy_(offset)


def _check_same(network: nn.Module, quantised: QuantNetwork, input_shape: Shape) -> None:
    """Raise unless both compute the same, on a CPU: a GPU may round products to fewer digits than that."""
    x = torch.randn(EXAMPLE_ROWS, *input_shape, generator=torch.Generator().manual_seed(0))
    ours, theirs = copy.deepcopy(network).cpu().eval(), copy.deepcopy(quantised).cpu()
    got, wanted = run_example(ours, x.clone()), theirs.without_rounding(x)
    for head in quantised.heads:
        one = got[head] if isinstance(got, dict) else got
        other = wanted[head] if isinstance(wanted, dict) else wanted
        apart, size = (one - other).square().mean().sqrt(), other.square().mean().sqrt()
        # what is not finite was trained so: it is refused where it is.
        if bool(torch.isfinite(size)) and not bool(apart <= _LARGEST_ERROR * (size + 1)):
            raise _cannot(f"the head '{head}', which comes out otherwise: a layer or norm serves two places")


def _cannot(got: str) -> BadInput:
    return BadInput(
        "what is fine-tuned in float must lie in layers with weights and their BatchNorms",
        got,
        "build the network from such layers, or go without the fine-tuned float posterior",
    )
