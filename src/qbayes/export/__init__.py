"""Programs in other forms, for other machines: one member of the shelf a target."""

from qbayes.export.base import TARGETS, Target, Written, make_target

__all__ = ["TARGETS", "Target", "Written", "make_target"]
