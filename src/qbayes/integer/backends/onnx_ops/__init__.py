"""Ops of a program as kernels of a runtime for ONNX models."""
