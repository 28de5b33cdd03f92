"""ResNet-18 for small images (He et al. 2016): a 3×3 stem without pooling, four stages of two blocks."""

from torch import Tensor, nn

from qbayes.errors import BadInput, nearest
from qbayes.networks import NETWORKS
from qbayes.networks.base import Kind, Network, Noise, check_image
from qbayes.networks.residual import Block, initialise, masks_of, stem

WIDTHS = {"slim": 24, "standard": 64}
_LARGEST_WIDTH = 1 << 16


@NETWORKS.register("resnet18")
class ResNet18(Network):
    """A stem and four stages, which have 1, 2, 4 and 8 times as many channels as the stem.

    ``"slim"`` (24, the paper's) has 1,575,192 parameters for RGB and 10 classes, ``"standard"`` (64) has
    11,173,952. The last layer has no bias, except in regression.

    Args:
        input_shape: The shape of one row, without the batch.
        outputs: The number of classes, or the shape of the targets, as a tuple.
        kind: ``classification`` by default, or ``regression``.
        width: The stem's number of channels, or ``slim``, the default, or ``standard``.
        noise: For a regression: ``row``, the default, has a head for the noise of each row; ``constant`` has
            none, and one noise is learned outside.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        outputs: tuple[int, ...],
        kind: Kind = "classification",
        *,
        width: str | int = "slim",
        noise: Noise = "row",
    ) -> None:
        super().__init__()
        channels, _, _ = check_image("resnet18", input_shape, smallest=1)
        base = _channels(width)
        self.stem = stem(channels, base)
        self.stage1 = nn.Sequential(Block(base, base, 1), Block(base, base, 1))
        self.stage2 = nn.Sequential(Block(base, 2 * base, 2), Block(2 * base, 2 * base, 1))
        self.stage3 = nn.Sequential(Block(2 * base, 4 * base, 2), Block(4 * base, 4 * base, 1))
        self.stage4 = nn.Sequential(Block(4 * base, 8 * base, 2), Block(8 * base, 8 * base, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.add_heads(8 * base, outputs, kind, noise, bias=kind == "regression")
        self.paper_masks = masks_of(f"stage{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        z = self.stage4(self.stage3(self.stage2(self.stage1(self.stem(x)))))
        return self.answer(self.flatten(self.pool(z)))


def _channels(width: str | int) -> int:
    named = WIDTHS.get(width) if isinstance(width, str) else width
    if type(named) is not int or not 1 <= named < _LARGEST_WIDTH:
        raise BadInput(
            "the width of resnet18 must be 'slim', 'standard' or a positive number of channels below 2^16",
            repr(width),
            nearest(str(width), WIDTHS),
        )
    return named
