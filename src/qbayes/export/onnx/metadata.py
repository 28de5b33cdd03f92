"""What travels in an exported model beside its graph, and the hash by which damage is found."""

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from qbayes.export.onnx.noise import noise_sites
from qbayes.export.onnx.options import Options
from qbayes.integer.onnx.graph import OPSET
from qbayes.integer.program.program import Program

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
