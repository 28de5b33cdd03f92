r"""Distillation: the quantised network learns from the float one that it was made of.

Labels say what is true; the float network says what its posterior believes, with its own uncertainty. With a
share λ of the teacher the loss of a row is

.. math:: (1 - \lambda)\,(-\log p_s(y)) + \lambda\,\mathrm{KL}(p_t \,\|\, p_s)

for one draw: teacher and student see the same mask and the same ε, so every draw of the quantised posterior
follows a draw of the float one, and its spread over draws is kept. Each member of an ensemble learns from its
own, and they stay apart. (Hinton, Vinyals and Dean, 2015.)

A float network that knows its training rows by heart is sure of all of them, and shows nothing of how unsure
it can be. With λ = 1 no labels are needed, and rows may be mixed: a share of them becomes

.. math:: x_i \leftarrow (1 - u_i)\, x_i + u_i\, x_{i-1}, \qquad u_i \sim U(0, 1)

of which the teacher is unsure, and the student learns how much. (Mixup for training on labels: Zhang et al.,
ICLR 2018; for distillation: Beyer et al., CVPR 2022.)
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qbayes.errors import BadInput
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.likelihood import Likelihood, Outputs
from qbayes.posterior.sites import HandedNoise, Stochastic, noise_name, stochastic_layers
from qbayes.quant.layers.single_grid import SingleGridWeights

STUDENT, TEACHER = "student", "teacher"
# a head's name between the pair and its likelihood: "student/mean".
_SEPARATOR = "/"


class Taught(nn.Module):
    """A quantised network beside its float one; the noise of the second is handed on to the first, by site.

    ``forward`` gives the heads of both. Only the student trains: the teacher stays in evaluation, but draws.
    ``mixup`` is the share of rows that are mixed with the one before them.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module, mixup: float = 0.0) -> None:
        super().__init__()
        self.mixup = mixup
        self.student, self.teacher = student, teacher.requires_grad_(False)
        self.noise = SharedNoise()
        # whether the teacher reads its memory as it lies (``view`` behind a convolution).
        self.plain_layout = False
        for layer in stochastic_layers(self.teacher):
            setattr(layer, noise_name(layer), _Recorder(self.noise, layer))
        for layer in stochastic_layers(self.student):
            if isinstance(layer, SingleGridWeights):
                raise BadInput(
                    "distillation needs Gaussian weights that keep their noise",
                    "gaussian='single', whose noise is another than the float network's",
                    "use gaussian='keep', or distill=0",
                )
            setattr(layer, noise_name(layer), _Replayer(self.noise, layer))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        if self.training and self.mixup > 0:
            x = mix_rows(x, self.mixup)
        with torch.no_grad():
            taught = _heads(TEACHER, self._taught(x))
        return taught | _heads(STUDENT, self.student(x))

    def _taught(self, x: Tensor) -> Outputs:
        """The teacher's answer; one that cannot read rows with the channels last gets the plain layout."""
        self.noise.clear()
        if not self.plain_layout:
            try:
                return self.teacher(x)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                # an error of the network itself comes again below.
                self.plain_layout = True
                self.teacher.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
                self.noise.clear()
        return self.teacher(x.contiguous())

    def train(self, mode: bool = True) -> "Taught":
        super().train(mode)
        self.teacher.eval()
        for layer in stochastic_layers(self.teacher):
            layer.training = mode
        return self


def cast_once(teacher: nn.Module, dtype: torch.dtype) -> None:
    """Give factors of products the type that autocast gives them in every pass: the same numbers, sooner.

    Only of layers that do nothing else with them; what trains must stay as it is.
    """
    for layer in teacher.modules():
        if type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d):
            layer.to(dtype)
        elif type(layer) is GaussianLayer:
            layer.weight_mean.data = layer.weight_mean.data.to(dtype)


def mix_rows(x: Tensor, share: float) -> Tensor:
    """A ``share`` of the rows mixed with the row before, by torch's own generator, in their layout."""
    shape = (len(x),) + (1,) * (x.ndim - 1)
    part, chosen = torch.rand((2, *shape), device=x.device)
    # not rolled: that would give up the layout.
    before = torch.cat([x[-1:], x[:-1]])
    return torch.lerp(x, before, torch.where(chosen < share, part, 0.0).to(x.dtype))


class SharedNoise:
    """The draws of one pass of the teacher, by site."""

    def __init__(self) -> None:
        self.drawn: dict[int, list[Tensor]] = {}

    def clear(self) -> None:
        self.drawn = {}


class _Recorder(HandedNoise):
    """Draws as the teacher's layer does, and keeps the draw for the student."""

    def __init__(self, noise: SharedNoise, layer: Stochastic) -> None:
        self.noise, self.layer = noise, layer
        self.draw: Callable[..., Tensor] | None = None

    def __call__(self, *given: Any) -> Tensor:
        own = getattr(type(self.layer), noise_name(self.layer))
        drawn = own(self.layer, *given) if self.draw is None else self.draw(*given)
        self.noise.drawn.setdefault(self.layer.site, []).append(drawn)
        return drawn

    def set_draw(self, draw: Callable[..., Tensor]) -> None:
        self.draw = draw


class _Replayer(HandedNoise):
    """Hands the teacher's draws to the student's layer of the same site, in turn."""

    def __init__(self, noise: SharedNoise, layer: Stochastic) -> None:
        self.noise, self.site = noise, layer.site

    def __call__(self, *given: Any) -> Tensor:
        return self.noise.drawn[self.site].pop(0)

    def set_draw(self, draw: Callable[..., Tensor]) -> None:
        """Nothing is drawn here."""


class Imitation:
    """The loss of a ``Taught`` network, in the place of its likelihood; ``share`` is λ."""

    def __init__(self, likelihood: Likelihood, share: float) -> None:
        self.likelihood, self.share = likelihood, share

    def nll(self, outputs: Outputs, target: Tensor) -> Tensor:
        student = _of(STUDENT, outputs)
        loss = self.share * self.likelihood.divergence(_of(TEACHER, outputs), student)
        if self.share < 1:
            loss = loss + (1 - self.share) * self.likelihood.nll(student, target)
        return loss

    def check(self, outputs: Any, rows: int) -> None:
        self.likelihood.check(_of(STUDENT, outputs), rows)


def student_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of the quantised network alone, out of that of a ``Taught`` one or its own."""
    prefix = f"{STUDENT}."
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return own or dict(state)


def _heads(whose: str, outputs: Outputs) -> dict[str, Tensor]:
    heads = {"": outputs} if isinstance(outputs, Tensor) else outputs
    return {f"{whose}{_SEPARATOR}{name}": head for name, head in heads.items()}


def _of(whose: str, outputs: Outputs) -> Outputs:
    assert not isinstance(outputs, Tensor)
    prefix = f"{whose}{_SEPARATOR}"
    heads = {n.removeprefix(prefix): head for n, head in outputs.items() if n.startswith(prefix)}
    return heads[""] if list(heads) == [""] else heads
