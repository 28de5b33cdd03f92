"""LeNet-5 in its 20-50-500 form: two 5×5 convolutions with max-pooling, one hidden layer."""

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from qbayes.networks import NETWORKS
from qbayes.networks.base import Kind, Network, Noise, check_choice, check_image

Style = Literal["paper", "relu"]


@NETWORKS.register("lenet")
class LeNet(Network):
    """LeNet-5 with or without biases and ReLU behind its convolutions.

    The paper's network has 1,255,500 weights for 1×28×28 inputs and 10 classes. Heads of a regression always
    have a bias: without one, a mean could not leave 0 where the features vanish.

    Args:
        input_shape: The shape of one row, without the batch.
        outputs: The number of classes, or the shape of the targets, as a tuple.
        kind: ``classification`` by default, or ``regression``.
        style: ``paper``, the default: no biases and no ReLU behind the convolutions; ``relu``: both.
        noise: For a regression: ``row``, the default, has a head for the noise of each row; ``constant`` has
            none, and one noise is learned outside.
    """

    paper_masks = ("after:features.conv1", "after:features.conv2", "before:logits")

    def __init__(
        self,
        input_shape: tuple[int, ...],
        outputs: tuple[int, ...],
        kind: Kind = "classification",
        *,
        style: Style = "paper",
        noise: Noise = "row",
    ) -> None:
        super().__init__()
        check_choice("style of lenet", style, ("paper", "relu"))
        # two halvings: below 4 pixels nothing would be left.
        channels, height, width = check_image("lenet", input_shape, smallest=4)
        bias = style == "relu"
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, (inputs, filters) in enumerate([(channels, 20), (20, 50)], start=1):
            layers[f"conv{number}"] = nn.Conv2d(inputs, filters, kernel_size=5, padding=2, bias=bias)
            if style == "relu":
                layers[f"relu{number}"] = nn.ReLU()
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        self.features = nn.Sequential(layers)
        self.flatten = nn.Flatten()
        self.hidden = nn.Linear(50 * (height // 2 // 2) * (width // 2 // 2), 500, bias=bias)
        self.relu = nn.ReLU()
        self.add_heads(500, outputs, kind, noise, bias=bias or kind == "regression")
        if kind == "regression":
            self.paper_masks = (*self.paper_masks[:2], *(f"before:{head}" for head in self.heads))

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        z = self.flatten(self.features(x))
        return self.answer(self.relu(self.hidden(z)))
