"""ResNet-18 for small images (He et al. 2016): a 3×3 stem without pooling, four stages of two blocks."""

from collections import OrderedDict

from torch import Tensor, nn

from qbayes.errors import BadInput, nearest
from qbayes.networks import NETWORKS
from qbayes.networks.base import Kind, Network, Noise, check_image

WIDTHS = {"slim": 24, "standard": 64}
_LARGEST_WIDTH = 1 << 16


class Block(nn.Module):
    """``y = relu(shortcut(x) + bn2(conv2(relu(bn1(conv1(x))))))``, 3×3 convolutions.

    The shortcut is a 1×1 convolution with BN where the shape changes, and the identity elsewhere. Every
    ReLU is a module of its own, so that each place in the graph has a name.
    """

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != filters:
            self.shortcut = nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(inputs, filters, 1, stride, bias=False), bn=nn.BatchNorm2d(filters)
                )
            )
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(branch + self.shortcut(x))


@NETWORKS.register("resnet18")
class ResNet18(Network):
    """``width`` is the stem's number of channels; the stages have 1, 2, 4 and 8 times as many.

    ``"slim"`` (24, the paper's) has 1,575,192 parameters for RGB and 10 classes, ``"standard"`` (64) has
    11,173,952. The last layer has no bias, except in regression.
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
        self.stem = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(channels, base, 3, padding=1, bias=False),
                bn=nn.BatchNorm2d(base),
                relu=nn.ReLU(),
            )
        )
        self.stage1 = nn.Sequential(Block(base, base, 1), Block(base, base, 1))
        self.stage2 = nn.Sequential(Block(base, 2 * base, 2), Block(2 * base, 2 * base, 1))
        self.stage3 = nn.Sequential(Block(2 * base, 4 * base, 2), Block(4 * base, 4 * base, 1))
        self.stage4 = nn.Sequential(Block(4 * base, 8 * base, 2), Block(8 * base, 8 * base, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.add_heads(8 * base, outputs, kind, noise, bias=kind == "regression")
        blocks = [f"stage{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
        inside = (f"after:{block}.{place}" for block in blocks for place in ("relu1", "bn2"))
        self.paper_masks = ("after:stem.relu", *inside)
        self._initialise()

    def _initialise(self) -> None:
        """Var(w) = 2 / fan_out keeps the variance of the gradients through ReLU (He et al. 2015)."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

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
