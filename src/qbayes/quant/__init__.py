"""Simulated quantisation: ranges, fake-quantised layers, quantisation-aware training."""
