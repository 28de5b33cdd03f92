"""Posteriors: what answers ``predict``, the sources of its randomness, and how it is kept on disk."""
