"""What ``quantize`` is to do, checked: one float posterior, a task, a precision, its fine-tuning.

It also holds the steps that its members go through, each alone or in a stack: prepare, calibrate, (train) and
settle; and makes the quantised posterior of them. Without rounding (``rounds=False``) they are the same steps
of the same folded network, whose quantisers are off, and end in a float posterior: the control.
"""

import copy
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qbayes import noise
from qbayes.noise import derive_seed
from qbayes.posterior.likelihood import ConstantNoise, Likelihood
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.storage.save import state_to
from qbayes.provenance import device_name, versions
from qbayes.quant.finetune.checks import check_control, check_parts, check_rows
from qbayes.quant.finetune.distill import Imitation, Taught, cast_once
from qbayes.quant.finetune.fine_tuning import FineTuning, Optimizer
from qbayes.quant.finetune.temperature import sharpness
from qbayes.quant.graph.convert import Traces
from qbayes.quant.graph.equalize import equalise
from qbayes.quant.graph.unfold import sharpen, unfold_network
from qbayes.quant.layers.gaussian import GaussianWeights
from qbayes.quant.network import QuantNetwork
from qbayes.quant.precision import Precision
from qbayes.quant.prepare import prepare_module
from qbayes.tasks import Task
from qbayes.training.budget import Budget, resolve_arithmetic

MOMENTUM = 0.9
# under these names the provenance of a posterior tells of what was trained behind its first training.
QUANTISED, FINE_TUNED = "quantised", "fine_tuned"
# rows that set the ranges before training, in batches of the budget's size.
CALIBRATION_ROWS = 2048
# weights up to which a pass takes less time on a CPU than starting its kernels on a GPU: a hundred draws of
# an MLP of 50 with Gaussian weights took 0.5 s there, 1.8 s on an H200 that 8 processes shared.
_SMALL = 20_000


@dataclass(frozen=True, eq=False)
class QuantizeJob:
    """The arguments of ``quantize``, resolved: precision and fine-tuning are those for the task.

    Attributes:
        posterior: The float posterior; it stays as it is.
        task: What it is trained on.
        precision: Its ends have their bits for the task.
        fine_tuning: It has a value for every option.
        seed: The same seed gives the same bits.
        rounds: False is the same fine-tuning without any quantiser; the precision is then a name.
    """

    posterior: NetworkPosterior
    task: Task
    precision: Precision
    fine_tuning: FineTuning = field(default_factory=FineTuning)
    seed: int = 0
    rounds: bool = True
    _traces: Traces = field(default_factory=Traces, init=False, repr=False)

    def __post_init__(self) -> None:
        noise.check_seed(self.seed)
        check_parts(self.posterior, self.task, self.precision, self.fine_tuning)
        done = self.fine_tuning.resolve(self.precision, self.task)
        done.check_for(self.task)
        check_rows(done, self.task)
        if not self.rounds:
            check_control(self.precision, done.epochs)
        done = done.with_budget(done.budget.for_rows(self.task.train_rows))
        object.__setattr__(self, "fine_tuning", done)
        likelihood = self.task.signature.likelihood
        object.__setattr__(self, "precision", self.precision.for_likelihood(likelihood))

    @property
    def budget(self) -> Budget:
        """Epochs, steps and arithmetic of the training."""
        return self.fine_tuning.budget

    @property
    def spec(self) -> dict[str, Any]:
        """What determines the result, as JSON."""
        return {
            "task": self.task.provenance,
            "precision": self.precision.to_json(),
            **self.fine_tuning.to_json(),
            "seed": self.seed,
            **({} if self.rounds else {"rounds": False}),
        }

    @property
    def title(self) -> str:
        """``W4A4``, or whose fine-tuning the control has."""
        return self.precision.label if self.rounds else f"float, fine-tuned as {self.precision.label},"

    @property
    def members(self) -> int:
        return len(self.posterior.networks)

    def on(self, device: torch.device) -> "QuantizeJob":
        """The same with the arithmetic that training has on ``device``, which is recorded."""
        budget = resolve_arithmetic(self.budget, device, self.posterior.signature.input_shape)
        if budget == self.budget:
            return self
        return dataclasses.replace(self, fine_tuning=self.fine_tuning.with_budget(budget))

    def prepare(self, member: int) -> nn.Module:
        """The member with fake-quantisers, before any data; the control's are off."""
        shape, float_network = self.posterior.signature.input_shape, self.posterior.networks[member]
        if self.rounds:
            return prepare_module(float_network, shape, self.precision, self._traces).cpu()
        module = prepare_module(float_network, shape, Precision(), self._traces).cpu()
        network_of(module).without_quantisers()
        # what cannot be given back is refused now, and not after the training.
        made = unfold_network(float_network, module, shape, self._traces)
        if self.fine_tuning.match_temperature:
            sharpen(made, 1.0, shape, self._traces)
        return module

    @torch.no_grad()
    def calibrate(self, module: nn.Module, member: int, device: torch.device) -> None:
        """Set the ranges from training rows, of channels that were equalised by them; ends on ``device``.

        The control's channels are equalised alike: it does not change the function, but what a step does.
        """
        if not (self.rounds or self.fine_tuning.equalize):
            module.to(device)
            return
        place = quickest_place(sum(parameter.numel() for parameter in module.parameters()), device)
        cuda = [place] if place.type == "cuda" else []
        batches = self._calibration_rows(member, place)
        module.to(place)
        if self.fine_tuning.equalize:
            equalise(network_of(module), batches)
        if not self.rounds:
            module.to(device)
            return
        with torch.random.fork_rng(devices=cuda), network_of(module).calibrating():
            torch.manual_seed(derive_seed(self.seed, "calibration noise", member))
            for x in batches:
                module(x)
        module.to(device)

    def _calibration_rows(self, member: int, device: torch.device) -> list[Tensor]:
        order = torch.Generator().manual_seed(derive_seed(self.seed, "calibration", member))
        found: list[Tensor] = []
        for x, _ in self.task.training_batches(self.budget.batch_size, order, device, 0):
            found.append(x)
            if sum(map(len, found)) >= CALIBRATION_ROWS:
                break
        return found

    def trainable(self, module: nn.Module, member: int) -> nn.Module:
        """What is trained: the prepared module, or a copy of it beside the float network that teaches."""
        if self.fine_tuning.distill == 0:
            # not a copy: what is compiled for one member serves the next.
            return module
        device = next(module.parameters()).device
        teacher = copy.deepcopy(self.posterior.networks[member]).to(device)
        if self.budget.bf16 is True:
            cast_once(teacher, torch.bfloat16)
        return Taught(copy.deepcopy(module), teacher, self.fine_tuning.mixup).train()

    @property
    def likelihood(self) -> "Likelihood | Imitation":
        """What the outputs of ``trainable`` are judged by."""
        own = self.task.signature.likelihood
        return own if self.fine_tuning.distill == 0 else Imitation(own, self.fine_tuning.distill)

    def training_seed(self, member: int) -> int:
        return derive_seed(self.seed, "quantise", member)

    def fingerprint(self, member: int, begins: str) -> str:
        """Of a member's training, which began with the state of that hash."""
        # what only the result depends on may change without another training.
        late = self.fine_tuning.of_stages("result")
        of_training = {name: value for name, value in self.spec.items() if name not in late}
        parts = json.dumps([of_training, member, begins], sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()

    def observes(self, epoch: int) -> bool:
        """Whether ranges follow the data in this epoch."""
        return self.rounds and epoch < self.fine_tuning.freeze * self.budget.epochs

    def settle_state(
        self, module: nn.Module, member: int, state: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The final state of a member, from ``state`` or what the module has: that of a float network where
        nothing is rounded.
        """
        if self.rounds:
            return settle_state(module, state)
        return state_to(self.answering(module, member, state).state_dict(), "cpu")

    def answering(self, module: nn.Module, member: int, state: Mapping[str, Tensor] | None) -> nn.Module:
        """What answers for a member in evaluation, with ``state`` or what ``module`` has."""
        module.train()
        if state is not None:
            module.load_state_dict(dict(state))
        if self.rounds:
            return module.eval()
        shape = self.posterior.signature.input_shape
        return unfold_network(self.posterior.networks[member], module, shape, self._traces).eval()

    def result(
        self,
        module: nn.Module,
        members: list[dict[str, Tensor]],
        losses: list[list[float]],
        device: torch.device,
        **more: Any,
    ) -> NetworkPosterior:
        """The posterior of settled ``members``, in ``module`` if they are quantised; ``more`` is recorded."""
        posterior = self.posterior
        recorded = {
            **self.spec,
            "losses": losses,
            "sharpness": 1.0,
            **more,
            "versions": versions(),
            "device": device_name(device),
        }
        made = NetworkPosterior(
            module.cpu() if self.rounds else copy.deepcopy(posterior.network).cpu(),
            _alike(module, members) if self.rounds else members,
            posterior.signature,
            architecture=posterior.architecture,
            provenance={**posterior.provenance, self.provenance_name: recorded},
            sites=posterior.sites,
            quantised=self.precision.to_json() if self.rounds else None,
        ).to(device)
        if self.fine_tuning.match_temperature:
            self._sharpen(made, device)
        return made

    @property
    def provenance_name(self) -> str:
        """Under which name the provenance of the result tells of its training."""
        return QUANTISED if self.rounds else FINE_TUNED

    def _sharpen(self, made: NetworkPosterior, device: torch.device) -> None:
        """Make the posterior as sure as the float one, which stays where it was."""
        home = self.posterior.device
        try:
            factor = sharpness(made, self.posterior.to(device), self.task)
        finally:
            self.posterior.to(home)
        for network in made.networks:
            if self.rounds:
                network_of(network).sharpness.fill_(factor)
            else:
                sharpen(network, factor, made.signature.input_shape, self._traces)
        made.provenance[self.provenance_name]["sharpness"] = factor


def quickest_place(weights: int, device: torch.device) -> torch.device:
    """The device, or a CPU for a network of so few weights that it would only wait there."""
    return device if weights > _SMALL else torch.device("cpu")


def network_of(module: nn.Module) -> QuantNetwork:
    """The quantised network of a module, without its teacher and the constant noise around it."""
    student = module.student if isinstance(module, Taught) else module
    inner = student.network if isinstance(student, ConstantNoise) else student
    assert isinstance(inner, QuantNetwork)
    return inner


def descent(module: nn.Module, learning_rate: float, optimizer: Optimizer) -> torch.optim.Optimizer:
    """Of weights and learned step sizes, of one network or a stack: nothing decays."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if optimizer == "adam":
        return torch.optim.Adam(parameters, learning_rate, fused=True)
    return torch.optim.SGD(parameters, learning_rate, MOMENTUM, nesterov=True, fused=True)


def settle_state(module: nn.Module, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The final state of a member, from ``state`` or what the module has: grids fit for integers."""
    module.train()
    if state is not None:
        module.load_state_dict(dict(state))
    # from training to evaluation: this is where the network settles.
    module.eval()
    network_of(module).check_ready()
    return state_to(module.state_dict(), "cpu")


def _alike(module: nn.Module, members: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The members with the same number of grids for their noise, since they become one program."""
    grids = [{name: int(v) for name, v in m.items() if name.endswith(".grids")} for m in members]
    differing = {name for name in grids[0] if len({one[name] for one in grids}) > 1}
    if not differing:
        return members
    for name, layer in module.named_modules():
        if isinstance(layer, GaussianWeights):
            layer.always_two = f"{name}.grids" in differing
    return [settle_state(module, member) for member in members]
