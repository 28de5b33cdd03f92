"""Short hashes of tensors, whatever they are called and however wide their integers are held."""

import hashlib
import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

# what a case holds: hashes by name, a few scores that can be read, or the class of a refusal.
Entry = dict[str, str | float]
_LENGTH = 16


def sha(parts: Tensor | Iterable[Tensor]) -> str:
    """Of kind, shape and contents. Whole numbers count as int64: a code is the same in a byte and a word."""
    found = hashlib.sha256()
    for part in [parts] if isinstance(parts, Tensor) else parts:
        array = canonical(part)
        found.update(f"{array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return found.hexdigest()[:_LENGTH]


def canonical(part: Tensor) -> np.ndarray:
    """Contiguous and little-endian; −0 stays apart from 0, as bits are compared."""
    held = part.detach().cpu()
    array = (held if held.is_floating_point() else held.to(torch.int64)).contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<"))


def of_scores(scores: Mapping[str, float], told: Iterable[str]) -> Entry:
    """A hash of all numbers without their names, and six digits of those that a difference is read from."""
    bits = sorted(np.float64(value).tobytes() for value in scores.values())
    whole = hashlib.sha256(b"".join(bits)).hexdigest()[:_LENGTH]
    return {"scores": whole} | {name: _shown(scores[name]) for name in told if name in scores}


def _shown(value: float) -> float | str:
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)
