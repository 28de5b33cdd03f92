"""A program as plain C99: the generator, its runtime of headers, and what a board needs."""

# these modules register the emitters of our ops.
from qbayes.export.c import ops, weighted

__all__ = ["ops", "weighted"]
