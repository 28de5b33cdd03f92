"""A test, and how likely it is to notice a mutation soon."""

from dataclasses import dataclass
from pathlib import Path

# folders that say nothing of what is in them.
_NO_NAMES = frozenset({"quant", "integer", "posterior", "training"})


@dataclass(frozen=True)
class Test:
    """A test, or a file of them, by its name in pytest; ``size`` is how many lines of the source it runs.

    ``longest`` are the seconds of the longest test of its file: it may have trained for this one.
    """

    id: str
    seconds: float
    size: int
    longest: float = 0.0

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]

    def cost(self, file: str) -> float:
        """What is quick, runs little of the source and is called like the file is likely to be about it."""
        names = [part for part in Path(file).with_suffix("").parts if part not in _NO_NAMES]
        called_so = any(name in self.file for name in names)
        seconds = 0.02 + self.seconds + 0.2 * self.longest
        return seconds * (self.size + 200) * (0.05 if called_so else 1.0)
