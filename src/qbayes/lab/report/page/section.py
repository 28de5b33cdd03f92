"""Sections that others add to the page: what stands in one, and the registry that the page asks.

The page itself shows checks, figures and results. Whoever judges a study registers a section of its own.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.figure import Plate


@dataclass(frozen=True)
class Section:
    """What one section says of a study.

    Args:
        title: the heading, also the word in the navigation; in small letters it is the anchor.
        about: what stands beside the heading.
        html: the body, escaped.
        answer: the finding in sentences, for the top of the page.
        tally: numbers for the top of the page, each with its words.
        tables: the texts of CSV files by name.
    """

    title: str
    about: str
    html: str
    answer: Sequence[str] = ()
    tally: Mapping[str, str] = field(default_factory=dict[str, str])
    tables: Mapping[str, str] = field(default_factory=dict[str, str])


Write = Callable[[Frame, Sequence[Plate]], Section]
_SECTIONS: dict[str, Write] = {}


def register_section(name: str, write: Write) -> None:
    """Add a section to every page written from now on; one of the same name takes its place."""
    _SECTIONS[name] = write


def write_sections(frame: Frame, plates: Sequence[Plate]) -> list[Section]:
    """The registered sections of a study, in the order of their names."""
    return [_SECTIONS[name](frame, plates) for name in sorted(_SECTIONS)]


def csv_lines(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table as the text of a CSV file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([head, *lines])
    return out.getvalue()
