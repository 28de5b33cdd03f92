"""Small versions of well-known networks in plain PyTorch: nothing in them knows of Bayes or of bits.

Images are 1×8×8, sequences 2×32. Together with ``zoo.spellings`` they use every operation that an integer
program has, in the ways in which people write them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def convolution(inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)


class Vgg(nn.Sequential):
    """Simonyan and Zisserman 2015, with batch normalisation and the Dropout of its classifier."""

    def __init__(self, classes: int = 10) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 8), (8, 16)):
            for before in (inputs, outputs):
                layers += [nn.Conv2d(before, outputs, 3, padding=1), nn.BatchNorm2d(outputs)]
                layers += [nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(2)]
        head = [nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, classes)]
        super().__init__(nn.Sequential(*layers), nn.Flatten(), nn.Sequential(*head))


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project without an activation; add the input where shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int = 3) -> None:
        super().__init__()
        wide = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            convolution(inputs, wide, 1),
            nn.BatchNorm2d(wide),
            nn.ReLU6(inplace=True),
            convolution(wide, wide, 3, stride=stride, groups=wide),
            nn.BatchNorm2d(wide),
            nn.ReLU6(inplace=True),
            convolution(wide, outputs, 1),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class MobileNetV2(nn.Module):
    """Sandler et al. 2018."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(1, 12, 3, stride=2), nn.BatchNorm2d(12), nn.ReLU6())
        self.blocks = nn.Sequential(
            InvertedResidual(12, 12, 1), InvertedResidual(12, 16, 2), InvertedResidual(16, 16, 1)
        )
        self.last = nn.Sequential(convolution(16, 48, 1), nn.BatchNorm2d(48), nn.ReLU6())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.blocks(self.stem(x)))
        return self.classifier(torch.flatten(self.pool(x), 1))


class DenseLayer(nn.Module):
    """Norm, ReLU, convolution: the norm reads a concatenation, so no convolution can take it in."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), convolution(inputs, 2 * growth, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(2 * growth), convolution(2 * growth, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv1(F.relu(self.norm1(x)))
        new = self.conv2(F.relu(self.norm2(new)))
        return torch.cat([x, new], 1)


class DenseNet(nn.Module):
    """Huang et al. 2017."""

    def __init__(self, classes: int = 10, growth: int = 8) -> None:
        super().__init__()
        self.stem = convolution(1, 8, 3)
        self.first = nn.Sequential(DenseLayer(8, growth), DenseLayer(16, growth))
        self.transition = nn.Sequential(
            nn.BatchNorm2d(24), nn.ReLU(inplace=True), convolution(24, 16, 1), nn.AvgPool2d(2)
        )
        self.second = DenseLayer(16, growth)
        self.norm = nn.BatchNorm2d(24)
        self.classifier = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.transition(self.first(self.stem(x))))
        x = F.relu(self.norm(x), inplace=True)
        return self.classifier(F.adaptive_avg_pool2d(x, (1, 1)).squeeze(-1).squeeze(-1))


class SqueezeExcite(nn.Module):
    """Hu, Shen and Sun 2018: channels are weighted by what the whole map says of them."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.squeeze, self.excite = nn.Linear(16, 8), nn.Linear(8, 16)
        self.conv, self.norm = nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24)
        self.classifier = nn.Linear(24 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        x = x * gate.view(x.size(0), -1, 1, 1)
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.classifier(x.view(x.size(0), -1))


class PreActivationBlock(nn.Module):
    """Norm and ReLU come before each convolution; the shortcut carries the sum unchanged."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), convolution(inputs, outputs, 3, stride=stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), convolution(outputs, outputs, 3)
        self.shortcut = None
        if stride > 1 or inputs != outputs:
            self.shortcut = convolution(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        out = self.conv2(torch.relu(self.norm2(self.conv1(active))))
        out += shortcut
        return out


class PreActivationResNet(nn.Module):
    """He et al. 2016, *Identity mappings*."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = convolution(1, 12, 3, stride=2)
        self.blocks = nn.Sequential(PreActivationBlock(12, 12, 1), PreActivationBlock(12, 20, 2))
        self.norm, self.relu = nn.BatchNorm2d(20), nn.ReLU()
        self.classifier = nn.Linear(20, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.blocks(self.stem(x))))
        return self.classifier(torch.mean(x, dim=(-2, -1)))


class SequenceNet(nn.Module):
    """Convolutions along time. Its norms start with both signs of γ: folding one must keep the sign."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv1d(2, 16, 5, padding=2), nn.BatchNorm1d(16)
        self.conv2, self.norm2 = nn.Conv1d(16, 16, 3, padding=2, dilation=2), nn.BatchNorm1d(16)
        self.conv3 = nn.Conv1d(16, 24, 3, groups=2)
        self.classifier = nn.Linear(24, classes)
        for norm in (self.norm1, self.norm2):
            nn.init.constant_(norm.weight[::2], -1.0)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool1d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool1d(F.relu(self.norm2(self.conv2(x))), 3, stride=2, padding=1)
        x = F.adaptive_max_pool1d(F.leaky_relu(self.conv3(x), 0.1), 1)
        return self.classifier(x.flatten(1))


class MlpTanh(nn.Sequential):
    """Two hidden layers; two real targets with a constant noise."""

    def __init__(self, inputs: int = 2, targets: int = 2) -> None:
        super().__init__(
            nn.Linear(inputs, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, targets)
        )


class MlpSilu(nn.Module):
    """Two heads, mean and log-variance; a norm behind a linear layer."""

    def __init__(self, inputs: int = 5, targets: int = 1) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(inputs, 48, bias=False), nn.BatchNorm1d(48)
        self.second = nn.Linear(48, 32)
        self.mean, self.log_variance = nn.Linear(32, targets), nn.Linear(32, targets)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = F.silu(self.norm(self.first(x)))
        z = F.silu(self.second(z))
        return {"mean": self.mean(z), "log_variance": self.log_variance(z)}


class UNet(nn.Module):
    """Ronneberger et al. 2015 for 1×7×10 maps: padded to 8×12, halved twice, brought back by repetition, cut.

    ``numbers`` are read off the decoder's map for the whole image; without them the answer is a map.
    """

    def __init__(self, numbers: int | None = 3) -> None:
        super().__init__()
        self.down1, self.down2 = self.block(1, 8), self.block(8, 16)
        self.bottom = self.block(16, 16)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.up2, self.up1 = self.block(32, 8), self.block(16, 8)
        # a linear layer along the channels is a 1×1 convolution with the channels last.
        self.pixel = nn.Linear(8, 1 if numbers is None else 4)
        self.readout = None if numbers is None else nn.Linear(4 * 7 * 10, numbers)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(convolution(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down1(F.pad(x, (1, 1, 0, 1)))
        middle = self.down2(F.max_pool2d(fine, 2))
        coarse = self.bottom(F.max_pool2d(middle, 2))
        middle = self.up2(torch.cat((self.up(coarse), middle), dim=1))
        fine = self.up1(torch.cat((F.interpolate(middle, scale_factor=2, mode="nearest"), fine), dim=1))
        cut = fine[:, :, :7, 1:-1]
        pixels = self.pixel(cut.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return pixels if self.readout is None else self.readout(pixels.reshape(pixels.shape[0], -1))
