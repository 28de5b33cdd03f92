"""The files of a page by name: its own ones as they are, the models, the manifest and the runtime."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from qbayes.export.web.manifest import Shown
from qbayes.export.web.runtime_files import BINARY, SCRIPT, runtime_files

MANIFEST, PAGE = "manifest.json", "index.html"
# not .mjs: servers whose list of types lacks it send no script.
RUNTIME_SCRIPT = f"runtime/{Path(SCRIPT).stem}.js"
RUNTIME_BINARY = f"runtime/{BINARY}"


def page_files(manifest: Mapping[str, Any], shown: Sequence[Shown], runtime: Path | None) -> dict[str, bytes]:
    """Everything a static server needs to serve."""
    held = runtime_files(runtime)
    return {
        **_assets(),
        MANIFEST: json.dumps(manifest, separators=(",", ":"), allow_nan=False).encode(),
        **{one.file: one.content for one in shown},
        RUNTIME_SCRIPT: held[SCRIPT],
        RUNTIME_BINARY: held[BINARY],
    }


def _assets() -> dict[str, bytes]:
    folder = resources.files("qbayes.export.web") / "assets"
    found = {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}
    return {f"runtime/{name}" if name == "LICENSE.txt" else name: found[name] for name in sorted(found)}
