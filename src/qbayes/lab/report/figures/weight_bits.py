"""Scores over the bits of the weights, with the activations fixed (the paper's figures 5, 7, 9, 12, 16)."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure
from qbayes.lab.report.charts.sweep import draw_sweep


@FIGURES.register("weight_bits")
class WeightBits(Figure):
    """Each score over weight bits, one line a method."""

    name = "weight_bits"
    title = "Over weight bits"
    caption = "Means over seeds and folds; whiskers: lowest and highest seed. Dotted: the level of float."
    place = 11

    def draw(self, frame: Frame) -> list[Chart]:
        return draw_sweep(frame, self.name, "weight bits")
