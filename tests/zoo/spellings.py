"""Networks that hold the rarer operations and the many ways in which PyTorch lets one write them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SharedLayer(nn.Module):
    """One convolution called twice, with a norm of its own behind each call: neither norm can fold."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12)
        self.conv = nn.Conv2d(12, 12, 3, padding=1)
        self.first, self.second = nn.BatchNorm2d(12), nn.BatchNorm2d(12)
        self.relu = nn.ReLU()
        self.classifier = nn.Linear(12 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem_norm(self.stem(x)))
        once = self.relu(self.first(self.conv(x)))
        twice = self.second(self.conv(once))
        x = torch.sub(twice, x) - 0.5 * once
        return self.classifier(F.max_pool2d(self.relu(x), 2).flatten(start_dim=1))


class Pools(nn.Module):
    """Padded, uneven, overlapping, dilated and ceiling windows; a norm behind a ReLU and behind a pool."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.padded = nn.AvgPool2d(3, stride=2, padding=1)
        self.conv2, self.norm2 = nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16, affine=False)
        self.ceiling = nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)
        self.uneven = nn.AdaptiveAvgPool2d((2, None))
        self.dilated = nn.MaxPool2d(2, stride=1, dilation=2)
        self.norm3 = nn.BatchNorm2d(32)
        self.classifier = nn.Linear(32 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.padded(self.norm1(F.relu(self.conv1(x))))
        x = F.relu(self.norm2(self.conv2(x)))
        left = self.uneven(self.ceiling(x))
        left = F.avg_pool2d(left, (1, 2), stride=1, divisor_override=3)
        right = self.dilated(F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False))
        right = torch.add(right, F.avg_pool2d(x, 3, stride=2, ceil_mode=True), alpha=0.5)
        return self.classifier(torch.flatten(self.norm3(torch.cat([left, right], dim=1)), 1))


class MobileNetV3(nn.Module):
    """Howard et al. 2019: hard sigmoid and hard swish; other edges than zeros; GELU, ELU and softplus."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1, padding_mode="reflect", bias=False)
        self.stem_norm, self.swish = nn.BatchNorm2d(12), nn.Hardswish()
        self.edge = nn.ReflectionPad2d(1)
        self.depthwise, self.norm = nn.Conv2d(12, 12, 3, groups=12, bias=False), nn.BatchNorm2d(12)
        self.squeeze, self.excite = nn.Conv2d(12, 8, 1), nn.Conv2d(8, 12, 1)
        self.project, self.project_norm = nn.Conv2d(12, 20, 3, stride=2), nn.BatchNorm2d(20)
        self.hidden, self.classifier = nn.Linear(20, 32), nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.swish(self.stem_norm(self.stem(x)))
        y = F.hardswish(self.norm(self.depthwise(self.edge(x))))
        gate = F.adaptive_avg_pool2d(y, 1)
        gate = F.hardsigmoid(self.excite(F.elu(self.squeeze(gate))))
        x = x + torch.mul(gate, y)
        x = self.project_norm(self.project(F.pad(x, (1, 1, 1, 1), mode="replicate")))
        x = F.gelu(x).mean([2, 3])
        return self.classifier(F.softplus(self.hidden(x)))


class ShuffleUnit(nn.Module):
    """Half of the channels pass, half are filtered; then the halves are interleaved."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, filtered = x.chunk(2, dim=1)
        x = torch.cat((kept, self.branch(filtered)), 1)
        rows, channels, height, width = x.shape
        x = x.view(rows, 2, channels // 2, height, width)
        return torch.transpose(x, 1, 2).contiguous().view(rows, channels, height, width)


class ShuffleNet(nn.Module):
    """Ma et al. 2018, with an input shifted and scaled by constants and a limited output."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.units = nn.Sequential(ShuffleUnit(24), ShuffleUnit(24))
        self.pool = nn.MaxPool2d(2)
        self.grouped, self.norm = nn.Conv2d(24, 24, 3, groups=3), nn.BatchNorm2d(24)
        self.classifier = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = (x + 0.25) / 1.5
        x = self.units(self.pool(self.stem(x)))
        x = torch.clamp(self.norm(self.grouped(x)), min=-1.0, max=4.0)
        return self.classifier(x.abs().mean(dim=3).mean(dim=2))


class WaveNet(nn.Module):
    """Van den Oord et al. 2016 on sequences: causal, gated, dilated; a highway; a linear layer along time."""

    def __init__(self, classes: int = 4, channels: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, channels, 1)
        self.gated = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 3, dilation=d) for d in (1, 2))
        self.mixed = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(2))
        self.carry = nn.Conv1d(channels, channels, 3, padding=1)
        self.along = nn.Linear(channels, 16)
        self.unflatten = nn.Unflatten(1, (4, 4))
        self.classifier = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skip = -x
        for dilation, gated, mixed in zip((1, 2), self.gated, self.mixed, strict=True):
            value, gate = torch.chunk(gated(F.pad(x, (2 * dilation, 0))), 2, dim=1)
            new = mixed(value.tanh() * gate.sigmoid())
            x, skip = x + new, skip + new
        keep = torch.sigmoid(self.carry(x))
        x = keep * F.silu(skip) + (1 - keep) * x.clamp(-2, 2)
        z = F.relu(self.along(x[..., 1::2].transpose(1, 2)))
        z = self.unflatten(z.transpose(1, 2).mean(-1)).transpose(-1, -2)
        return self.classifier(z.reshape(-1, 16))
