"""What the residual networks share: stem, block, first weights and the places of the paper's dropout."""

from collections import OrderedDict
from collections.abc import Iterable

from torch import Tensor, nn


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


def stem(channels: int, filters: int) -> nn.Sequential:
    """A 3×3 convolution of the image's ``channels`` with BN and ReLU, without pooling."""
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(channels, filters, 3, padding=1, bias=False),
            bn=nn.BatchNorm2d(filters),
            relu=nn.ReLU(),
        )
    )


def masks_of(blocks: Iterable[str]) -> tuple[str, ...]:
    """The paper's dropout: behind the stem, inside each of the named ``blocks`` and behind its branch."""
    return ("after:stem.relu", *(f"after:{block}.{place}" for block in blocks for place in ("relu1", "bn2")))


def initialise(network: nn.Module) -> None:
    """Var(w) = 2 / fan_out keeps the variance of the gradients through ReLU (He et al. 2015)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
