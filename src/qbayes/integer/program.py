"""A program that people hold: its data, with its file and its text."""

import dataclasses
from pathlib import Path

from qbayes.integer.describe import describe
from qbayes.integer.file.file import open_program, save_program
from qbayes.integer.structure.program_data import ProgramData


class Program(ProgramData):
    """The integer network: ops on codes with integer constants, and its members.

    ``qbayes.lower`` makes programs; ``print(program)`` shows one.

    Example:
        >>> import tempfile, qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> program = qb.lower(qb.quantize(posterior, task, "W4A4", qb.FineTuning(epochs=0)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = program.save(f"{folder}/digits.qbayes")
        ...     qb.Program.open(path).equals(program)
        True

    Attributes:
        values: Shape and bits of every activation, by name.
        ops: The ops in the order they run.
        input: The name of the input's value.
        outputs: The value of each head, by the head's name; a single tensor is the head ``""``.
        members: What codes mean in each member, and its constants.
        signature: Input shape, input and target scale, likelihood and labels.
        constant_heads: Heads that do not depend on the input, such as a learned log-variance, in network
            units: one number a target, or as many for each member in turn. None by default.
        precision: The precision that it was quantised at, as JSON; empty by default.
        provenance: What is recorded of its making, as JSON; empty by default.
        sections: Parts of a file that a later qbayes wrote; they are kept. Empty by default.
    """

    def save(self, path: str | Path) -> Path:
        """Write one ``.qbayes`` file; the program is proved first.

        Args:
            path: Where; a reader sees the old file or the new one, whole.

        Returns:
            The path.

        Raises:
            BadInput: The program is not consistent, or the file cannot be written.
        """
        return save_program(self, path)

    @staticmethod
    def open(path: str | Path) -> "Program":
        """Read a ``.qbayes`` file and prove it right; nothing in it is ever run or unpickled.

        Args:
            path: The file.

        Returns:
            The program, equal to the one that was saved.

        Raises:
            BadFile: The file is damaged, too large, or of another format.
        """
        data = open_program(path)
        return Program(**{field.name: getattr(data, field.name) for field in dataclasses.fields(data)})

    def __str__(self) -> str:
        return describe(self)
