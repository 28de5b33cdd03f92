"""A posterior that runs on integers: raw inputs in, the predictive distribution in the task's units out."""

from numbers import Integral
from pathlib import Path

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.backends.base import Backend, choose
from qbayes.integer.interpreter import Interpreter
from qbayes.integer.program import Program
from qbayes.posterior.base import Posterior
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.predictive import Predictive, predictive_from_outputs


class ProgramPosterior(Posterior):
    """A program and the backend that runs it. Answers are bit-equal for any ``batch_size``."""

    def __init__(self, program: Program, backend: Backend, *, frozen_draws: int = 0) -> None:
        self.program = program
        self.backend = backend
        self.signature = program.signature
        self.provenance = dict(program.provenance)
        self.interpreter = Interpreter(program, backend, frozen_draws)

    @property
    def device(self) -> torch.device:
        return self.backend.device

    @property
    def is_stochastic(self) -> bool:
        """Whether a single member gives different draws."""
        return any(op.is_stochastic for op in self.program.ops)

    def _predict(
        self, x: Tensor, draws: int, seed: int, first_row: int, batch_size: int | None
    ) -> Predictive:
        return predictive_from_outputs(self.outputs(x, draws, seed, first_row, batch_size), self.signature)

    def outputs(
        self, x: Tensor, draws: int, seed: int = 0, first_row: int = 0, batch_size: int | None = None
    ) -> Outputs:
        """The network's outputs ``(draws, rows, …)`` in network units, as its own forward would name them."""
        heads = self.interpreter.outputs(x, draws, seed, first_row, batch_size)
        if set(heads) == {""} and not self.program.constant_heads:
            return heads[""]
        some = next(iter(heads.values()))
        members = range(len(self.program.members))
        for name in self.program.constant_heads:
            numbers = torch.tensor([self.program.constant_head(name, member) for member in members])
            # draw d is of member d mod M.
            of_draws = numbers[torch.arange(draws) % len(members)]
            heads[name] = of_draws.view(draws, 1, *some.shape[2:]).expand(some.shape)
        return heads


def load(
    program: Program | str | Path,
    backend: str = "auto",
    *,
    frozen_draws: int = 0,
    device: torch.device | str = "cpu",
) -> ProgramPosterior:
    """A program, or the file of one, ready to predict.

    ``backend`` is ``auto``, ``reference``, ``onednn``, ``triton``, ``onnxruntime`` or ``openvino``.
    ``frozen_draws`` keeps the packed weights of up to that many draws of Gaussian layers for later calls
    with the same seed: memory for speed, the same answers.
    """
    if not isinstance(frozen_draws, Integral) or frozen_draws < 0:
        raise BadInput("frozen_draws must be a whole number of at least 0", f"{frozen_draws!r}", "change it")
    opened = program if isinstance(program, Program) else Program.open(program)
    return ProgramPosterior(opened, choose(backend, opened, _device(device)), frozen_draws=int(frozen_draws))


def _device(name: torch.device | str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadInput(
            "the device must be one that torch knows", str(error).splitlines()[0], "use 'cpu' or 'cuda'"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("the device must be there", f"'{name}', but torch sees no GPU", "use device='cpu'")
    return device
