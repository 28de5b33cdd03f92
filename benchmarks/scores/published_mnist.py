"""The tables of docs/results/mnist.md."""

from collections.abc import Callable, Mapping

import published_bounds
import published_controls
import published_made
import published_mask
import published_recipe
import published_shift
from published_images import MNIST
from published_numbers import Lines, Studies

TABLES: Mapping[str, Callable[[Studies], Lines]] = {
    **MNIST.tables,
    **published_made.tables("mnist", "mnist-mask", "mnist-paper"),
    **published_controls.TABLES,
    **published_bounds.TABLES,
    **published_shift.TABLES,
    **published_mask.TABLES,
    **published_recipe.TABLES,
}
