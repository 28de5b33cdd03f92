"""Checks on the fields of an op: a program may come from a damaged or hostile file."""

from collections.abc import Sequence

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.grid import FEWEST_BITS, MOST_BITS

LARGEST = (1 << 31) - 1


def whole(where: str, value: object, low: int = 0, high: int = LARGEST) -> None:
    """``value`` must be an int (not a bool) in ``low … high``."""
    if type(value) is not int or not low <= value <= high:
        raise BadInput(f"{where} must be a whole number from {low} to {high}", f"{value!r}", _DO)


def wholes(
    where: str, values: object, low: int = 0, high: int = LARGEST, lengths: Sequence[int] | None = None
) -> None:
    """``values`` must be a tuple of such ints, of one of the given lengths."""
    if not isinstance(values, tuple) or (lengths is not None and len(values) not in lengths):
        wanted = "" if lengths is None else f" of length {' or '.join(str(n) for n in lengths)}"
        raise BadInput(f"{where} must be a tuple{wanted}", f"{values!r}", _DO)
    for value in values:
        whole(f"each part of {where}", value, low, high)


def lengths_text(lengths: Sequence[int]) -> str:
    """Lengths along axes for people: ``3×3``."""
    return "×".join(map(str, lengths)) or "1"


def width(where: str, bits: object) -> None:
    """Codes have 2 … 8 bits."""
    whole(where, bits, FEWEST_BITS, MOST_BITS)


def flag(where: str, value: object) -> None:
    if not isinstance(value, bool):
        raise BadInput(f"{where} must be true or false", f"{value!r}", _DO)


def one_of(where: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise BadInput(f"{where} must be one of {', '.join(map(str, known))}", f"{value!r}", _DO)


def inputs(where: str, names: tuple[str, ...], least: int, most: int | None = None) -> None:
    """The op must read between ``least`` and ``most`` values (any number without ``most``)."""
    if len(names) < least or (most is not None and len(names) > most):
        wanted = f"{least}" if least == most else f"at least {least}"
        raise BadInput(f"{where} must read {wanted} value(s)", f"{len(names)}", _DO)


def fits(condition: bool, where: str, must: str, shape: object) -> None:
    """The shapes of an op's inputs must go with its fields."""
    if not condition:
        raise BadInput(
            f"{where}: {must}", f"{shape}", "lower the network again; the program is not consistent"
        )


_DO = "lower the network again; the program is not consistent"
