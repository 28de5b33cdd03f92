"""Telling test data from confusion data by entropy, over bits: AUROC, AUPR, FPR95, which the paper lacks."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure
from qbayes.lab.report.charts.groups import groups_of
from qbayes.lab.report.charts.points import unit
from qbayes.lab.report.charts.sweep import SWEEPS, sweep_chart

METRICS = ("confusion/auroc", "confusion/aupr", "confusion/fpr95", "confusion/auroc_mutual_information")


@FIGURES.register("detection")
class Detection(Figure):
    """AUROC and its kin over each sweep of bits."""

    name = "detection"
    title = "Telling test from confusion data"
    caption = "Rows are ranked by their entropy: AUROC 1 separates the two sets wholly, 0.5 is chance."
    place = 20

    def draw(self, frame: Frame) -> list[Chart]:
        charts: list[Chart] = []
        for group in groups_of(frame):
            for over, sweeps in SWEEPS.items():
                for sweep in sweeps(group)[:1]:
                    for metric in METRICS:
                        choices = {**group.choices, "over": over, "metric": unit(metric).label}
                        main = metric != METRICS[-1]
                        charts += sweep_chart(self, group, sweep, metric, choices, main=main)
        return charts
