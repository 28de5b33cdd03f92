"""The options of an exported model, what travels beside its graph, and the hash that finds damage."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from qbayes.errors import BadInput, nearest
from qbayes.export.base import flag
from qbayes.export.onnx.noise import noise_sites
from qbayes.integer.onnx.dialect import DIALECTS, Dialect, dialect_of
from qbayes.integer.onnx.graph import OPSET
from qbayes.integer.program import Program

NOISES = ("inside", "inputs")
MEMBERS = ("batch", "files")
# ``codes`` are the integers that come out of the last op, ``draws`` the answer of every draw,
# ``draw_variances`` the noise of the data that every draw of a regression tells.
OUTPUTS = ("mean", "variance", "entropy", "mutual_information", "draws", "draw_variances", "codes")
DEFAULT_OUTPUTS = OUTPUTS[:4]
MOST_DRAWS = 10_000


@dataclass(frozen=True)
class Options:
    """How a program becomes ONNX.

    ``noise`` is ``inside`` (the graph draws its own, every run differs) or ``inputs`` (masks and codes of ε
    are inputs, the same ones give the same bits). ``members`` are all in one model, ``batch``, or one file
    each, ``files``; ``draws`` then counts those of each file.
    """

    dialect: str = flag("qoperator", "qoperator (ONNX Runtime, by default) or qdq (OpenVINO).")
    noise: str = flag("inside", "inside (the graph draws, by default) or inputs (masks and ε are inputs).")
    draws: int = flag(20, "draws in the graph; 20 by default.", int)
    outputs: tuple[str, ...] = flag(DEFAULT_OUTPUTS, f"{', '.join(OUTPUTS)}; by commas.")
    members: str = flag("batch", "batch (all in one file, by default) or files (one file each).")

    def __post_init__(self) -> None:
        _check_choice("the dialect", self.dialect, tuple(DIALECTS))
        _check_choice("the noise", self.noise, NOISES)
        _check_choice("members", self.members, MEMBERS)
        if (
            isinstance(self.draws, bool)
            or not isinstance(self.draws, int)
            or not 1 <= self.draws <= MOST_DRAWS
        ):
            raise BadInput(
                f"draws must be a whole number from 1 to {MOST_DRAWS}", f"{self.draws!r}", "for example 20"
            )
        if not self.outputs:
            raise BadInput("a model must have an output", "none", f"choose from {', '.join(OUTPUTS)}")
        for name in self.outputs:
            _check_choice("each output", name, OUTPUTS)
        if len(set(self.outputs)) != len(self.outputs):
            raise BadInput("each output must be named once", f"{', '.join(self.outputs)}", "leave one out")

    @property
    def spelling(self) -> Dialect:
        return dialect_of(self.dialect)


def _check_choice(what: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise BadInput(f"{what} must be one of {', '.join(known)}", f"{value!r}", nearest(str(value), known))


PREFIX = "qbayes."
HASH = f"{PREFIX}sha256"


def metadata(program: Program, options: Options, members: list[int]) -> dict[str, str]:
    """Text by name; whatever has parts is JSON."""
    signature = program.signature
    described = signature.to_json()
    entries: dict[str, Any] = {
        "version": library_version(),
        "task": signature.task,
        "labels": list(signature.labels),
        "likelihood": described["likelihood"],
        # done inside the graph: x is in raw units.
        "preprocessing": {"applied": True, **described["transform"]},
        "target": described["target"],
        "bits": {name: value.bits for name, value in program.values.items()},
        "precision": dict(program.precision),
        "provenance": dict(program.provenance),
        "dialect": options.dialect,
        "noise": options.noise,
        "noise_sites": {site.name: site.site for site in noise_sites(program).values()},
        "draws": options.draws,
        "members": {"held": members, "of": len(program.members)},
        "opset": OPSET,
    }
    return {f"{PREFIX}{name}": _text(entry) for name, entry in entries.items()}


def content_hash(model: Any) -> str:
    """sha256 over the graph and all entries but the hash itself."""
    digest = hashlib.sha256(model.graph.SerializeToString(deterministic=True))
    entries = sorted((entry.key, entry.value) for entry in model.metadata_props if entry.key != HASH)
    digest.update(json.dumps(entries).encode())
    return digest.hexdigest()


def read_metadata(model: Any) -> dict[str, Any]:
    """The entries of ``metadata`` again."""
    found = {e.key.removeprefix(PREFIX): e.value for e in model.metadata_props if e.key.startswith(PREFIX)}
    texts = ("version", "task", "dialect", "noise", "sha256")
    return {name: text if name in texts else json.loads(text) for name, text in found.items()}


def _text(entry: Any) -> str:
    return entry if isinstance(entry, str) else json.dumps(entry, sort_keys=True, default=repr)


def library_version() -> str:
    try:
        return version("qbayes")
    except PackageNotFoundError:
        return "unknown"
