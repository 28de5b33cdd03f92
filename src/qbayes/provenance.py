"""What a result records about where it came from: versions and device."""

import importlib.metadata
import platform
from pathlib import Path

import numpy as np
import torch


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


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"


def processor() -> str:
    """The CPU's model as Linux names it, elsewhere what Python knows of it."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
