"""The file of golden answers: where it was recorded, how it is read, written and compared."""

import importlib.metadata
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from golden.hashes import Entry

Part = Mapping[str, Entry]
FILE = Path(__file__).with_name("golden.json")
ROOT = Path(__file__).resolve().parents[2]
# another processor adds in another order: a score that training led to comes out as much otherwise …
NEAR = 0.1
# … but for those that jump when one of a few rows changes sides.
_JUMPY = ("error", "ece")
_PACKAGES = ("torch", "numpy", "onnxruntime", "openvino")
_MODEL = ("model name", "cpu family", "model", "stepping")
_INSTRUCTIONS = ("fma", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def place() -> dict[str, str]:
    """What the bits of float arithmetic hang on: the processor, and the packages that calculate."""
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in _PACKAGES}
    return {"processor": processor(), **versions}


def processor() -> str:
    """The model with its numbers, as clouds give many models one name; and its vector instructions."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    model = " ".join(told[name] for name in _MODEL if name in told)
    can = [name for name in _INSTRUCTIONS if name in told.get("flags", "").split()]
    return ", ".join([model or "unknown", torch.backends.cpu.get_cpu_capability(), *can])


def commit() -> str:
    """The commit of the checkout; ``+dirty`` behind it where its sources are not as committed."""
    head, changed = (
        subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout
        for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "src", "tests/golden/verbs.py"])
    )
    return head.strip() + ("+dirty" if changed.strip() else "")


def read(file: Path = FILE) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def write(parts: Mapping[str, Part], file: Path = FILE) -> None:
    """A line a case."""
    held = {"commit": commit(), **place()}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}," for name, value in held.items()]
    for part in sorted(parts):
        cases = ",\n".join(f"{json.dumps(case)}: {json.dumps(entry)}" for case, entry in parts[part].items())
        lines.append(f"{json.dumps(part)}: {{\n{cases}\n}},")
    at = len(held)
    text = "\n".join([*lines[:at], '"cases": {', *lines[at:]]).removesuffix(",")
    file.write_text("{\n" + text + "\n}\n}\n", encoding="utf-8")


def elsewhere(kept: Mapping[str, Any]) -> str:
    """How to record here, where the answers were recorded by another processor or package; else nothing."""
    here = place()
    apart = [f"{name} {here[name]}, not {kept[name]}" for name in here if here[name] != kept[name]]
    if not apart:
        return ""
    return (
        f"golden answers are of another place, this has {'; '.join(apart)}. To compare bit by bit here, "
        f"record them again from the old commit, and keep the file to yourself:\n"
        f"  git -C {ROOT} worktree add {ROOT}-golden {kept['commit']}\n"
        f"  cd {ROOT}-golden && OMP_NUM_THREADS=1 PYTHONPATH=$PWD/src:$PWD/tests {sys.executable} -m golden "
        f"--record --to {FILE}"
    )


def differences(part: str, found: Part, kept: Part, *, near: bool = False) -> list[str]:
    """What is another answer now, a line each. ``near``: as far as another processor must agree."""
    lines = [f"{part}, {case}: no such case is kept" for case in found if case not in kept]
    for case in (case for case in found if case in kept):
        entry, was = found[case], kept[case]
        for name in sorted({*entry, *was}):
            new, old = entry.get(name), was.get(name)
            if not (_agrees(name, new, old) if near else new == old):
                lines.append(f"{part}, {case}: {name} is {new}, was {old}")
        lines += [f"{part}, {case}: {told}" for told in _parted(entry, was) if near]
    return lines


def _parted(entry: Entry, was: Entry) -> list[str]:
    """On every processor C gives the reference's codes, where it did."""
    pairs = [(one, other) for one, other in _PAIRS if one in was and was[one] == was.get(other)]
    return [f"{one} is not {other}" for one, other in pairs if entry.get(one) != entry.get(other)]


_PAIRS = (("c", "codes"), ("c answer", "codes answer"))
_HASH = 16


def _agrees(name: str, new: str | float | None, old: str | float | None) -> bool:
    """Numbers are near, refusals the same, and a hash is a hash."""
    if isinstance(new, str) and isinstance(old, str):
        return new == old or (_is_hash(new) and _is_hash(old))
    if isinstance(new, float) and isinstance(old, float):
        return name in _JUMPY or math.isclose(new, old, rel_tol=NEAR, abs_tol=NEAR)
    return False


def _is_hash(text: str) -> bool:
    return len(text) == _HASH and set(text) <= set("0123456789abcdef")
