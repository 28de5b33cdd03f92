"""What is measured: the paper's networks with random weights, as float posteriors and as integer programs.

Time does not depend on what a network has learnt, but it does on the ranges: so batch norms see random rows
once, and the grids are calibrated on them. Ranges are those of the data (minmax), which are found fastest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qbayes.errors import unknown_name
from qbayes.integer.ops import Weighted
from qbayes.integer.program import Program
from qbayes.integer.structure.program_data import Member
from qbayes.methods import make_method
from qbayes.networks import Architecture
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import gaussian_layers
from qbayes.quant.finetune.fine_tuning import FineTuning
from qbayes.quant.finetune.quantize import quantize
from qbayes.quant.lower import lower
from qbayes.quant.precision import Precision
from qbayes.tasks import Task
from qbayes.training.fit import attach

METHODS = ("pointwise", "mcd", "bbb", "sghmc")
MEMBERS = 20
CALIBRATION_ROWS = 32  # random rows that set the statistics of batch norms, and the ranges
_CLASSES = 10
# σ over the root mean square of a layer's weights: what training leaves, about; the noise survives 8 bits.
_SIGMA_SHARE = 0.1


class NetworkChoice(Architecture):
    """A registered network for rows of one shape, and such rows."""

    def rows(self, count: int, seed: int = 0) -> Tensor:
        """Raw inputs: pixels from 0 to 255, or standard normal features."""
        generator = torch.Generator().manual_seed(seed)
        if len(self.input_shape) > 1:
            return torch.randint(0, 256, (count, *self.input_shape), generator=generator, dtype=torch.uint8)
        return torch.randn(count, *self.input_shape, generator=generator)

    def task(self) -> Task:
        numbers = torch.arange(CALIBRATION_ROWS)
        y = numbers % _CLASSES if self.kind == "classification" else numbers.float()
        return Task.from_arrays(self.rows(CALIBRATION_ROWS), y, kind=self.kind, name="random rows")


NETWORKS: Mapping[str, NetworkChoice] = {
    "mlp": NetworkChoice("mlp", (13,), (1,), "regression"),
    "lenet": NetworkChoice("lenet", (1, 28, 28), (_CLASSES,), options={"style": "relu"}),
    "resnet8": NetworkChoice("resnet8", (3, 32, 32), (_CLASSES,)),
    "resnet18-slim": NetworkChoice("resnet18", (3, 32, 32), (_CLASSES,), options={"width": "slim"}),
    "resnet18-standard": NetworkChoice("resnet18", (3, 32, 32), (_CLASSES,), options={"width": "standard"}),
}


def network_choice(name: str) -> NetworkChoice:
    if name not in NETWORKS:
        raise unknown_name("network of the benchmark", name, NETWORKS)
    return NETWORKS[name]


@dataclass(frozen=True, eq=False)
class Subject:
    """One network by one method: the float posterior and the program made from it."""

    network: NetworkChoice
    method: str
    posterior: NetworkPosterior
    program: Program


def make_subject(network: str, method: str, precision: Precision, members: int = MEMBERS) -> Subject:
    """The posterior and its program; ``members`` counts only for sghmc."""
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    choice = network_choice(network)
    task, shape = choice.task(), choice.to_json()
    module = _attach(choice, task, method)
    posterior = NetworkPosterior(module, [module.state_dict()], task.signature, architecture=shape)
    ranges = FineTuning(epochs=0, batch_size=CALIBRATION_ROWS)
    fast = replace(precision, weight_range="minmax", activation_range="minmax")
    program = lower(quantize(posterior, task, fast, ranges, device="cpu", progress=False))
    if method == "sghmc":
        states = _move_states(module, members)
        posterior = NetworkPosterior(module, states, task.signature, architecture=shape)
        program = replace(program, members=[_move(program, index) for index in range(members)])
    return Subject(choice, method, posterior, program)


@torch.no_grad()
def _attach(choice: NetworkChoice, task: Task, method: str) -> nn.Module:
    """The untrained network with its randomness, for evaluation, after one look at the data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = choice.build()
        plain.train()(task.example(CALIBRATION_ROWS))
        module = attach(plain, make_method(method), task.example(2))
    for layer in gaussian_layers(module):
        sigma = _SIGMA_SHARE * layer.weight_mean.square().mean().sqrt()
        layer.weight_rho.fill_(float(torch.log(torch.expm1(sigma))))
    return module.eval()


def _move_states(module: nn.Module, members: int) -> list[dict[str, Tensor]]:
    """The network's own state with weights a thousandth away from it, in memory of their own."""
    generator = torch.Generator().manual_seed(1)
    weights = dict(module.named_parameters())
    return [
        {
            name: value + 1e-3 * torch.randn(value.shape, generator=generator)
            if name in weights
            else value.clone()
            for name, value in module.state_dict().items()
        }
        for _ in range(members)
    ]


def _move(program: Program, index: int) -> Member:
    """The first member with half of its weight codes a step nearer to zero: every proof still holds."""
    first, generator = program.members[0], torch.Generator().manual_seed(index)
    constants = {name: dict(held) for name, held in first.constants.items()}
    for op in program.ops:
        if isinstance(op, Weighted):
            codes = first.constants[op.name]["weight"]
            step = torch.randint(0, 2, codes.shape, generator=generator, dtype=codes.dtype)
            constants[op.name]["weight"] = codes - codes.sign() * step
    return replace(first, constants=constants)
