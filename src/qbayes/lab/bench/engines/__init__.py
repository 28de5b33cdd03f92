"""Engines: ways to run a network by a method, ours and those that one would take otherwise."""
