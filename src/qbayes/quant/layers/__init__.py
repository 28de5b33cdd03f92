"""Fake-quantised layers: in training float with straight-through rounding, in evaluation codes."""
