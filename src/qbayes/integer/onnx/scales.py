"""Float32 scales of a Conv or Linear such that a runtime's ``S_x S_w / S_o`` is the program's multiplier."""

import numpy as np

from qbayes.integer.arithmetic.fixed_point import real
from qbayes.integer.onnx.op_context import Site
from qbayes.integer.onnx.weights import weighted

# Scales beyond these could leave float32 when they are multiplied.
_SMALLEST, _LARGEST = 2.0**-40, 2.0**40
_NEIGHBOURS = 2


def multipliers(site: Site, name: str = "multiplier") -> np.ndarray:
    """``m / 2^s`` of each output channel in float64, exactly."""
    found = real(site.constants[name], site.constants["shift"].long()).numpy()
    return np.broadcast_to(found, (weighted(site).weight_shape[0],)).copy()


def scales_of(site: Site, name: str = "multiplier") -> tuple[float, np.ndarray, float]:
    """``(S_x, S_w of each channel, S_o)``: what the codes mean, so that other tools can read the model.

    The scale of the weights is the float32 number that brings ``S_x S_w / S_o``, computed in float32, nearest
    to the multiplier. Codes of a scale that float32 products would lose count in steps of 1.
    """
    wanted = multipliers(site, name)
    scale, out_scale = site.scale, site.out_scale
    if not (_SMALLEST < scale < _LARGEST and _SMALLEST < out_scale < _LARGEST):
        scale = out_scale = 1.0
    nearest = (wanted * out_scale / scale).astype(np.float32)
    candidates = [nearest]
    for direction in (-np.inf, np.inf):
        at = nearest
        for _ in range(_NEIGHBOURS):
            at = np.nextafter(at, np.float32(direction))
            candidates.append(at)
    stacked = np.stack(candidates)
    made = (np.float32(scale) * stacked / np.float32(out_scale)).astype(np.float64)
    best = np.abs(made - wanted).argmin(0)
    return scale, np.take_along_axis(stacked, best[None], 0)[0], out_scale
