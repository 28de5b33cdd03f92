"""Posteriors on disk and in copies; nothing is unpickled."""
