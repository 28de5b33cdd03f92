r"""The control: one point estimate, no uncertainty in the weights.

.. math:: \hat w = \arg\min_w -\frac1N \sum_n \log p(y_n \mid x_n, w) + \lambda \lVert w \rVert^2

With ``chains=M`` in ``fit`` it becomes the deep ensemble of Lakshminarayanan, Pritzel and Blundell
(NeurIPS 2017).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from qbayes.errors import BadInput
from qbayes.methods.base import FEW_EPOCHS, METHODS, Descent, Preset
from qbayes.methods.placement import survey
from qbayes.posterior.sites import Attachment


@METHODS.register("pointwise")
@dataclass(frozen=True, kw_only=True)
class Pointwise(Descent):
    """Maximum a posteriori with weight decay as the prior.

    Example:
        >>> Pointwise(weight_decay=1e-3).to_json()["weight_decay"]
        0.001

    Attributes:
        optimizer: ``adam`` (the default), ``adamw`` or ``sgd`` (with Nesterov momentum).
        weight_decay: λ; it acts on weights, not on biases and norms; 1e-4 by default.
        momentum: The momentum of ``sgd``; 0.9 by default.
    """

    name: ClassVar[str] = "pointwise"
    gaussian: ClassVar[bool] = False
    weight_decay: float = 1e-4

    presets: ClassVar[Mapping[str, Preset]] = {
        "default/classification": Preset(
            {}, {"epochs": 30, "least_steps": 2000, "batch_size": 128, "learning_rate": 1e-3}
        ),
        "default/regression": Preset(
            {"weight_decay": 1e-2}, {"epochs": 40, "batch_size": 64, "learning_rate": 3e-3}
        ),
        # the UCI sets are small and most of them nearly noiseless: they want many steps.
        "default/uci": Preset(
            {}, {"epochs": 40, "least_steps": 4000, "batch_size": 64, "learning_rate": 3e-3}
        ),
        "default/cifar10": Preset(
            {"optimizer": "sgd", "weight_decay": 5e-4},
            {"epochs": 24, "learning_rate": 0.4, "small_images": 0.4, **FEW_EPOCHS},
        ),
    }

    def plan(self, network: nn.Module, example: Tensor | None) -> Attachment:
        if not any(True for _ in network.parameters()):
            raise BadInput("a network must have parameters to train", "none", "give a network with layers")
        seen = survey(network, example)
        everything = [(layer.name, "a point estimate") for layer in seen.layers]
        return Attachment((), (*everything, *seen.left_alone))
