"""Networks that PyTorch runs well and an integer program cannot express: each must be refused by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _OnImages(nn.Module):
    """A stem, something that has no integers, and a classifier, for 1×8×8 images of 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.classifier = nn.Linear(8 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.between(F.relu(self.stem(x))).flatten(1))

    def between(self, x: Tensor) -> Tensor:
        return x


class _OnSequences(nn.Module):
    """An embedding of each step, something over time, and a classifier, for 2×32 sequences of 4 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 8)
        self.classifier = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.over_time(self.embed(x.transpose(1, 2))))

    def over_time(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Lstm(_OnSequences):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 8, batch_first=True)

    def over_time(self, x: Tensor) -> Tensor:
        return self.recurrent(x)[0][:, -1]


class Gru(_OnSequences):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(8, 8, batch_first=True)

    def over_time(self, x: Tensor) -> Tensor:
        _, last = self.recurrent(x)
        return last[0]


class Attention(_OnSequences):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def over_time(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0].mean(1)


class ScaledDotProduct(_OnSequences):
    def over_time(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x).mean(1)


class ProductOfActivations(_OnSequences):
    """A matrix product whose two sides are both activations."""

    def over_time(self, x: Tensor) -> Tensor:
        return torch.matmul(x.transpose(1, 2), x).mean(1)


class LayerNormalised(_OnSequences):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def over_time(self, x: Tensor) -> Tensor:
        return self.norm(x).mean(1)


class DataDependent(_OnImages):
    """Which way the data takes depends on the data."""

    def between(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class RandomInside(_OnImages):
    """Tracing would freeze these numbers into a constant without a word."""

    def between(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.rand(8, 4, 4)


class RandomLike(_OnImages):
    def between(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


class FunctionalDropout(_OnImages):
    def between(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.1, training=True)


class Transposed(_OnImages):
    def __init__(self) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(8, 8, 2, stride=2)

    def between(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.enlarge(x), 2)


class GroupNormalised(_OnImages):
    def __init__(self) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(2, 8)

    def between(self, x: Tensor) -> Tensor:
        return self.group_norm(x)


class SoftmaxInside(_OnImages):
    def between(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=1)


class Bilinear(_OnImages):
    """Interpolation that mixes neighbours is no repetition."""

    def between(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), 2)


class RoundedSquare(torch.autograd.Function):
    """A function of somebody's own, with a gradient of somebody's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x * x).round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradients[0]


class OwnFunction(_OnImages):
    def between(self, x: Tensor) -> Tensor:
        return RoundedSquare.apply(x)


class OwnParameters(_OnImages):
    """A layer of somebody's own that uses its weights in a product no layer of PyTorch stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.eye(4))

    def between(self, x: Tensor) -> Tensor:
        return torch.einsum("bchw,wv->bchv", x, self.mixing)


@dataclass(frozen=True)
class Refusal:
    """A network, the task whose inputs and classes it has, and what the error must name."""

    build: Callable[[], nn.Module]
    task: str
    names: str


REFUSED: dict[str, Refusal] = {
    "lstm": Refusal(Lstm, "motifs", "recurrent"),
    "gru": Refusal(Gru, "motifs", "recurrent"),
    "multihead_attention": Refusal(Attention, "motifs", "attention"),
    "scaled_dot_product": Refusal(ScaledDotProduct, "motifs", "scaled_dot_product_attention"),
    "matmul_of_activations": Refusal(ProductOfActivations, "motifs", "matmul"),
    "layer_norm": Refusal(LayerNormalised, "motifs", "norm"),
    "data_dependent": Refusal(DataDependent, "digits", "control flow"),
    "random_constant": Refusal(RandomInside, "digits", "rand"),
    "random_like": Refusal(RandomLike, "digits", "randn_like"),
    "functional_dropout": Refusal(FunctionalDropout, "digits", "dropout"),
    "transposed_convolution": Refusal(Transposed, "digits", "enlarge"),
    "group_norm": Refusal(GroupNormalised, "digits", "group_norm"),
    "softmax_inside": Refusal(SoftmaxInside, "digits", "softmax"),
    "bilinear": Refusal(Bilinear, "digits", "bilinear"),
    "own_autograd_function": Refusal(OwnFunction, "digits", "RoundedSquare"),
    "own_parameters": Refusal(OwnParameters, "digits", "einsum"),
}
