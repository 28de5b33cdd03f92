"""Scores over the bits of the activations, with the weights fixed (the paper's figures 4, 6, 8, 11, 15)."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure
from qbayes.lab.report.charts.sweep import draw_sweep


@FIGURES.register("activation_bits")
class ActivationBits(Figure):
    """Each score over activation bits, one line a method."""

    name = "activation_bits"
    title = "Over activation bits"
    caption = "Means over seeds and folds; whiskers: lowest and highest seed. Dotted: the level of float."
    place = 10

    def draw(self, frame: Frame) -> list[Chart]:
        return draw_sweep(frame, self.name, "activation bits")
