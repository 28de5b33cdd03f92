"""A figure: what it shows, in words, and how its charts follow from a study's rows.

Figures are registered files; the page, the static files and the CSVs take all of them. A figure without data
draws nothing.
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import Chart
from qbayes.registry import Registry

FIGURES: Registry[type["Figure"]] = Registry("figure", "qbayes.lab.report.figures")


class Figure(ABC):
    """Base of all figures.

    ``place`` orders them on the page. ``beside`` is the choice whose values lie side by side; the page makes
    a switch of every other choice. ``same_y``: panels side by side share their y axis.

    Example:
        >>> FIGURES["weight_bits"]().title
        'Over weight bits'
    """

    name: ClassVar[str]
    title: ClassVar[str]
    caption: ClassVar[str]
    place: ClassVar[int]
    beside: ClassVar[str] = "metric"
    same_y: ClassVar[bool] = False

    @abstractmethod
    def draw(self, frame: Frame) -> list[Chart]:
        """The charts of this figure; none where the study has no data for it.

        Args:
            frame: The rows of a study.
        """


@dataclass(frozen=True)
class Plate:
    """A figure with its charts."""

    figure: Figure
    charts: tuple[Chart, ...]


def draw_all(frame: Frame) -> list[Plate]:
    """Every registered figure that has something to show, in the order of the page."""
    figures = sorted((FIGURES[name]() for name in FIGURES), key=lambda figure: (figure.place, figure.name))
    plates = (Plate(figure, tuple(figure.draw(frame))) for figure in figures)
    return [plate for plate in plates if plate.charts]


def chart_name(figure: str, choices: Mapping[str, str]) -> str:
    """A name for files: the figure and what was chosen, in plain letters."""
    return "-".join(part for part in (figure, *map(_plain, choices.values())) if part)


def _plain(words: str) -> str:
    letters = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]+", "_", letters).strip("_").lower()
