"""A study as it is written: TOML with ``[study]``, one complete ``[run]``, and the ``[axes]`` that vary."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qbayes.errors import BadFile, BadInput, nearest
from qbayes.lab.study.spec.grid import Axis, Point, points, read_axes
from qbayes.lab.study.spec.sections import DEFAULTS, NEEDED, SECTIONS, check_section
from qbayes.lab.study.spec.values import LARGEST_TEXT, check_dots, check_name, check_plain, check_text

_PARTS = ("study", "run", "axes")
_HEADER = ("name", "question", "cost", "expect")


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
        _known("the file", content, _PARTS)
        header = _tables(content, "study")
        _known("[study]", header, _HEADER)
        for key, value in header.items():
            if not isinstance(value, str) or not value.strip():
                raise BadInput(f"[study] {key} must be text", f"{value!r}", f'write {key} = "…"')
            check_text(f"[study] {key}", value)
        check_name(header.get("name", name))
        run = _tables(content, "run")
        if not run:
            raise BadInput("a study must have a [run]", f"only {', '.join(content) or 'nothing'}", _EXAMPLE)
        _known("[run]", run, tuple(SECTIONS))
        absent = [key for key in NEEDED if key not in run]
        if absent:
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


def _known(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise BadInput(f"{where} must hold known keys only", f"'{key}'", nearest(key, known))
