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
    """A program and the backend that runs it. Answers are bit-equal for any ``batch_size``.

    ``load`` makes it.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> program = qb.lower(qb.quantize(posterior, task, "W4A4", qb.FineTuning(epochs=0)))
        >>> deployed = qb.load(program, backend="reference")
        >>> x, _ = next(iter(task.batches("test", 8)))
        >>> tuple(deployed.outputs(x, draws=4).shape)
        (4, 8, 10)

    Args:
        program: The integer network.
        backend: What runs its ops, made for this program.
        frozen_draws: Draws of Gaussian layers whose packed weights are kept for later calls; 0, none, by
            default.
    """

    def __init__(self, program: Program, backend: Backend, *, frozen_draws: int = 0) -> None:
        self.program = program
        self.backend = backend
        self.signature = program.signature
        self.provenance = dict(program.provenance)
        self.interpreter = Interpreter(program, backend, frozen_draws)

    @property
    def device(self) -> torch.device:
        """The device on which the backend runs."""
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
        """The network's outputs in network units, as its own forward would name them.

        Args:
            x: Raw inputs ``(rows, *input_shape)``, as a tensor.
            draws: Draws from the posterior.
            seed: Key of the noise.
            first_row: Number of the first row, for inputs that come in parts.
            batch_size: Rows that are computed at once; it bounds memory only. By default as many as suit the
                device.

        Returns:
            A tensor ``(draws, rows, …)``, or one for each head by name.
        """
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

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> program = qb.lower(qb.quantize(posterior, task, "W4A4", qb.FineTuning(epochs=0)))
        >>> deployed = qb.load(program, backend="reference")
        >>> deployed.backend.name, str(deployed.device)
        ('reference', 'cpu')

    Args:
        program: A ``Program``, or the path of a ``.qbayes`` file.
        backend: ``reference``, ``onednn``, ``triton``, ``onnxruntime`` or ``openvino``. ``auto`` is
            ``triton`` on a GPU and ``onednn`` elsewhere, or ``reference`` where that one cannot run the
            program.
        frozen_draws: How many draws of Gaussian layers keep their packed weights for later calls with the
            same seed: memory for speed, the same answers. 0, none, by default.
        device: Where it runs: ``cpu`` by default, or ``cuda``.

    Returns:
        A posterior on integers.

    Raises:
        BadFile: The file is missing, damaged, or of another format.
        BadInput: The device is not there, or the backend cannot run the program on it.
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
