"""A study as it is written: TOML with ``[study]``, one complete ``[run]``, and the ``[axes]`` that vary.

It is written with plain values of sane sizes, and has a name that a folder can have. All of it is looked at
before a single run is made of it.
"""

import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from qbayes.errors import BadFile, BadInput, nearest, unknown_name
from qbayes.lab.study.spec.grid import Axis, Point, points, read_axes
from qbayes.lab.study.spec.sections import DEFAULTS, NEEDED, SECTIONS, check_section

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
_PARTS = ("study", "run", "axes")
_HEADER = ("name", "question", "cost", "expect")
# in a wheel they lie inside the package, in a checkout beside its sources.
_PLACES = (Path(str(files("qbayes"))) / "studies", Path(__file__).parents[5] / "studies")


@dataclass(frozen=True)
class Study:
    """A question as data: one complete run, and what varies.

    Example:
        >>> import qbayes as qb
        >>> run = {"task": "digits", "network": "mlp", "method": "mcd"}
        >>> axes = {"method.rate": [0.1, 0.2], "seed": [0, 1, 2]}
        >>> study = qb.Study.from_content({"study": {"name": "rates"}, "run": run, "axes": axes})
        >>> study.name, len(list(study.points()))
        ('rates', 6)

    Attributes:
        header: The name, the question, what it costs and the answer expected.
        run: One complete run: its sections with their defaults.
        axes: What varies; nothing by default.
        source: The parts as they were read; empty by default.
        text: The file as it was written; nothing for a study that was made from its parts.
    """

    header: Mapping[str, str]
    run: Mapping[str, Any]
    axes: tuple[Axis, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict[str, Any])
    text: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The name of the study; a store belongs to one name."""
        return self.header["name"]

    @property
    def question(self) -> str:
        """The question that it asks; nothing where the file has none."""
        return self.header.get("question", "")

    def points(self) -> Iterator[Point]:
        """The runs, the first axis slowest; a point that is there already is not repeated."""
        return points(self.run, self.axes)

    @classmethod
    def read(cls, path: str | Path) -> "Study":
        """The study in a TOML file; every error names the file and the key.

        Args:
            path: The file.

        Raises:
            BadFile: The file cannot be read.
            BadInput: It is no TOML, or no study.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                # one byte more than may be there: a device could go on for ever.
                text = file.read(LARGEST_TEXT + 1).decode("utf-8")
        except OSError as error:
            raise BadFile(
                "a study must be a readable TOML file",
                f"{path}: {error.strerror}",
                "check its path and rights",
            ) from None
        except UnicodeDecodeError as error:
            raise BadFile(
                f"{path} must be text in UTF-8", f"byte {error.start} is not", "save the file as UTF-8"
            ) from None
        try:
            return cls.from_toml(text, path.stem)
        except BadInput as error:
            raise type(error)(f"{path}: {error.must}", error.got, error.do) from error

    @classmethod
    def from_toml(cls, text: str, name: str = "study") -> "Study":
        """The study from the text of a TOML file.

        Args:
            text: The text.
            name: The name of a study whose text has none.

        Raises:
            BadInput: It is no TOML, or no study.
        """
        if len(text) > LARGEST_TEXT:
            raise BadInput(
                f"a study must be at most {LARGEST_TEXT:,} characters",
                "more",
                "a list in a table stands for all its values: no run need be written by hand",
            )
        check_dots(text)
        try:
            content = tomllib.loads(text)
        # a number of thousands of digits is a plain ValueError.
        except (ValueError, RecursionError) as error:
            raise BadInput(
                "a study must be TOML", f"{error}", "mend that line; strings need quotes"
            ) from None
        return replace(cls.from_content(content, name), text=text)

    @classmethod
    def from_content(cls, content: Mapping[str, Any], name: str = "study") -> "Study":
        """The study from its parts, as TOML or JSON hold them.

        Args:
            content: The tables ``study``, ``run`` and ``axes``; only ``run`` is needed.
            name: The name of a study whose content has none.

        Raises:
            BadInput: A key is unknown or missing, or a value is out of range.
        """
        check_plain(content)
        _check_known("the file", content, _PARTS)
        header = _tables(content, "study")
        _check_known("[study]", header, _HEADER)
        for key, value in header.items():
            if not isinstance(value, str) or not value.strip():
                raise BadInput(f"[study] {key} must be text", f"{value!r}", f'write {key} = "…"')
            check_text(f"[study] {key}", value)
        check_name(header.get("name", name))
        run = _tables(content, "run")
        if not run:
            raise BadInput("a study must have a [run]", f"only {', '.join(content) or 'nothing'}", _EXAMPLE)
        _check_known("[run]", run, tuple(SECTIONS))
        if absent := [key for key in NEEDED if key not in run]:
            raise BadInput(f"[run] must have {', '.join(NEEDED)}", f"no {' and no '.join(absent)}", _EXAMPLE)
        for key, value in run.items():
            try:
                check_section(key, value)
            except BadInput as error:
                raise BadInput(f"[run] {key}: {error.must}", error.got, error.do) from error
        whole = {**DEFAULTS, **run}
        axes = read_axes(_tables(content, "axes"), whole)
        return cls({"name": name, **header}, whole, axes, content)


_EXAMPLE = 'write [run], then task = "digits", network = "lenet", method = "mcd"'


def _tables(content: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    found = content.get(part, {})
    if not isinstance(found, Mapping):
        raise BadInput(f"[{part}] must be a table", f"{found!r}", f"write [{part}] and its keys below")
    return found


def _check_known(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise BadInput(f"{where} must hold known keys only", f"'{key}'", nearest(key, known))


def builtin_studies() -> dict[str, Path]:
    """The file of every study that is there."""
    return {path.stem: path for place in _PLACES if place.is_dir() for path in sorted(place.glob("*.toml"))}


def study_file(name: str | Path) -> Path:
    """A path as it is; a bare name is one of the shipped studies."""
    path = Path(name)
    if path.suffix or len(path.parts) != 1 or os.path.exists(path):
        return path
    known = builtin_studies()
    if path.name not in known:
        raise unknown_name("study", path.name, known)
    return known[path.name]


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
