"""What a result records about where it came from: versions and device."""

import importlib.metadata
import platform

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
