"""What an exported model holds: dialect, form of noise, draws, outputs, members."""

from collections.abc import Sequence
from dataclasses import dataclass

from qbayes.errors import BadInput, nearest
from qbayes.integer.onnx.dialect import DIALECTS, Dialect, dialect_of

NOISES = ("inside", "inputs")
MEMBERS = ("batch", "files")
# ``codes`` are the integers that come out of the last op, ``draws`` the answer of every draw,
# ``draw_variances`` the noise of the data that every draw of a regression tells.
OUTPUTS = ("mean", "variance", "entropy", "mutual_information", "draws", "draw_variances", "codes")
DEFAULT_OUTPUTS = OUTPUTS[:4]
MOST_DRAWS = 10_000


@dataclass(frozen=True)
class Options:
    """How a program becomes ONNX.

    ``noise`` is ``inside`` (the graph draws its own, every run differs) or ``inputs`` (masks and codes of ε
    are inputs, the same ones give the same bits). ``members`` are all in one model, ``batch``, or one file
    each, ``files``; ``draws`` then counts those of each file.
    """

    dialect: str = "qoperator"
    noise: str = "inside"
    draws: int = 20
    outputs: tuple[str, ...] = DEFAULT_OUTPUTS
    members: str = "batch"

    def __post_init__(self) -> None:
        _check_choice("the dialect", self.dialect, tuple(DIALECTS))
        _check_choice("the noise", self.noise, NOISES)
        _check_choice("members", self.members, MEMBERS)
        if (
            isinstance(self.draws, bool)
            or not isinstance(self.draws, int)
            or not 1 <= self.draws <= MOST_DRAWS
        ):
            raise BadInput(
                f"draws must be a whole number from 1 to {MOST_DRAWS}", f"{self.draws!r}", "for example 20"
            )
        if not self.outputs:
            raise BadInput("a model must have an output", "none", f"choose from {', '.join(OUTPUTS)}")
        for name in self.outputs:
            _check_choice("each output", name, OUTPUTS)
        if len(set(self.outputs)) != len(self.outputs):
            raise BadInput("each output must be named once", f"{', '.join(self.outputs)}", "leave one out")

    @property
    def spelling(self) -> Dialect:
        return dialect_of(self.dialect)


def _check_choice(what: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise BadInput(f"{what} must be one of {', '.join(known)}", f"{value!r}", nearest(str(value), known))
