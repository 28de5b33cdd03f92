"""Ops of a program as nodes of ONNX graphs, for the exported files and for the backends that run ONNX."""
