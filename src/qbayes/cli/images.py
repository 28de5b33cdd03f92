"""A picture as one row of raw inputs: cut to its middle, scaled to the network's size."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qbayes.cli.console import note
from qbayes.errors import BadFile, BadInput

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
# by channels; a picture of another mode is converted.
_MODES = {1: "L", 3: "RGB"}
_FORMATS = ("PNG", "JPEG")
# of one file: more would take gigabytes before anything is known of it.
_MOST_PIXELS = 50_000_000
_AXES = 3


def read_image(path: Path, input_shape: Sequence[int], pixels: tuple[float, float]) -> np.ndarray:
    """The picture in ``path`` as an array of one row.

    Args:
        path: A PNG or JPEG file.
        input_shape: Of one row of the network: channels, height, width.
        pixels: The raw inputs that stand for black and for white.

    Returns:
        An array of shape ``(1, channels, height, width)``.
    """
    if len(input_shape) != _AXES or input_shape[0] not in _MODES:
        raise BadInput(
            "a picture needs a network that reads one or three channels, height and width",
            f"{path}, and a network that reads {tuple(input_shape)}",
            "give the rows as x.npy",
        )
    channels, height, width = input_shape
    image = _open(path, _MODES[channels], (width, height))
    rows = np.asarray(image, np.float32).reshape(1, height, width, channels).transpose(0, 3, 1, 2)
    low, high = pixels
    return low + rows * ((high - low) / 255)


def _open(path: Path, mode: str, size: tuple[int, int]) -> "Image.Image":
    if importlib.util.find_spec("PIL") is None:
        raise BadInput("pictures need Pillow", "it is not installed", "pip install 'qbayes[report]'")
    from PIL import Image, ImageOps

    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise BadInput(
                    f"a picture must have at most {_MOST_PIXELS:,} pixels",
                    f"{path} has {image.width} × {image.height}",
                    "reduce it first",
                )
            if image.size != size:
                width, height = size
                given = f"{image.width} × {image.height}"
                note(f"{path.name}: {given} pixels, cut and scaled to {width} × {height}")
            return ImageOps.fit(image.convert(mode), size, Image.Resampling.BOX)
    except FileNotFoundError:
        raise BadFile("the input must be there", f"no file {path}", "check the path") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadFile(
            "a picture must be a sound PNG or JPEG file", f"{path}: {reason}", "save it anew"
        ) from None
