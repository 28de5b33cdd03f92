"""Scores over bits where weights and activations have as many, down to two."""

from qbayes.lab.report.charts.chart import FIGURES
from qbayes.lab.report.charts.sweep import SweepFigure


@FIGURES.register("equal_bits")
class EqualBits(SweepFigure):
    """Each score over W = A, one line a method."""

    name = "equal_bits"
    title = "Over equal bits, W = A"
    place = 12
    kind = "equal bits"
