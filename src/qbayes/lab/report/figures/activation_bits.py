"""Scores over the bits of the activations, with the weights fixed (the paper's figures 4, 6, 8, 11, 15)."""

from qbayes.lab.report.charts.chart import FIGURES
from qbayes.lab.report.charts.sweep import SweepFigure


@FIGURES.register("activation_bits")
class ActivationBits(SweepFigure):
    """Each score over activation bits, one line a method."""

    name = "activation_bits"
    title = "Over activation bits"
    place = 10
    kind = "activation bits"
