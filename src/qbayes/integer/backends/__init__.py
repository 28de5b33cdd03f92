"""Backends that run programs, one file a member: ``reference`` is exact everywhere, others are faster."""
