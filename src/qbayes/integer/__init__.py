"""Integers only: programs, their arithmetic, and the backends that run them."""
