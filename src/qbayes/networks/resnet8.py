"""ResNet-8, the network of MLPerf Tiny for CIFAR-10 (Banbury et al. 2021): three residual blocks."""

from torch import Tensor, nn

from qbayes.networks import NETWORKS
from qbayes.networks.base import Kind, Network, Noise, check_image
from qbayes.networks.residual import Block, initialise, masks_of, stem

_FILTERS = (16, 32, 64)


@NETWORKS.register("resnet8")
class ResNet8(Network):
    """A 3×3 stem of 16 channels, then one block each of 16, 32 and 64; the second and third halve the sides.

    For RGB and 10 classes it has 78,042 parameters: 77,360 weights, 672 numbers of batch norms and 10 biases.
    A 32×32 image takes 12,501,632 multiplications. A batch norm stands behind every convolution, also those
    of the shortcuts, and takes the place of its bias: folded, the network is MLPerf Tiny's.

    Args:
        input_shape: The shape of one row, without the batch.
        outputs: The number of classes, or the shape of the targets, as a tuple.
        kind: ``classification`` by default, or ``regression``.
        noise: For a regression: ``row``, the default, has a head for the noise of each row; ``constant`` has
            none, and one noise is learned outside.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        outputs: tuple[int, ...],
        kind: Kind = "classification",
        *,
        noise: Noise = "row",
    ) -> None:
        super().__init__()
        channels, _, _ = check_image("resnet8", input_shape, smallest=1)
        first, second, third = _FILTERS
        self.stem = stem(channels, first)
        self.stage1 = nn.Sequential(Block(first, first, 1))
        self.stage2 = nn.Sequential(Block(first, second, 2))
        self.stage3 = nn.Sequential(Block(second, third, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.add_heads(third, outputs, kind, noise, bias=True)
        self.paper_masks = masks_of(f"stage{stage}.0" for stage in (1, 2, 3))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        z = self.stage3(self.stage2(self.stage1(self.stem(x))))
        return self.answer(self.flatten(self.pool(z)))
