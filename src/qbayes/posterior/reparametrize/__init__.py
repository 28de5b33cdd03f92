"""The draw of a Gaussian layer in training: Triton on a GPU, C on a CPU, torch elsewhere."""
