"""Programs in other forms, for other runtimes and machines; ``TARGETS`` finds the writers by name."""

from qbayes.export.base import TARGETS, Target, Written, check_options, flag, make_target

__all__ = ["TARGETS", "Target", "Written", "check_options", "flag", "make_target"]
