"""Scores of predictions over the whole set, and ``evaluate``, which computes all of them."""

from qbayes.metrics.evaluate import evaluate
from qbayes.metrics.scores import METRICS, Metric, Scores, metric

__all__ = ["METRICS", "Metric", "Scores", "evaluate", "metric"]
