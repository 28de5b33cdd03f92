"""The networks that fidelity is measured on, and what a fake-quantised network does at each op."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import qbayes as qb
from fine_tuned import tuning
from qbayes import noise
from qbayes.integer.backends.base import choose
from qbayes.integer.compare import OpDistance, Seen, compare_ops, distances, replay
from qbayes.integer.ops import Noise, type_of_codes
from qbayes.posterior.likelihood import ConstantNoise
from qbayes.posterior.sites import gaussian_layers
from qbayes.quant.layers.base import Coded, QuantLayer
from qbayes.quant.layers.movement import QuantDropout
from qbayes.quant.network import QuantNetwork, Step
from zoo.tasks import TASKS, ZOO, trained

# ours, small: name → task and how to make it.
OURS: Mapping[str, tuple[str, Callable[[qb.Task], nn.Module]]] = {
    "mlp": ("friedman", lambda task: qb.network("mlp", task)),
    "lenet_paper": ("digits", lambda task: qb.network("lenet", task)),
    "lenet_relu": ("digits", lambda task: qb.network("lenet", task, style="relu")),
    "resnet8": ("digits", lambda task: qb.network("resnet8", task)),
    "resnet18": ("digits", lambda task: qb.network("resnet18", task, width=8)),
}
NETWORKS = (*ZOO, *OURS)
# σ large enough to be seen beside weights that have learnt for one epoch only.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.2},
    "bbb": {"prior_sigma": 0.3, "kl_weight": 0.1},
    "sghmc": {"members": 2, "every": 1},
}
CODES_APART = 1


def task_of(network: str) -> qb.Task:
    return TASKS[ZOO[network].task if network in ZOO else OURS[network][0]]()


@functools.cache
def float_posterior(network: str, method: str) -> qb.NetworkPosterior:
    """A network of the zoo as it learnt, or one of ours after an epoch."""
    if network in ZOO:
        return trained(network, method)
    return fitted(network, method)


def fitted(network: str, method: str, chains: int = 1, **options: Any) -> qb.NetworkPosterior:
    """A short run of its own; with more chains or other options than those of the zoo."""
    task = task_of(network)
    made = qb.method(method, **{**OPTIONS[method], **options})
    budget = qb.Budget(epochs=2 if method == "sghmc" else 1, batch_size=64, learning_rate=1e-3)
    build = ZOO[network].build if network in ZOO else functools.partial(OURS[network][1], task)
    return qb.fit(build, task, made, budget, seed=0, chains=chains, device="cpu", progress=False)


def quantised(
    posterior: qb.NetworkPosterior,
    network: str,
    precision: qb.Precision,
    epochs: int = 0,
    equalize: bool | None = None,
) -> qb.NetworkPosterior:
    # ranges are set batch by batch: few large ones are quicker.
    # noise on a grid of its own, the paper's, is another than the float network's: nothing to distill.
    how: dict[str, Any] = {} if equalize is None else {"equalize": equalize}
    if precision.gaussian == "single":
        how["distill"] = 0.0
    steps = tuning(epochs=epochs, batch_size=64 if epochs else 512, learning_rate=1e-3, clip=1.0, **how)
    return qb.quantize(posterior, task_of(network), precision, steps, device="cpu", progress=False)


def quant_network(module: nn.Module) -> QuantNetwork:
    inner = module.network if isinstance(module, ConstantNoise) else module
    assert isinstance(inner, QuantNetwork)
    return inner


@torch.no_grad()
def fake_record(posterior: qb.NetworkPosterior, x: Tensor, draws: int, seed: int) -> dict[str, list[Seen]]:
    """What every layer of the fake-quantised networks read and wrote in evaluation, by the name of its op."""
    inputs = posterior.signature.transform.apply(x)
    record: dict[str, list[Seen]] = {}
    for draw in range(draws):
        member = draw % len(posterior.networks)
        network = quant_network(posterior.networks[member])
        ids = torch.tensor([draw])
        weights: dict[int, Tensor] = {}
        for layer in gaussian_layers(network):
            weights |= {site: drawn[0] for site, drawn in layer.draw_weights(seed, ids).items()}
        watch = _watch(record, Noise(seed, ids, 0, len(x)), member)
        with noise.streaming(noise.Stream(seed, ids[0], 0, weights, len(x))):
            network.run(inputs, watch)
    return record


def _watch(record: dict[str, list[Seen]], drawn: Noise, member: int) -> Any:
    def watch(step: Step, layer: QuantLayer, inputs: Sequence[Coded], output: Coded) -> None:
        # a Dropout that no method took is nothing in evaluation, and no op.
        if not isinstance(layer, QuantDropout):
            seen = Seen(tuple(map(_codes, inputs)), _codes(output), drawn, member)
            record.setdefault(step.name, []).append(seen)

    return watch


def _codes(coded: Coded) -> Tensor:
    codes = coded.codes.to(type_of_codes(coded.bits))
    # float lanes hold whole numbers of the declared width, nothing else.
    assert torch.equal(codes.float(), coded.codes)
    assert int(codes.max()) < 1 << coded.bits
    return codes


def fake_against_reference(
    posterior: qb.NetworkPosterior, program: qb.Program, x: Tensor, draws: int, seed: int
) -> list[OpDistance]:
    """Every op of the reference against the layer that it came from, fed the same codes."""
    record = fake_record(posterior, x, draws, seed)
    rows = distances(program, record, replay(program, "reference", record))
    assert [row.op for row in rows] == [op.name for op in program.ops]
    return rows


def strays(rows: Sequence[OpDistance]) -> list[OpDistance]:
    """Ops that are further apart than the limits allow; of less than 1000 codes, one may differ."""
    return [row for row in rows if row.largest > CODES_APART or _differing(row) > max(1, row.codes // 1000)]


def _differing(row: OpDistance) -> int:
    return round((1 - row.share_equal) * row.codes)


def backend_strays(program: qb.Program, x: Tensor, draws: int, seed: int) -> list[OpDistance]:
    """Ops of ``onednn`` that break their promise: to be exact, or to keep to the limits."""
    rows, exact = compare_ops(program, "reference", "onednn", x, draws, seed), exact_ops(program)
    return [row for row in rows if row.op in exact and row.largest > 0] + strays(rows)


def exact_ops(program: qb.Program) -> set[str]:
    """The ops of which ``onednn`` says that their codes are the reference's for every input."""
    members = choose("onednn", program, torch.device("cpu")).kernels
    return {op.name for op in program.ops if all(kernels[op.name].is_exact for kernels in members)}


def rows_apart(
    one: qb.Posterior, other: qb.Posterior, x: Tensor, draws: int, seed: int, by_more_than: float = 0.01
) -> float:
    """Share of rows whose predictive means are further apart: probabilities, or deviations of y."""
    apart = one.predict(x, draws=draws, seed=seed).mean - other.predict(x, draws=draws, seed=seed).mean
    if one.signature.target is not None:
        apart = apart / one.signature.target.std
    return float((apart.abs().flatten(1).amax(1) > by_more_than).double().mean())
