"""A backend turns every op of a program into a kernel once, at load; a prediction only calls kernels.

``reference`` is the definition of truth. Others may run an op another way and state how far they stray from
it when fed the same codes (``tolerance``), and which ops they leave to the exact integers of the reference.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.ops.base import Constants, Grids, Noise, Op
from qbayes.integer.program import Program
from qbayes.registry import Registry

# What a kernel keeps of one draw of its weights; only the kernel itself reads it.
Drawn = Any


@dataclass(frozen=True)
class Tolerance:
    """How far the codes of one op may lie from the reference's, given the same input codes."""

    codes: int
    share_equal: float


class Kernel(ABC):
    """One op of one member, ready to run. Calling it changes nothing: threads may share it."""

    # whether rows that all draws share may come as they are, or must be repeated for each draw.
    takes_shared: bool = False
    # whether its codes are the reference's for every input; if not, they keep to the backend's tolerance.
    is_exact: bool = False

    def __init__(self, op: Op, grids: Grids, constants: Constants, how: str, why: str = "") -> None:
        self.op = op
        self.grids = grids
        self.constants = constants
        self.how = how
        self.why = why

    @property
    def draws_weights(self) -> bool:
        """Whether ``draw`` must give the weights of every draw before the kernel is called."""
        return False

    def draw(self, seed: int, draw: int) -> Drawn:
        """The weights of one draw, packed to serve any number of rows; None where there are none to draw."""
        return None

    @abstractmethod
    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        """The output's codes; ``drawn`` holds what ``draw`` gave for each of the noise's draws."""


@dataclass(frozen=True)
class KernelReport:
    """How a backend runs one op, and why not in its fastest way (empty if it does)."""

    op: str
    kind: str
    how: str
    why: str


class Backend(ABC):
    """All kernels of a program on one device, for each member by op name.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> program = qb.lower(qb.quantize(posterior, task, "W4A4", qb.FineTuning(epochs=0)))
        >>> backend = choose("reference", program, torch.device("cpu"))
        >>> backend.describe().splitlines()[0]
        'backend reference on cpu'

    Args:
        program: The program to run.
        device: Where its kernels run.

    Raises:
        BadInput: The backend cannot run the program there.
    """

    name: ClassVar[str]
    tolerance: ClassVar[Tolerance]
    # codes of the widest activation that pass an op at once, by kind of device: bounds memory. On the CPU
    # 2^23 took 3 to 10 % less time than 2^22 (ResNet-18, LeNet by mcd; one core), and 2^24 hardly less again.
    codes_at_once: ClassVar[dict[str, int]] = {"cpu": 1 << 23, "cuda": 1 << 26}

    def __init__(self, program: Program, device: torch.device) -> None:
        reason = self.why_not(program, device)
        if reason is not None:
            others = " or ".join(f"backend='{name}'" for name in able(program, device))
            raise BadInput(
                f"the backend '{self.name}' must be able to run the program on {device}",
                reason,
                f"use {others}" if others else "use device='cpu'",
            )
        self.program = program
        self.device = device
        self.kernels = [
            {
                op.name: self.kernel(
                    op, program.grids(op, member), self._place(member.constants.get(op.name, {}))
                )
                for op in program.ops
            }
            for member in program.members
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        """Packed weights, sessions and addresses stay here: a copy packs the program anew, where it is."""
        return type(self), (self.program, self.device)

    @classmethod
    @abstractmethod
    def why_not(cls, program: Program, device: torch.device) -> str | None:
        """Why this backend cannot run the program on the device; None if it can.

        Args:
            program: The program to run.
            device: Where it would run.
        """

    @abstractmethod
    def kernel(self, op: Op, grids: Grids, constants: Constants) -> Kernel:
        """The op of one member, packed for this device.

        Args:
            op: The op.
            grids: Zero-points and widths around it.
            constants: Its integer constants by name, on the device.
        """

    def arrange(self, codes: Tensor) -> Tensor:
        """The input's codes in the memory layout that the kernels like; by default as they are.

        Args:
            codes: Codes of the input, one row for each row of the batch.
        """
        return codes

    def codes_of_bytes(self, x: Tensor, table: Tensor) -> Tensor | None:
        """The arranged codes of inputs in bytes; None, as by default, without a fast way.

        Args:
            x: Raw inputs in uint8.
            table: The code of each byte, ``(channels, 256)``.
        """
        return None

    def report(self) -> list[KernelReport]:
        """How each op runs, member by member where they differ."""
        found = [
            KernelReport(name, kernel.op.kind, kernel.how, kernel.why)
            for kernels in self.kernels
            for name, kernel in kernels.items()
        ]
        return list(dict.fromkeys(found))

    def describe(self) -> str:
        """``report`` as text, one line an op."""
        lines = [
            f"  {row.op} ({row.kind}): {row.how}" + (f"; {row.why}" if row.why else "")
            for row in self.report()
        ]
        return "\n".join([f"backend {self.name} on {self.device}", *lines])

    def _place(self, constants: Constants) -> Constants:
        return {name: constant.to(self.device) for name, constant in constants.items()}


BACKENDS: Registry[type[Backend]] = Registry("backend", "qbayes.integer.backends")


def able(program: Program, device: torch.device) -> list[str]:
    """The backends that can run the program on the device."""
    return [name for name in BACKENDS if BACKENDS[name].why_not(program, device) is None]


def choose(name: str, program: Program, device: torch.device) -> Backend:
    """The backend of that name; ``auto`` is the fastest that can run there, at last ``reference``."""
    if name == "auto":
        fast = "triton" if device.type == "cuda" else "onednn"
        name = fast if BACKENDS[fast].why_not(program, device) is None else "reference"
    return BACKENDS[name](program, device)
