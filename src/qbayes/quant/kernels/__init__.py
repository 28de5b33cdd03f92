"""Kernels of fine-tuning: Triton on a GPU, C on a CPU, torch elsewhere."""
