"""What a study may be written with: plain values of sane sizes, and a name that a folder can have.

All of it is looked at before a single run is made of it.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from qbayes.errors import BadInput

# characters; the longest study that comes with qbayes has 5,000.
LARGEST_TEXT = 1 << 17
_LONGEST_STRING = 10_000
_LONGEST_NAME = 100
_DEEPEST = 16
_LARGEST_NUMBER = 1 << 63
# Python's reader takes time that grows with the square of the parts of a dotted key. (Parts have a length
# here, and begin where no part ends: looking for them must not take such time either.)
_PART = r"""(?:(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.){0,200}+"|'[^'\n]{0,200}+')"""
_MANY_PARTS = re.compile(rf"(?:{_PART}[ \t]*+\.[ \t]*+){{{_DEEPEST}}}")


def check_dots(text: str) -> None:
    """Raise where a key is nested too deeply to be read."""
    found = _MANY_PARTS.search(text)
    if found is not None:
        raise BadInput(
            f"a key of a study must have at most {_DEEPEST} parts",
            f"'{found[0][:60]}…'",
            "keys are as short as method.rate; in texts, leave a blank behind each dot",
        )


def check_plain(content: Mapping[str, Any]) -> None:
    """Raise unless a study holds numbers, words, switches, lists and tables only, none of them huge."""
    left: list[tuple[str, Any, int]] = [("", content, 0)]
    while left:
        where, value, depth = left.pop()
        if depth > _DEEPEST:
            raise BadInput(
                f"a study must be nested at most {_DEEPEST} deep", f"more at {where}", "write it flat"
            )
        if isinstance(value, Mapping | list | tuple):
            left += [(place, inner, depth + 1) for place, inner in _inside(where, value)]
        else:
            _check_value(where, value)


def _inside(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield from ((where, inner) for inner in value)
        return
    for key, inner in value.items():
        _check_value("a key", key)
        yield f"{where}.{key}".lstrip(".")[:_LONGEST_NAME], inner


def _check_value(where: str, value: Any) -> None:
    if isinstance(value, str):
        if len(value) > _LONGEST_STRING:
            got = f"{len(value):,} at {where}: '{value[:40]}…'"
            raise BadInput(f"a text must have at most {_LONGEST_STRING:,} characters", got, "shorten it")
    elif isinstance(value, int):
        if abs(value) >= _LARGEST_NUMBER:
            raise BadInput("a whole number must be below 2^63", f"another at {where}", "give a smaller one")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadInput("a number must be finite", f"{value} at {where}", "give one that is")
    elif value is not None:
        raise BadInput(
            "a study must be of numbers, texts, true and false, lists and tables",
            f"{type(value).__name__} {value} at {where}",
            "put a date in quotes, or leave it out",
        )


def check_text(where: str, text: str) -> None:
    """Raise where a terminal would take characters for commands."""
    strange = [letter for letter in text if not letter.isprintable() and letter not in "\n\t"]
    if strange:
        raise BadInput(f"{where} must be printable", f"{strange[0]!r} in it", "leave such characters out")


def check_name(name: str) -> None:
    """Raise unless a study's name can be that of the folder of its results, below ``runs``."""
    apart = any(letter in name for letter in "/\\")
    if not name.strip() or apart or name in (".", "..") or not name.isprintable():
        raise BadInput(
            "the name of a study must be that of a folder: letters, digits, blanks, '-', '_', '.'",
            f"{name[:_LONGEST_NAME]!r}",
            "write another name under [study]; --store chooses where the results go",
        )
    if len(name.encode()) > _LONGEST_NAME:
        raise BadInput(
            f"the name of a study must take at most {_LONGEST_NAME} bytes",
            f"{len(name.encode()):,}: '{name[:40]}…'",
            "write a shorter name under [study]",
        )
