"""Scores over the bits of the weights, with the activations fixed (the paper's figures 5, 7, 9, 12, 16)."""

from qbayes.lab.report.charts.chart import FIGURES
from qbayes.lab.report.charts.sweep import SweepFigure


@FIGURES.register("weight_bits")
class WeightBits(SweepFigure):
    """Each score over weight bits, one line a method."""

    name = "weight_bits"
    title = "Over weight bits"
    place = 11
    kind = "weight bits"
