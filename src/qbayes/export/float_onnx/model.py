"""``float_model``: the ONNX model of a float posterior, its noise drawn inside or given as inputs.

Its inputs, outputs and order of draws are those of ``export.onnx``: ``x`` in raw units, draw d of member
``d mod M``, masks as ``uint8``; but ε is float32, as the float network draws it. ``float_pass`` is one pass
of one member without statistics, the form that other tools quantise and time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qbayes.errors import BadInput
from qbayes.export.float_onnx.draws import FloatDraws, FloatNoiseSite
from qbayes.export.onnx.metadata import HASH, Options, content_hash
from qbayes.export.onnx.noise import ROWS
from qbayes.export.onnx.statistics import Statistics
from qbayes.export.onnx.write import INPUT, hand_out, in_order, of_member
from qbayes.integer.onnx.graph import OPSET, Graph
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.likelihood import LOG_VARIANCE_LIMIT, ConstantNoise
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import Mask
from qbayes.quant.graph import nodes
from qbayes.quant.graph.convert import graph_of
from qbayes.quant.graph.trace import EXAMPLE_ROWS

# What a pass calls the only head of a network.
OUTPUT = "output"


@dataclass(frozen=True, eq=False)
class _Member:
    """One network of the posterior as nodes, with the log-variance that no input reaches, if it has one."""

    graph: nodes.Graph
    log_variance: np.ndarray | None


def float_model(posterior: NetworkPosterior, options: Options | None = None) -> bytes:
    """The model of all members as the bytes of a file; ``options.dialect`` has no meaning in float."""
    options = options or Options()
    _check_float(posterior)
    if "codes" in options.outputs or options.members != "batch":
        raise BadInput(
            "a float model has no codes, and all members in one file",
            f"outputs {', '.join(options.outputs)}, members {options.members}",
            "leave out codes, and members",
        )
    members = _members(posterior)
    sites = _sites(members[0].graph)
    signature = posterior.signature
    g = Graph()
    x = _input(g, posterior)
    given = None
    if options.noise == "inputs":
        given = {s.site: g.input(s.name, s.dtype, s.axes(options.draws)) for s in sites.values()}
    z = _standardise(g, posterior, x)
    parts: list[dict[str, str]] = []
    for at, member in enumerate(members[: options.draws]):
        draws = math.ceil((options.draws - at) / len(members))
        mine = None if given is None else {s: of_member(g, t, at, len(members)) for s, t in given.items()}
        with g.scope(f"member{at}"):
            found = FloatDraws(member.graph, draws, sites, mine).write(g, z)
            parts.append(_heads(g, found, member))
    joined = {head: in_order(g, [part[head] for part in parts], options.draws) for head in parts[0]}
    row = next(iter(members[0].graph.heads.values())).shape
    made = Statistics(g, signature, row, np.float64, options.draws).write(joined, options.outputs)
    hand_out(g, made, row, options.draws)
    return _bytes(g, posterior, options)


def float_pass(posterior: NetworkPosterior, member: int = 0) -> bytes:
    """One draw of one member: raw rows in, the heads of the network out, in network units.

    Masks and weights are drawn inside, anew in every run. A single head goes by the name ``OUTPUT``.
    """
    _check_float(posterior)
    one = _member(posterior, member)
    g = Graph()
    z = _standardise(g, posterior, _input(g, posterior))
    found = FloatDraws(one.graph, 1, _sites(one.graph), None).once(g, z)
    row = next(iter(one.graph.heads.values())).shape
    for name, tensor in _heads(g, found, one).items():
        g.output(tensor, name or OUTPUT, np.float32, (ROWS, *row))
    title = f"qbayes float network of '{posterior.signature.task}', one draw, opset {OPSET}"
    return g.model("network", title).SerializeToString(deterministic=True)


def float_noise_sites(posterior: NetworkPosterior) -> dict[int, FloatNoiseSite]:
    """Every site by its number, with the name and shape of the input that takes its noise."""
    return _sites(_member(posterior, 0).graph)


def _check_float(posterior: NetworkPosterior) -> None:
    if posterior.quantised is not None:
        raise BadInput("a float posterior is needed", "a quantised one", "give the one it was made from")


def _members(posterior: NetworkPosterior) -> list[_Member]:
    return [_member(posterior, index) for index in range(len(posterior.networks))]


def _member(posterior: NetworkPosterior, index: int) -> _Member:
    network: Any = posterior.networks[index]
    fixed = None
    if isinstance(network, ConstantNoise):
        fixed = network.log_variance.detach().cpu().numpy()
        network = network.network
    example = torch.zeros(EXAMPLE_ROWS, *posterior.signature.input_shape, device=posterior.device)
    return _Member(graph_of(network, example), fixed)


def _sites(graph: nodes.Graph) -> dict[int, FloatNoiseSite]:
    found: dict[int, FloatNoiseSite] = {}
    for node in graph.nodes:
        layer = node.module
        if isinstance(layer, Mask):
            known = found.get(layer.site)
            elements = node.shape[0] if layer.channelwise else math.prod(node.shape)
            most = max(elements, *(known.shape if known else (0,)))
            name = known.name if known else f"{node.name}.keep"
            found[layer.site] = FloatNoiseSite(layer.site, name, "mask", (most,), layer.rate)
        elif isinstance(layer, GaussianLayer):
            shape = tuple(layer.weight_mean.shape)
            weight = FloatNoiseSite(layer.site, f"{node.name}.epsilon", "weight", shape)
            found.setdefault(layer.site, weight)
            if layer.bias_site is not None:
                name = f"{node.name}.bias_epsilon"
                bias = FloatNoiseSite(layer.bias_site, name, "bias", shape[:1])
                found.setdefault(layer.bias_site, bias)
    return found


def _input(g: Graph, posterior: NetworkPosterior) -> str:
    return g.input(INPUT, np.float32, (ROWS, *posterior.signature.input_shape))


def _standardise(g: Graph, posterior: NetworkPosterior, x: str) -> str:
    transform = posterior.signature.transform
    along = (-1, *(1,) * (len(posterior.signature.input_shape) - 1))
    mean, std = (t.cpu().numpy().astype(np.float32).reshape(along) for t in (transform.mean, transform.std))
    with g.scope("input"):
        return g.node("Div", g.node("Sub", x, g.constant(mean)), g.constant(std))


def _heads(g: Graph, found: Mapping[str, str], member: _Member) -> dict[str, str]:
    """Logits, or mean and log-variance, as ``posterior.likelihood`` reads them."""
    if member.log_variance is not None:
        (mean,) = found.values()
        nothing = g.node("Mul", mean, g.constant(np.float32(0)))
        spread = g.node("Add", nothing, g.constant(member.log_variance, np.float32))
        found = {"mean": mean, "log_variance": spread}
    heads = dict(found)
    if "log_variance" in heads:
        limit = g.constant(np.float32(LOG_VARIANCE_LIMIT)), g.constant(np.float32(-LOG_VARIANCE_LIMIT))
        heads["log_variance"] = g.node("Clip", heads["log_variance"], limit[1], limit[0])
    return heads


def _bytes(g: Graph, posterior: NetworkPosterior, options: Options) -> bytes:
    title = f"qbayes float posterior of '{posterior.signature.task}', opset {OPSET}"
    entries = {"qbayes.task": posterior.signature.task, "qbayes.noise": options.noise, "qbayes.form": "float"}
    model = g.model("posterior", title, {**entries, "qbayes.draws": str(options.draws)})
    found = content_hash(model)
    model.metadata_props.add(key=HASH, value=found)
    return model.SerializeToString(deterministic=True)
