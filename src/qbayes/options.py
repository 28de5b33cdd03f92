"""Options: fields of a frozen dataclass that carry their help, their limits and where they count.

A field is all there is of an option. The command line, the sections of a study, the keys of stored results
and the tables of the documentation are derived from it.

Example:
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Baking:
    ...     degrees: float = option(180.0, "Heat of the oven.", POSITIVE)
    >>> [(name, one.help) for name, one in options_of(Baking).items()]
    [('degrees', 'Heat of the oven.')]
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qbayes.errors import BadInput, unknown_name

Stage = Literal["calibration", "training", "result"]
# what an option was called before anything was released, and what it is called now.
RENAMED: Mapping[str, str] = {
    "teacher": "distill",
    "blend": "mixup",
    "match": "match_temperature",
    "optimiser": "optimizer",
    "equalise": "equalize",
    "quantise": "quantize",
    "between": "elementwise_bits",
}
_OPTION, _UNSET = "option", object()


@dataclass(frozen=True)
class Limit:
    """What values an option may have.

    Attributes:
        must: The rule in words, behind "must be".
        holds: Whether a value keeps the rule.
        choices: The names to choose from, where only names are allowed.
    """

    must: str
    holds: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """What a field says of its option.

    Attributes:
        help: One sentence, for the command line and the documentation.
        limit: What values it may have.
        fallback: The value where neither the caller nor a recipe gives one.
        stage: The last step that the value changes: ``calibration`` before the training, the ``training``
            itself, or only the ``result`` of it.
        omitted: A key leaves the option out where it has this value. Keys from before there was the option
            stay valid so.
        recorded: Whether keys and records hold the option at all.
    """

    help: str
    limit: Limit
    fallback: Any
    stage: Stage = "training"
    omitted: Any = _UNSET
    recorded: bool = True

    def is_omitted(self, value: Any) -> bool:
        """Whether a key leaves the option out when it has this value."""
        return not self.recorded or (self.omitted is not _UNSET and value == self.omitted)


def option(
    default: Any,
    help: str,
    limit: Limit,
    *,
    by_recipe: bool = False,
    stage: Stage = "training",
    omitted: Any = _UNSET,
    recorded: bool = True,
) -> Any:
    """A dataclass field that is an option.

    Args:
        default: The value where nobody gives one.
        help: One sentence, for the command line and the documentation.
        limit: What values it may have.
        by_recipe: Whether the field is None until a recipe decides; ``default`` is then for recipes that
            leave it open.
        stage: See ``Option``.
        omitted: See ``Option``; by default keys always hold the option.
        recorded: See ``Option``.

    Returns:
        The field, typed ``Any``: the annotation beside it says the type.
    """
    described = Option(help, limit, default, stage, omitted, recorded)
    return dataclasses.field(default=None if by_recipe else default, metadata={_OPTION: described})


def by_recipe(kind: type, name: str) -> Any:
    """The option ``name`` of another dataclass, which is None here until a recipe decides."""
    return dataclasses.field(default=None, metadata={_OPTION: options_of(kind)[name]})


def options_of(kind: Any) -> dict[str, Option]:
    """The options of a dataclass by name, in the order in which they are written."""
    return {one.name: one.metadata[_OPTION] for one in dataclasses.fields(kind) if _OPTION in one.metadata}


def type_of(kind: type, name: str) -> type:
    """The plain type of an option: a switch is bool, and a name to choose is str."""
    hint = typing.get_type_hints(kind)[name]
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) or _is_union(hint) else (hint,)
    plain = [str if typing.get_origin(part) is Literal else part for part in parts]
    return next(part for part in (bool, int, float, str) if part in plain)


def check_options(value: Any, title: str) -> None:
    """Raise unless every option that is given keeps its limit.

    Args:
        value: An instance of a dataclass with options; None where a recipe decides is not looked at.
        title: What the error calls the whole: ``budget``.
    """
    for field in dataclasses.fields(value):
        held, described = getattr(value, field.name), field.metadata.get(_OPTION)
        if described is None or (held is None and field.default is None):
            continue
        if described.limit.holds(held):
            continue
        if described.limit.choices:
            raise unknown_name(field.name.replace("_", " "), str(held), described.limit.choices)
        must = f"{title}: {field.name} must be {described.limit.must}"
        raise BadInput(must, f"{held!r}", f"change {field.name}")


def check_names(title: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise where an option is not known; one that was renamed is told its new name.

    Args:
        title: What the options belong to: ``the budget``.
        given: Names that somebody wrote.
        known: Names that are allowed.
    """
    known = tuple(known)
    for name in given:
        if name in known:
            continue
        raise refuse_old_name(name, known) or unknown_name(f"option of {title}", name, known)


def refuse_old_name(name: str, known: Iterable[str]) -> BadInput | None:
    """The error for a name that was replaced by one of ``known``; None for any other name."""
    now = RENAMED.get(name)
    if now is None or now not in known:
        return None
    return BadInput("an option must have its present name", f"'{name}'", f"write '{now}', its name now")


def whole(least: int, most: int) -> Limit:
    """Whole numbers from ``least`` to ``most``."""
    return Limit(
        f"a whole number from {least} to {most:,}",
        lambda value: type(value) is int and least <= value <= most,
    )


def one_of(*names: str) -> Limit:
    """One of these names."""
    return Limit(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names, names)


def is_number(value: object) -> bool:
    """Whether a value is a number, and no switch."""
    return not isinstance(value, bool) and isinstance(value, int | float)


SWITCH = Limit("true or false", lambda value: isinstance(value, bool))
SHARE = Limit("a share from 0 to 1", lambda value: is_number(value) and 0 <= value <= 1)
SHARE_BELOW_ONE = Limit("a share from 0 to below 1", lambda value: is_number(value) and 0 <= value < 1)
POSITIVE = Limit("above 0 and finite", lambda value: is_number(value) and 0 < value < math.inf)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Union
