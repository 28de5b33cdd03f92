"""The target ``onnx``: models for ONNX Runtime, OpenVINO and whatever else reads ONNX."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qbayes.export.base import TARGETS, Target, Written, kinds
from qbayes.integer.onnx.dialect import QOPERATOR
from qbayes.integer.program import Program


@TARGETS.register("onnx")
class Onnx(Target):
    """One ``.onnx`` file, or one for each member."""

    name = "onnx"
    summary = "ONNX models, with noise and statistics in the graph"
    options = ("dialect", "noise", "draws", "outputs", "members")

    def ops(self) -> frozenset[str]:
        return kinds(set(QOPERATOR.writers))

    def export(self, program: Program, path: Path, options: Mapping[str, Any], *, force: bool) -> Written:
        from qbayes.export.onnx import Options, export_onnx
        from qbayes.integer.onnx.graph import OPSET

        chosen = Options(**options)
        files = export_onnx(program, path, chosen, force=force)
        notes = [f"opset {OPSET}, dialect {chosen.dialect}, noise {chosen.noise}, {chosen.draws} draws"]
        return Written(tuple(files), tuple(notes))
