"""What a result records about where it came from: the code, the versions, the processor and the device."""

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

_DIRTY = "+dirty"
_PACKAGE = Path(__file__).parent
_GIT_SECONDS = 20
# of a processor's instructions those by which results differ in their last bits, or kernels in their speed.
_INSTRUCTIONS = (
    "amx_int8", "amx_bf16", "avx512_vnni", "avx512_bf16", "avx512_f", "avx_vnni", "avx2",
    "sve2", "sve", "i8mm", "bf16", "dot", "neon",
)  # fmt: skip
# by these oneDNN is told to use no more than the instructions they name.
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def provenance(device: torch.device) -> dict[str, str]:
    """Where a result comes from: code, versions, processor, its instructions and the device, as words.

    Args:
        device: What it was computed on.

    Example:
        >>> import torch
        >>> from qbayes.provenance import provenance
        >>> sorted(provenance(torch.device("cpu")))[:3]
        ['commit', 'device', 'instructions']
    """
    return {
        "commit": commit(),
        **versions(),
        "processor": processor(),
        "instructions": instructions(),
        "device": device_name(device),
    }


def versions() -> dict[str, str]:
    """Versions of qbayes and of what its numbers depend on."""
    try:
        own = importlib.metadata.version("qbayes")
    except importlib.metadata.PackageNotFoundError:
        own = "not installed"
    return {
        "qbayes": own,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@functools.cache
def commit() -> str:
    """The commit of the code that runs: of its checkout, or of what was installed from a repository.

    A checkout whose package is not as committed says ``+dirty``. A release that was installed as such is
    ``release 0.1.0``, and a checkout that git cannot read is ``unknown``.
    """
    return commit_of(_PACKAGE)


def commit_of(package: Path) -> str:
    """As ``commit``, for the package in a folder."""
    # a package that is installed inside of somebody's repository is no part of it.
    if _git(package, "ls-files", "--error-unmatch", "--", "provenance.py") is not None:
        head = _git(package, "rev-parse", "HEAD")
        changed = _git(package, "status", "--porcelain", "--", ".")
        if head is not None and changed is not None:
            return head + (_DIRTY if changed else "")
    if any((folder / ".git").exists() for folder in package.parents[:2]):
        return "unknown"
    return _commit_of_installation() or f"release {versions()['qbayes']}"


def _git(folder: Path, *words: str) -> str | None:
    """What git says, or None where it is missing or fails."""
    # of the environment's own settings none may point elsewhere, as they do inside of a hook.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            env={**own, "GIT_OPTIONAL_LOCKS": "0"},
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _commit_of_installation() -> str | None:
    """The commit that pip installed from, where it was a repository's (PEP 610)."""
    try:
        found = importlib.metadata.distribution("qbayes").read_text("direct_url.json")
        said = json.loads(found or "{}")
        return str(said["vcs_info"]["commit_id"])
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"


@functools.cache
def processor() -> str:
    """The CPU's model as Linux names it, elsewhere what Python knows of it."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


@functools.cache
def instructions() -> str:
    """The vector instructions that torch dispatches to, what the processor has for products of bytes and
    bfloat16, and how oneDNN is limited: ``AVX512: amx_int8 avx512_vnni …``.
    """
    tell: Callable[[], Mapping[str, Any]] | None = getattr(torch.cpu, "get_capabilities", None)
    # torch before 2.10 has no public list of what a processor can do.
    has = {} if tell is None else tell()
    found = " ".join(name for name in _INSTRUCTIONS if has.get(name) is True)
    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    level = torch.backends.cpu.get_cpu_capability()
    return "; ".join([f"{level}: {found}" if found else level, *limits])
