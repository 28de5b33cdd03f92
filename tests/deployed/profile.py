"""Which kernels a runtime ran for the weighted ops of a program, read from its own profile."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.onnx.runtimes import EXACT, core
from qbayes.integer.ops import Weighted
from qbayes.integer.program import Program

# kinds of nodes that multiply matrices, in ONNX Runtime and in OpenVINO.
INTEGER = {"QLinearConv", "ConvInteger", "MatMulInteger", "QLinearMatMul", "MatMulIntegerToFloat"}
FLOAT = {"Conv", "FusedConv", "MatMul", "FusedMatMul", "Gemm"}
PRODUCTS = {"Convolution", "GroupConvolution", "FullyConnected", "MatMul"}


def narrow_ops(program: Program) -> list[str]:
    """The weighted ops that int8 can hold: bytes come in and go out."""
    values = program.values
    return [
        op.name
        for op in program.ops
        if isinstance(op, Weighted) and max(values[op.inputs[0]].bits, values[op.output].bits) <= MOST_BITS
    ]


def ort_kernels(model: bytes, feeds: Mapping[str, np.ndarray], folder: Path) -> list[tuple[str, str]]:
    """(node, operator) of every kernel that ran, at the default level of optimisation."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, dict(feeds))
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    ran = [event for event in events if event.get("cat") == "Node" and "kernel_time" in event["name"]]
    return [(event["name"], event["args"]["op_name"]) for event in ran]


def openvino_kernels(model: bytes) -> list[tuple[str, str]]:
    """(original nodes, kernel) of every matrix product in the compiled graph."""
    compiled = core().compile_model(core().read_model(model, b""), "CPU", EXACT)
    infos = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    return [
        (info["originalLayersNames"].astype(str), info["primitiveType"].astype(str))
        for info in infos
        if info["layerType"].astype(str) in PRODUCTS
    ]
