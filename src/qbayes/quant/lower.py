"""``lower``: from the fake-quantised network to a program, layer by layer.

Each layer already knows the integers that its op will have; here they are gathered for every member, with the
zero-point and scale of every value, and the result is proven right before anyone sees it.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from qbayes import noise
from qbayes.errors import BadInput
from qbayes.integer.ops import Op, Value
from qbayes.integer.program import Program
from qbayes.integer.proof.verify import verify
from qbayes.integer.structure.program_data import Member
from qbayes.posterior.likelihood import ConstantNoise
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import gaussian_layers
from qbayes.quant.layers.base import Coded, QuantLayer
from qbayes.quant.layers.elementwise import QuantInput
from qbayes.quant.layers.weighted import QuantWeighted
from qbayes.quant.network import QuantNetwork, Step


def lower(posterior: NetworkPosterior) -> Program:
    """The integer program of a quantised posterior: the same inputs, answers in the same units.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> program = qb.lower(qb.quantize(posterior, task, "W4A4", qb.FineTuning(epochs=0)))
        >>> program.input, len(program.members), program.values["hidden.0"].bits
        ('input', 1, 4)

    Args:
        posterior: A quantised posterior, as ``quantize`` gives it.

    Returns:
        The program, proved to be right.

    Raises:
        BadInput: The posterior is not quantised, its members differ in structure, or the proof fails.
    """
    if not isinstance(posterior, NetworkPosterior) or posterior.quantised is None:
        raise BadInput(
            "only a quantised posterior can become a program",
            "a float one" if isinstance(posterior, NetworkPosterior) else type(posterior).__name__,
            "call qb.quantize first (epochs=0 calibrates only)",
        )
    walks = [_Walk(network, posterior.signature.input_shape) for network in posterior.networks]
    first = walks[0]
    for index, walk in enumerate(walks):
        if walk.ops != first.ops or walk.values != first.values:
            raise BadInput(
                "all members must become the same list of operations",
                f"member {index} differs from member 0",
                "quantise the members together: qb.quantize(posterior, …)",
            )
    program = Program(
        values=first.values,
        ops=tuple(first.ops),
        input=first.input,
        outputs=first.outputs,
        members=[walk.member() for walk in walks],
        signature=posterior.signature,
        constant_heads=_constant_heads([walk.constant_heads for walk in walks]),
        precision=posterior.quantised,
        provenance=posterior.provenance,
    )
    verify(program)
    return program


def _constant_heads(members: Sequence[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """The members' numbers in turn, or once where they all have the same."""
    if all(heads == members[0] for heads in members):
        return dict(members[0])
    return {name: [number for heads in members for number in heads[name]] for name in members[0]}


class _Walk:
    """One member's network, walked once on a row of zeros to learn the grid of every value."""

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...]) -> None:
        self.constant_heads: dict[str, list[float]] = {}
        inner = module
        if isinstance(module, ConstantNoise):
            self.constant_heads["log_variance"] = module.log_variance.detach().flatten().tolist()
            inner = module.network
        assert isinstance(inner, QuantNetwork)
        inner.check_ready()
        self.values: dict[str, Value] = {}
        self.grids: dict[str, Coded] = {}
        self.ops: list[Op] = []
        self.constants: dict[str, dict[str, Tensor]] = {}
        self.deviations: dict[str, float] = {}
        self.alias: dict[str, str] = {}
        device = next(value.device for value in inner.state_dict().values())
        row = torch.zeros(1, *input_shape, device=device)
        self.input = inner.steps[0].name
        quantised_input = inner.layer(self.input)
        assert isinstance(quantised_input, QuantInput)
        self._value(self.input, quantised_input.compute(row))
        draw = torch.zeros(1, dtype=torch.int64, device=device)
        weights: dict[int, Tensor] = {}
        for layer in gaussian_layers(inner):
            weights |= {site: drawn[0] for site, drawn in layer.draw_weights(0, draw).items()}
        with torch.no_grad(), noise.streaming(noise.Stream(0, draw[0], 0, weights, 1)):
            inner.run(row, self._lower_step)
        heads = {head: self.alias.get(name, name) for head, name in inner.heads.items()}
        self.outputs = {"mean": heads[""]} if self.constant_heads else heads
        # matched class scores: their codes are worth so much more, and so is the noise that made them.
        for name in set(heads.values()):
            self.grids[name] = self.grids[name].times(inner.sharpness)
            if name in self.deviations:
                self.deviations[name] *= float(inner.sharpness)

    def member(self) -> Member:
        return Member(
            zeros={name: int(grid.zero) for name, grid in self.grids.items()},
            scales={name: float(grid.scale) for name, grid in self.grids.items()},
            constants=self.constants,
            deviations=self.deviations,
        )

    def _value(self, name: str, coded: Coded) -> None:
        self.values[name] = Value(name, tuple(coded.codes.shape[1:]), coded.bits)
        self.grids[name] = coded

    def _lower_step(self, step: Step, layer: QuantLayer, inputs: Sequence[Coded], output: Coded) -> None:
        names = tuple(self.alias.get(name, name) for name in step.inputs)
        op = layer.lower((step.name, names, step.name))
        if op is None:
            self.alias[step.name] = names[0]
            return
        self.ops.append(op)
        found = layer.constants(*inputs)
        self.constants[step.name] = {name: value.detach().cpu() for name, value in found.items()}
        deviation = layer.weights.deviation() if isinstance(layer, QuantWeighted) else None
        if deviation is not None:
            self.deviations[step.name] = deviation
        self._value(step.name, output)
