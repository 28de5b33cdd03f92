"""Errors in three parts: what must hold, what we got, what to do.

The command line turns each into one readable message and an exit code, never a traceback:
0 done, 1 a run failed (the others are kept), 2 bad input (nothing was started).
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar

# characters of what we got, in a message.
_LONGEST = 2000


class QbayesError(Exception):
    """Base of every error that qbayes raises on purpose.

    Example:
        >>> import qbayes as qb
        >>> try:
        ...     qb.Budget(epochs=-1)
        ... except qb.QbayesError as error:
        ...     print(error.must, "|", error.got, "|", error.do)
        budget: epochs must be a whole number from 0 to 1,000,000 | -1 | change epochs

    Args:
        must: What must hold.
        got: What was found instead. A text of more than 4,000 characters is cut to its first 2,000.
        do: What to do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, must: str, got: str, do: str) -> None:
        self.must = must
        # what a file holds may be of any length: its beginning tells what it is.
        self.got = got if len(got) <= 2 * _LONGEST else f"{got[:_LONGEST]} … ({len(got):,} characters)"
        self.do = do
        super().__init__(f"{must}\n  got: {got}\n  do:  {do}")

    def __reduce__(self) -> tuple[type["QbayesError"], tuple[str, str, str]]:
        return type(self), (self.must, self.got, self.do)


class BadInput(QbayesError, ValueError):
    """What the caller handed in cannot be used; nothing was started and nothing was changed.

    It is a ``ValueError`` too. The command line exits with 2.

    Example:
        >>> import qbayes as qb
        >>> try:
        ...     qb.load_task("digit")
        ... except qb.BadInput as error:
        ...     print(error.got)
        'digit'

    Args:
        must: What must hold.
        got: What was found instead. A text of more than 4,000 characters is cut to its first 2,000.
        do: What to do about it.
    """

    exit_code = 2


class BadFile(BadInput):
    """A file is missing, damaged, of another kind, or cannot be written.

    Example:
        >>> import qbayes as qb
        >>> try:
        ...     qb.load("nowhere.qbayes")
        ... except qb.BadFile as error:
        ...     print("nowhere.qbayes" in str(error))
        True

    Args:
        must: What must hold.
        got: What was found instead. A text of more than 4,000 characters is cut to its first 2,000.
        do: What to do about it.
    """


class RunFailed(QbayesError, RuntimeError):
    """A run was started and did not end well (a NaN loss, divergence); the reason is in the message.

    It is a ``RuntimeError`` too. The command line exits with 1.

    Example:
        >>> import qbayes as qb
        >>> failure = qb.RunFailed("the loss must be finite", "NaN in epoch 3", "lower the learning rate")
        >>> print(failure)
        the loss must be finite
          got: NaN in epoch 3
          do:  lower the learning rate

    Args:
        must: What must hold.
        got: What was found instead. A text of more than 4,000 characters is cut to its first 2,000.
        do: What to do about it.
    """

    exit_code = 1


class Interrupted(RunFailed):
    """The run was stopped from outside and left a checkpoint from which it can be resumed.

    The command line exits with 130.

    Example:
        >>> import qbayes as qb
        >>> issubclass(qb.Interrupted, qb.RunFailed), qb.Interrupted.exit_code
        (True, 130)

    Args:
        must: What must hold.
        got: What was found instead. A text of more than 4,000 characters is cut to its first 2,000.
        do: What to do about it.
    """

    exit_code = 130


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` for the closest known spelling, or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    listed = ", ".join(names) if names else "nothing is registered"
    return f"did you mean '{close[0]}'? known: {listed}" if close else f"choose one of: {listed}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """The error for a name that nothing is registered under, with the nearest spelling."""
    return BadInput(f"the {kind} must be a known name", f"'{name}'", nearest(name, known))
