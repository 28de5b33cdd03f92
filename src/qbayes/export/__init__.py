"""Programs as files that other runtimes read; ``TARGETS`` finds the writers by name."""

from qbayes.export.base import TARGETS, Target, Written

__all__ = ["TARGETS", "Target", "Written"]
