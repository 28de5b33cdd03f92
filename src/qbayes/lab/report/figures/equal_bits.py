"""Scores over bits where weights and activations have as many, down to two."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure
from qbayes.lab.report.charts.sweep import draw_sweep


@FIGURES.register("equal_bits")
class EqualBits(Figure):
    """Each score over W = A, one line a method."""

    name = "equal_bits"
    title = "Over equal bits, W = A"
    caption = "Means over seeds and folds; whiskers: lowest and highest seed. Dotted: the level of float."
    place = 12

    def draw(self, frame: Frame) -> list[Chart]:
        return draw_sweep(frame, self.name, "equal bits")
