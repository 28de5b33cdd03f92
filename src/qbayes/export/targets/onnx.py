"""The target ``onnx``: models for ONNX Runtime, OpenVINO and whatever else reads ONNX."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from qbayes.export.base import TARGETS, Reader, Target, Written, kinds
from qbayes.export.onnx.metadata import Options
from qbayes.integer.onnx.dialect import QOPERATOR
from qbayes.integer.program import Program


@TARGETS.register("onnx")
@dataclass(frozen=True)
class OnnxTarget(Options, Target):
    """One ``.onnx`` file, or one for each member.

    Attributes:
        dialect: How quantised ops are written; ``qoperator`` by default.
        noise: ``inside``, the default: the graph draws its own, and every run differs. ``inputs``: masks and
            codes of ε are inputs; the same ones give the same bits.
        draws: Draws of the posterior in one run; 20 by default. With ``members="files"`` those of each file.
        outputs: What the model answers; ``mean``, ``variance``, ``entropy`` and ``mutual_information`` by
            default.
        members: ``batch``, the default, puts all members into one model; ``files`` writes one file each.
    """

    summary: ClassVar[str] = "ONNX models, with noise and statistics in the graph"

    @classmethod
    def ops(cls) -> frozenset[str]:
        return kinds(QOPERATOR.writers)

    @classmethod
    def read(cls, words: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
        if "outputs" not in words:
            return dict(words)
        return {**words, "outputs": tuple(part.strip() for part in words["outputs"].split(","))}

    def write(self, program: Program, place: Path, *, overwrite: bool = False) -> Written:
        from qbayes.export.onnx import export_onnx
        from qbayes.integer.onnx.graph import OPSET

        chosen = Options(**{field.name: getattr(self, field.name) for field in fields(Options)})
        files = export_onnx(program, place, chosen, force=overwrite)
        sizes = {str(path): path.stat().st_size for path in files}
        lines = [f"{path}: {size:,} bytes" for path, size in sizes.items()]
        lines.append(f"opset {OPSET}, dialect {self.dialect}, noise {self.noise}, {self.draws} draws")
        facts = {
            "target": "onnx",
            "bytes": sizes,
            "opset": OPSET,
            "dialect": self.dialect,
            "noise": self.noise,
            "draws": self.draws,
        }
        return Written(tuple(files), facts, tuple(lines))
