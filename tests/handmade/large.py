"""Programs of large networks by their shapes alone: ops and values, without members."""

from collections.abc import Sequence

from qbayes.integer.ops import (
    Add,
    AvgPool,
    Concat,
    Conv,
    Linear,
    Mask,
    MaxPool,
    Op,
    Reshape,
    Slice,
    Upsample,
    Value,
    Weights,
)
from qbayes.integer.program import Program
from qbayes.integer.proof.budget import propagate
from qbayes.posterior.likelihood import Categorical
from qbayes.posterior.signature import Signature, Standardize

_POINTS = Weights("point", 8)


class Outline:
    """Ops one after the other; each call adds one and gives the name of its output."""

    def __init__(self, shape: Sequence[int], *, masks: bool = False) -> None:
        self.shape, self.masks = tuple(shape), masks
        self.ops: list[Op] = []
        self.widths = {"x": shape[0]}

    def conv(self, x: str, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        both = ((kernel, kernel), (stride, stride), (kernel // 2,) * 2, (1, 1))
        name = f"conv{len(self.ops)}"
        made = self._add(Conv(name, (x,), name, _POINTS, self.widths[x], channels, *both, groups), channels)
        return self.mask(made) if self.masks else made

    def mask(self, x: str) -> str:
        name = f"mask{len(self.ops)}"
        return self._add(Mask(name, (x,), name, len(self.ops), 0.1), self.widths[x])

    def add(self, *inputs: str) -> str:
        name = f"add{len(self.ops)}"
        return self._add(Add(name, inputs, name), self.widths[inputs[0]])

    def concat(self, *inputs: str) -> str:
        name = f"concat{len(self.ops)}"
        return self._add(Concat(name, inputs, name, 1), sum(self.widths[x] for x in inputs))

    def max_pool(self, x: str, kernel: int = 2, stride: int = 2) -> str:
        name, edge = f"max{len(self.ops)}", (kernel - 1) // 2
        window = [(n, n) for n in (kernel, stride, edge, 1)]
        return self._add(MaxPool(name, (x,), name, *window), self.widths[x])

    def up(self, x: str) -> str:
        name = f"up{len(self.ops)}"
        return self._add(Upsample(name, (x,), name, (2, 2)), self.widths[x])

    def classifier(self, x: str, *widths: int, positions: int = 1) -> Program:
        """The mean of each channel (or its ``positions²`` means), then dense layers."""
        channels = self.widths[x]
        one = ((1, 1), (1, 1), (0, 0))
        self.ops.append(AvgPool("mean", (x,), "mean", *one, adaptive=(positions, positions)))
        features = channels * positions**2
        self.ops.append(Reshape("flat", ("mean",), "flat", (features,)))
        last = "flat"
        for width in widths:
            name = f"linear{len(self.ops)}"
            self.ops.append(Linear(name, (last,), name, _POINTS, features, width))
            last, features = name, width
        return self._program(last, features)

    def corner(self, x: str) -> Program:
        """The answers of one pixel: what is in front of it is what costs."""
        for axis in (2, 3):
            name = f"slice{axis}"
            self.ops.append(Slice(name, (x,), name, axis, 0, 1))
            x = name
        classes = self.widths[self.ops[-3].output]
        self.ops.append(Reshape("flat", (x,), "flat", (classes,)))
        return self._program("flat", classes)

    def _add(self, op: Op, channels: int) -> str:
        self.ops.append(op)
        self.widths[op.output] = channels
        return op.output

    def _program(self, output: str, classes: int) -> Program:
        values = propagate(self.ops, Value("x", self.shape, 8), [8] * len(self.ops))
        scale = Standardize.identity(self.shape[0])
        signature = Signature("outline", self.shape, scale, Categorical(classes))
        return Program(values, tuple(self.ops), "x", {"": output}, [], signature)


def resnet50() -> Program:
    """224 × 224: 3, 4, 6 and 3 bottlenecks."""
    net = Outline((3, 224, 224), masks=True)
    x = net.max_pool(net.conv("x", 64, 7, 2), 3, 2)
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride = first if block == 0 else 1
            inner = net.conv(net.conv(net.conv(x, width, 1), width, 3, stride), 4 * width, 1)
            x = net.add(inner, net.conv(x, 4 * width, 1, stride) if block == 0 else x)
    return net.classifier(x, 1000)


def vgg16() -> Program:
    """224 × 224, with dense layers of 4096."""
    net, x = Outline((3, 224, 224), masks=True), "x"
    for width, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            x = net.conv(x, width, 3)
        x = net.max_pool(x)
    return net.classifier(x, 4096, 4096, 1000, positions=7)


def mobilenet_v2() -> Program:
    """224 × 224: inverted bottlenecks."""
    net = Outline((3, 224, 224), masks=True)
    x = net.conv("x", 32, 3, 2)
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2))
    for factor, width, blocks, first in (*stages, (6, 320, 1, 1)):
        for block in range(blocks):
            stride, before = (first if block == 0 else 1), net.widths[x]
            wide = net.conv(x, factor * before, 1) if factor > 1 else x
            deep = net.conv(wide, factor * before, 3, stride, groups=factor * before)
            y = net.conv(deep, width, 1)
            x = net.add(x, y) if stride == 1 and before == width else y
    return net.classifier(net.conv(x, 1280, 1), 1000)


def unet(size: int = 512) -> Program:
    """64 to 1024 channels, two convolutions a level, a mask behind each."""
    net, x = Outline((3, size, size), masks=True), "x"
    skips: list[str] = []
    for width in (64, 128, 256, 512):
        x = net.conv(net.conv(x, width, 3), width, 3)
        skips.append(x)
        x = net.max_pool(x)
    x = net.conv(net.conv(x, 1024, 3), 1024, 3)
    for width, skip in zip((512, 256, 128, 64), reversed(skips), strict=True):
        x = net.concat(skip, net.conv(net.up(x), width, 3))
        x = net.conv(net.conv(x, width, 3), width, 3)
    return net.corner(net.conv(x, 21, 1))
