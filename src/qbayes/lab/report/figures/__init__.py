"""Figures of a study: one file each, from a frame to charts."""

from qbayes.lab.report.charts.chart import FIGURES, Figure, Plate, draw_all

__all__ = ["FIGURES", "Figure", "Plate", "draw_all"]
