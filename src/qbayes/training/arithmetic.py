"""In which arithmetic a network trains: one place decides, from the device, its processor and the data.

bfloat16 is used by autocast: factors of products and convolutions are rounded to it. Sums stay in float32;
so do parameters, the statistics of batch normalisation, the loss and the optimiser.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from qbayes.training.budget import Budget

AUTO = "auto"
# what cpuinfo calls products of bfloat16: on x86 AVX-512 BF16 or AMX, on Arm BF16.
_PRODUCTS = ("avx512_bf16", "amx_bf16", "bf16")
# torch before 2.10 has no public list of what a processor can do.
_ASKED_BEFORE = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
# (channels, height, width)
_IMAGE = 3
_AMPERE = (8, 0)


def resolve_arithmetic(budget: Budget, device: torch.device, input_shape: Sequence[int]) -> Budget:
    """The budget with ``bf16`` as a yes or a no: what will run on this device, and what keys record.

    Args:
        budget: its ``bf16`` may be ``"auto"``: bfloat16 for images, where the device has products of it.
        device: where training runs.
        input_shape: of one row; three axes are an image.

    Returns:
        The same budget, ``bf16`` being true or false. Where bfloat16 is asked for by name and the device has
        no such products, the answer is float32, with a warning: emulation would be slower than float32.

    Example:
        >>> from qbayes import Budget
        >>> resolve_arithmetic(Budget(bf16="auto"), torch.device("cpu"), (13,)).bf16
        False
    """
    if budget.bf16 is False:
        return budget
    fast = has_bf16(device)
    if budget.bf16 is True and not fast:
        warnings.warn(
            f"bf16 must have a processor with such products; {device.type} has none: training runs in "
            "float32, which is right and slower. Leave bf16 out, or at 'auto', to say so.",
            stacklevel=2,
        )
    wanted = budget.bf16 is True or len(input_shape) == _IMAGE
    return dataclasses.replace(budget, bf16=fast and wanted)


def has_bf16(device: torch.device) -> bool:
    """Whether products of bfloat16 are instructions of this device, not emulated."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _AMPERE
    return device.type == "cpu" and _processor_has_bf16()


@functools.cache
def _processor_has_bf16() -> bool:
    tell: Callable[[], Mapping[str, Any]] | None = getattr(torch.cpu, "get_capabilities", None)
    if tell is not None:
        capabilities = tell()
        return any(capabilities.get(name) for name in _PRODUCTS)
    asked = (getattr(torch.cpu, name, None) for name in _ASKED_BEFORE)
    return any(ask is not None and ask() for ask in asked)
