"""The posterior of a PyTorch network: its sites draw masks and weights, its members are kept states.

Draw ``d`` uses member ``d mod M``. The draws of a member run as one program under ``torch.func.vmap`` over
the draw index: what does not depend on noise is computed once, masks fold into the batch, weight draws become
batched products. On a GPU the draws of a convolutional network run one after the other instead, with the
channels last in memory: a draw fills the device, and vmap cannot read the layout that its convolutions want.
"""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from qbayes import noise
from qbayes.errors import BadInput
from qbayes.posterior.base import Posterior, answers_for_networks
from qbayes.posterior.copying import check_can_be_pickled, with_own_numbers
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.predictive import Predictive, predictive_from_outputs
from qbayes.posterior.signature import Signature
from qbayes.posterior.sites import Site, gaussian_layers, sites_of, stochastic_layers
from qbayes.threads import SwitchedOff

# Rows × draws that pass the network at once: feature maps of images, or plain vectors, on CPU and on GPU.
_ROWS_AT_ONCE = {("image", "cpu"): 2048, ("image", "cuda"): 20480, ("vector", "cpu"): 65536}
# … of which those that run draw by draw hold one draw of five: more rows only take memory.
_DRAWS = 5
_LARGEST = 1 << 19
_PIXELS = 32 * 32
# Numbers of the largest feature map on a CPU: 2^22 float32 are 16 MiB. The C library gives blocks beyond 32
# back to the system, which fills each page with zeros before it gives it out again: half of the time of a
# slim ResNet-18. With fewer rows than those below their maps are not looked at.
_NUMBERS_AT_ONCE = 1 << 22
_FEW_ROWS = 64
# Weights drawn at once: 2^25 float32 are 128 MiB.
_WEIGHTS_AT_ONCE = 1 << 25


@answers_for_networks
class NetworkPosterior(Posterior):
    """A network with sites and one or more members, in float or fake-quantised.

    ``fit``, ``quantize`` and ``Posterior.from_trained`` make it. The network that is given stays as it is.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "pointwise", qb.Budget(epochs=1), chains=2)
        >>> len(posterior.members), posterior.is_stochastic
        (2, False)

    Args:
        network: The module with its sites; all members have its structure.
        members: A state of the network for each member.
        signature: Input shape, input and target scale, likelihood and labels.
        architecture: How one of our networks is built again, as JSON. None: who loads the posterior must give
            the network.
        provenance: What is recorded of its making, as JSON; nothing by default.
        sites: The sites of the float network; by default those that stand on ``network``.
        quantised: The precision of a fake-quantised one, as JSON; None, float, by default. Its ``sites`` are
            then those of the float network that it was made from.

    Raises:
        BadInput: There is no member, or the network cannot be copied.
    """

    def __init__(
        self,
        network: nn.Module,
        members: Sequence[Mapping[str, Tensor]],
        signature: Signature,
        *,
        architecture: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        sites: Sequence[Site] | None = None,
        quantised: Mapping[str, Any] | None = None,
    ) -> None:
        if not members:
            raise BadInput(
                "a posterior needs at least one member", "none", "collect a state before the end of training"
            )
        self.networks = [_frozen(network, member) for member in members]
        self.signature = signature
        self.architecture = None if architecture is None else dict(architecture)
        self.provenance = dict(provenance or {})
        self.quantised = None if quantised is None else dict(quantised)
        self.sites = sites_of(self.network) if sites is None else tuple(sites)
        self._vectorised = True
        self._probed = False
        # twins of the networks with the channels last in memory, by identity: these stay as they are.
        self._lanes: dict[int, nn.Module] = {}
        self._plain_layout = False
        # numbers of a row's largest feature map, once it was looked at.
        self._largest_map = 0

    def __copy__(self) -> "NetworkPosterior":
        return _of_state(vars(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> "NetworkPosterior":
        return _of_state(copy.deepcopy(self._state(), memo))

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled, by whoever trusts where it goes."""
        check_can_be_pickled(self.network)
        return self._state() | {"networks": [with_own_numbers(network) for network in self.networks]}

    def _state(self) -> dict[str, Any]:
        """All but the twins, which are made again."""
        return vars(self) | {"_lanes": {}}

    @property
    def network(self) -> nn.Module:
        """The first member; all have its structure."""
        return self.networks[0]

    @property
    def members(self) -> list[dict[str, Tensor]]:
        """The members' states."""
        return [network.state_dict() for network in self.networks]

    @property
    def device(self) -> torch.device:
        """The device on which it predicts; answers come back on the CPU."""
        return next((value.device for value in self.network.state_dict().values()), torch.device("cpu"))

    @property
    def is_stochastic(self) -> bool:
        """Whether a single member gives different draws."""
        return next(stochastic_layers(self.network), None) is not None

    def to(self, device: torch.device | str) -> "NetworkPosterior":
        """This posterior on another device (itself, changed in place, as modules do).

        Args:
            device: Such as ``cpu`` or ``cuda``.
        """
        for network in self.networks:
            network.to(device)
        self._lanes.clear()
        return self

    @torch.no_grad()
    def _predict(
        self, x: Tensor, draws: int, seed: int, first_row: int, batch_size: int | None
    ) -> Predictive:
        pieces: list[tuple[list[int], Outputs]] = []
        with _LAYER_BY_LAYER:
            for index, network in enumerate(self.networks[:draws]):
                mine = list(range(index, draws, len(self.networks)))
                pieces += [
                    (group, self._member_outputs(network, x, group, seed, first_row, batch_size))
                    for group in self._draw_groups(mine)
                ]
        order = torch.tensor([draw for group, _ in pieces for draw in group]).argsort()
        outputs = pytree.tree_map(lambda *parts: torch.cat(parts)[order], *[out for _, out in pieces])
        return predictive_from_outputs(outputs, self.signature)

    def _draw_groups(self, draws: list[int]) -> list[list[int]]:
        """Groups of draws that run together.

        Sampled weights must fit memory. Those of a convolution go one draw at a time, over as many rows as
        fit: several at once are a grouped convolution, twice as slow as one after the other.
        """
        layers = list(gaussian_layers(self.network))
        weights = sum(layer.weight_mean.numel() for layer in layers)
        size = len(draws) if weights == 0 else max(1, _WEIGHTS_AT_ONCE // weights)
        if any(layer.weight_mean.ndim > 2 for layer in layers) or (self._one_by_one and self.is_stochastic):
            size = 1
        return [draws[start : start + size] for start in range(0, len(draws), size)]

    def _member_outputs(
        self,
        network: nn.Module,
        x: Tensor,
        draws: list[int],
        seed: int,
        first_row: int,
        batch_size: int | None,
    ) -> Outputs:
        """Outputs of one member, ``(draws, rows, …)`` on the CPU."""
        ids = torch.tensor(draws, device=self.device)
        weights: dict[int, Tensor] = {}
        for layer in gaussian_layers(network):
            weights |= layer.draw_weights(seed, ids)
        size = batch_size or self._rows_at_once(len(draws))
        if batch_size is None and self.device.type == "cpu" and min(size, len(x)) > _FEW_ROWS:
            self._look_at_maps(network, x, ids, seed, first_row, weights)
            size = min(size, self._rows_that_fit(len(draws)))
        parts: list[Outputs] = []
        for start in range(0, len(x), size):
            inputs = self.signature.transform.apply(x[start : start + size].to(self.device))
            forward = self._channels_last if self._one_by_one else self._outputs
            out = forward(network, inputs, ids, seed, first_row + start, weights)
            parts.append(pytree.tree_map(lambda tensor: tensor.float().cpu(), out))
        return pytree.tree_map(lambda *pieces: torch.cat(pieces, dim=1), *parts)

    @property
    def _one_by_one(self) -> bool:
        """Whether draws pass one after the other, channels last."""
        return self._maps_on_a_gpu and not self._plain_layout

    @property
    def _maps_on_a_gpu(self) -> bool:
        """Whether it is the feature maps of a float network that a GPU computes."""
        images = self.device.type == "cuda" and len(self.signature.input_shape) == 3
        convolves = any(parameter.ndim == 4 for parameter in self.network.parameters())
        return images and convolves and self.quantised is None

    def _channels_last(
        self,
        network: nn.Module,
        inputs: Tensor,
        draws: Tensor,
        seed: int,
        first_row: int,
        weights: Mapping[int, Tensor],
    ) -> Outputs:
        """``_outputs`` with the channels last in memory; randomness of a network's own is looked for before.

        A network that reads its memory as it lies (``view`` behind a convolution) gets the plain layout, here
        and from then on.
        """
        if self.is_stochastic and self._vectorised and not self._probed:
            self._outputs(network, inputs[:2], draws, seed, first_row, weights)
        twin = self._lanes.get(id(network))
        if twin is None:
            twin = copy.deepcopy(network).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            self._lanes[id(network)] = twin
        lanes = inputs.contiguous(memory_format=torch.channels_last)
        try:
            return self._outputs(twin, lanes, draws, seed, first_row, weights)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            # an error of the network itself comes again below.
            self._plain_layout = True
        return self._outputs(network, inputs, draws, seed, first_row, weights)

    def _outputs(
        self,
        network: nn.Module,
        inputs: Tensor,
        draws: Tensor,
        seed: int,
        first_row: int,
        weights: Mapping[int, Tensor],
    ) -> Outputs:
        def one(draw: Tensor, drawn: Mapping[int, Tensor]) -> Outputs:
            with noise.streaming(noise.Stream(seed, draw, first_row, drawn, len(inputs))):
                return network(inputs)

        if not self.is_stochastic:
            self.signature.likelihood.check(out := network(inputs), len(inputs))
            return pytree.tree_map(lambda tensor: tensor.expand(len(draws), *tensor.shape), out)
        # a single draw needs no vmap, but the first pass takes it: it finds a network's own randomness.
        if self._vectorised and (len(draws) > 1 or not self._probed):
            try:
                out = torch.vmap(one)(draws, dict(weights))
                self._probed = True
                return out
            except (BadInput, torch.OutOfMemoryError):
                raise
            except (RuntimeError, ValueError) as error:
                reason = str(error).splitlines()[0]
                if "random operation" in reason:
                    raise _own_randomness(reason) from None
                self._vectorised = False
                # vmap has many ways to fail; an error of the network itself comes again below.
                warnings.warn(
                    f"draws run one by one, the network cannot be vectorised: {reason}", stacklevel=5
                )
        single = [one(draws[i], {site: w[i] for site, w in weights.items()}) for i in range(len(draws))]
        return pytree.tree_map(lambda *tensors: torch.stack(tensors), *single)

    def _look_at_maps(
        self,
        network: nn.Module,
        x: Tensor,
        draws: Tensor,
        seed: int,
        first_row: int,
        weights: Mapping[int, Tensor],
    ) -> None:
        """Note the size of a row's largest feature map, from two rows; all members have the same."""
        if self._largest_map or len(self.signature.input_shape) == 1:
            return
        inputs = self.signature.transform.apply(x[:2])
        with _LargestMap(inputs) as seen:
            self._outputs(network, inputs, draws[:1], seed, first_row, _first_draw(weights))
        self._largest_map = seen.numbers

    def _rows_that_fit(self, draws: int) -> int:
        """Rows whose largest feature maps, of all draws, are a block that the C library keeps."""
        together = _NUMBERS_AT_ONCE // max(1, self._largest_map)
        return max(1, together // (draws if self.is_stochastic else 1))

    def _rows_at_once(self, draws: int) -> int:
        form = "image" if len(self.signature.input_shape) > 1 else "vector"
        together = _ROWS_AT_ONCE.get((form, self.device.type), _LARGEST)
        if self._one_by_one:
            together //= _DRAWS
        if form == "image":
            # feature maps grow with the pixels; the numbers above are for 32 × 32.
            together = together * _PIXELS // max(_PIXELS, math.prod(self.signature.input_shape[1:]))
        return max(1, together // (draws if self.is_stochastic else 1))


class _LargestMap(TorchFunctionMode):
    """Watches what this thread computes of the rows ``inputs``: the most numbers of one row."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.rows, self.numbers = len(inputs), inputs[0].numel()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        # what has no axis of the rows, such as drawn weights, does not grow with them.
        if isinstance(out, Tensor) and out.ndim > 1 and len(out) == self.rows:
            self.numbers = max(self.numbers, out.numel() // self.rows)
        return out


def _first_draw(weights: Mapping[int, Tensor]) -> dict[int, Tensor]:
    return {site: drawn[:1] for site, drawn in weights.items()}


def _of_state(state: Mapping[str, Any]) -> NetworkPosterior:
    made = object.__new__(NetworkPosterior)
    vars(made).update(state)
    return made


def _frozen(network: nn.Module, member: Mapping[str, Tensor]) -> nn.Module:
    """A copy of ``network`` with a member's state, for evaluation only."""
    try:
        frozen = copy.deepcopy(network).eval().requires_grad_(False)
    except RuntimeError as error:
        raise BadInput(
            "a network must be copyable",
            str(error).splitlines()[0],
            "do not keep activations with their graph on the module: .detach() them",
        ) from None
    frozen.load_state_dict(dict(member))
    # vmap cannot read channels_last tensors: training may use them, a posterior keeps the plain layout.
    return frozen.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]


# torch's fused transformer layers read their children's weights and skip the masks among them.
_LAYER_BY_LAYER = SwitchedOff(
    torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled
)


def _own_randomness(reason: str) -> BadInput:
    return BadInput(
        "a network must draw no random numbers of its own: they cannot be keyed by seed, draw and row",
        reason,
        "remove torch.rand and the like from its forward, or use nn.Dropout layers, which become sites",
    )
