"""The target ``c``: a program as plain C99 for machines without an operating system, a heap or floats."""

from qbayes.export.c.target import CTarget

__all__ = ["CTarget"]
