"""Prediction: draws as one program equal a plain loop, and no answer depends on its batch."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import needs
from qbayes import Task, attach, noise
from qbayes.errors import BadInput
from qbayes.methods import make_method
from qbayes.posterior.base import Posterior
from qbayes.posterior.likelihood import Categorical, ConstantNoise, Gaussian
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.signature import Signature, Standardize
from qbayes.posterior.sites import Site, gaussian_layers, place_sites, sites_of

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Residual(nn.Module):
    """Convolutions with BN, a skip connection around masked layers, and one or two heads."""

    def __init__(self, heads: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.inner = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.out = nn.Linear(4, 3)
        self.log_variance = nn.Linear(4, 3) if heads else None
        nn.init.uniform_(self.bn.running_mean, -1, 1)
        nn.init.uniform_(self.bn.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        z = torch.relu(self.bn(self.stem(x)))
        z = torch.relu(z + self.inner(z)).mean((2, 3))
        if self.log_variance is None:
            return self.out(z)
        return {"mean": self.out(z), "log_variance": self.log_variance(z)}


MASKS = (
    Site(0, "mask", "inner", "before", 0.4, True),
    Site(1, "mask", "inner", "after", 0.2),
    Site(2, "mask", "out", "before", 0.3),
)
GAUSSIANS = (
    Site(0, "gaussian", "stem", "replace", sigma=0.1),
    Site(1, "gaussian", "inner", "replace", sigma=0.2, bias_number=2),
    Site(3, "gaussian", "out", "replace", sigma=0.3),
)
SITES = {"mask": MASKS, "gaussian": GAUSSIANS, "members": (), "chains": MASKS}


def signature(kind: str = "classification") -> Signature:
    scale = Standardize(torch.tensor([0.5, -1.0]), torch.tensor([2.0, 0.5]))
    if kind == "classification":
        return Signature("test", (2, 6, 6), scale, Categorical(3), None, ("a", "b", "c"))
    target = Standardize(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 1.0, 2.0]))
    return Signature("test", (2, 6, 6), scale, Gaussian((3,)), target)


def posterior(kind: str, heads: bool = False) -> NetworkPosterior:
    torch.manual_seed(7)
    count = 3 if kind in ("members", "chains") else 1
    modules = [place_sites(Residual(heads), SITES[kind]) for _ in range(count)]
    states = [module.state_dict() for module in modules]
    return NetworkPosterior(modules[0], states, signature("regression" if heads else "classification"))


def looped(post: NetworkPosterior, x: Tensor, draws: int, seed: int, first_row: int = 0) -> list[object]:
    """One forward pass a draw, without vmap: what predict must equal."""
    found = []
    for draw in range(draws):
        network = post.networks[draw % len(post.networks)]
        ids = torch.tensor([draw])
        weights: dict[int, Tensor] = {}
        for layer in gaussian_layers(network):
            weights |= {site: w[0] for site, w in layer.draw_weights(seed, ids).items()}
        stream = noise.Stream(seed, ids[0], first_row, weights)
        with torch.no_grad(), noise.streaming(stream):
            found.append(network(post.signature.transform.apply(x)))
    return found


@pytest.mark.parametrize("kind", SITES)
def test_draws_equal_a_plain_loop(kind: str) -> None:
    post, x = posterior(kind), torch.randn(5, 2, 6, 6)
    found = post.predict(x, draws=7, seed=3).draws
    expected = torch.stack(looped(post, x, 7, 3)).softmax(-1)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(found, expected, **CLOSE)
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize("kind", SITES)
def test_heads_come_in_the_tasks_units(kind: str) -> None:
    post, x = posterior(kind, heads=True), torch.randn(5, 2, 6, 6)
    found = post.predict(x, draws=4, seed=1)
    target = post.signature.target
    outs = looped(post, x, 4, 1)
    means = torch.stack([out["mean"] for out in outs])  # pyright: ignore[reportIndexIssue]
    logs = torch.stack([out["log_variance"] for out in outs])  # pyright: ignore[reportIndexIssue]
    torch.testing.assert_close(found.draws, means * target.std + target.mean, **CLOSE)
    torch.testing.assert_close(found.draw_variances, logs.exp() * target.std**2, **CLOSE)


@pytest.mark.parametrize("kind", SITES)
def test_the_answer_does_not_depend_on_the_batch(kind: str) -> None:
    post, x = posterior(kind), torch.randn(9, 2, 6, 6)
    whole = post.predict(x, draws=6, seed=5).draws
    for size in (1, 4, 9, 100):
        torch.testing.assert_close(post.predict(x, draws=6, seed=5, batch_size=size).draws, whole, **CLOSE)
    pieces = [post.predict(x[a:b], draws=6, seed=5, first_row=a).draws for a, b in [(0, 1), (1, 6), (6, 9)]]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, **CLOSE)
    fewer = post.predict(x, draws=2, seed=5).draws
    torch.testing.assert_close(fewer, whole[:2], **CLOSE)


def test_the_noise_of_a_row_is_equal_to_the_bit() -> None:
    """Where the arithmetic is exact (ones through masks and an identity), so is the whole answer."""
    network = nn.Sequential(nn.Identity(), nn.Flatten())
    sites = [Site(0, "mask", "0", "before", 0.5)]
    sig = Signature("t", (3,), Standardize.identity(3), Categorical(3))
    post = NetworkPosterior(place_sites(network, sites), [{}], sig)
    x = torch.randn(8, 3)
    whole = post.predict(x, draws=5).draws
    alone = [post.predict(x[i : i + 1], draws=5, first_row=i).draws for i in range(8)]
    assert torch.equal(torch.cat(alone, 1), whole)


@pytest.mark.parametrize("kind", SITES)
def test_seed_and_first_row_matter_where_they_should(kind: str) -> None:
    post, x = posterior(kind), torch.randn(3, 2, 6, 6)
    base = post.predict(x, draws=3, seed=0).draws
    assert torch.equal(post.predict(x, draws=3, seed=0).draws, base)
    reseeded = post.predict(x, draws=3, seed=2**62).draws
    moved = post.predict(x, draws=3, seed=0, first_row=17).draws
    assert torch.equal(reseeded, base) == (kind == "members")
    assert torch.equal(moved, base) == (kind in ("members", "gaussian"))


def test_draw_d_uses_member_d_mod_m() -> None:
    post, x = posterior("members"), torch.randn(4, 2, 6, 6)
    draws = post.predict(x, draws=8).draws
    for draw in range(8):
        network = Residual().eval()
        network.load_state_dict(post.members[draw % 3])
        with torch.no_grad():
            expected = network(post.signature.transform.apply(x)).softmax(-1)
        torch.testing.assert_close(draws[draw], expected, **CLOSE)
    assert len(post.predict(x, draws=2).draws) == 2


def test_what_is_before_the_first_random_op_runs_once() -> None:
    post = posterior("mask")
    batched: dict[str, list[bool]] = {"stem": [], "out": []}
    for name, seen in batched.items():
        layer = post.network.get_submodule(name)

        def note(_: nn.Module, __: object, output: Tensor, seen: list[bool] = seen) -> None:
            seen.append(torch._C._functorch.is_batchedtensor(output))

        layer.register_forward_hook(note)
    post.predict(torch.randn(6, 2, 6, 6), draws=11)
    assert batched["stem"] == [False], "once, without the axis of draws"
    assert batched["out"] == [True], "once, with the axis of draws"


def test_a_deterministic_network_runs_once() -> None:
    post = posterior("members")
    calls: list[int] = []
    for network in post.networks:
        network.get_submodule("stem").register_forward_hook(lambda *_: calls.append(1))
    found = post.predict(torch.randn(6, 2, 6, 6), draws=9)
    assert len(calls) == 3, "once a member"
    assert found.draw_count == 9
    assert torch.equal(found.draws[0], found.draws[3])
    assert not post.is_stochastic
    assert posterior("chains").is_stochastic


class Unvectorisable(nn.Module):
    """Each way of writing a network that ``vmap`` cannot follow."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.second, self.way = nn.Linear(4, 4), nn.Linear(4, 3), way

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        if self.way == "branch":
            z = z * 2 if bool(z.sum() > 0) else z - 1
        elif self.way == "item":
            z = z * float(z.abs().max())
        elif self.way == "in place":
            x = x.clone()
            x += z
            z = x
        elif self.way == "numpy":
            z = z + torch.from_numpy(np.tanh(z.numpy()))
        elif self.way == "index":
            z = torch.zeros(4, 4).index_put((z[:, 0] > 0,), torch.tensor(1.0)) + z
        return self.second(z)


@pytest.mark.parametrize("way", ["branch", "item", "in place", "numpy", "index"])
@pytest.mark.parametrize("kind", ["mask", "gaussian"])
def test_networks_that_cannot_be_vectorised_warn_and_are_right(way: str, kind: str) -> None:
    site = (
        Site(0, "mask", "first", "before", 0.5) if kind == "mask" else Site(0, "gaussian", "first", "replace")
    )
    module = place_sites(Unvectorisable(way), [site])
    sig = Signature("t", (4,), Standardize.identity(4), Categorical(3))
    post = NetworkPosterior(module, [module.state_dict()], sig)
    x = torch.randn(4, 4)
    with pytest.warns(UserWarning, match="one by one"):
        found = post.predict(x, draws=5, seed=2).draws
    expected = torch.stack(looped(post, x, 5, 2)).softmax(-1)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(found, expected, **CLOSE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert torch.equal(post.predict(x, draws=5, seed=2).draws, found)


def test_a_network_that_fails_says_its_own_error() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("the network's own trouble")

    module = place_sites(Broken(), [Site(0, "mask", "first", "before", 0.5)])
    sig = Signature("t", (4,), Standardize.identity(4), Categorical(3))
    post = NetworkPosterior(module, [module.state_dict()], sig)
    with pytest.warns(UserWarning, match="one by one"), pytest.raises(RuntimeError, match="own trouble"):
        post.predict(torch.randn(2, 4), draws=2)


def test_a_networks_own_randomness_is_refused() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) + torch.randn(3)

    module = place_sites(Noisy(), [Site(0, "mask", "first", "before", 0.5)])
    sig = Signature("t", (4,), Standardize.identity(4), Categorical(3))
    post = NetworkPosterior(module, [module.state_dict()], sig)
    with pytest.raises(BadInput, match="of its own"):
        post.predict(torch.randn(2, 4), draws=2)


@pytest.mark.parametrize("kind", ["mask", "gaussian"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_fused_transformers_do_not_skip_their_sites(kind: str, batch_first: bool) -> None:
    """torch fuses an encoder layer in evaluation, past the layers we put into it."""
    network = nn.Sequential(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first),
        nn.Flatten(),
        nn.Linear(24, 3),
    )
    site = Site(0, "mask", "0.linear2", "before", 0.5)
    if kind == "gaussian":
        site = Site(0, "gaussian", "0.linear1", "replace", sigma=0.5)
    module = place_sites(network, [site])
    post = NetworkPosterior(
        module, [module.state_dict()], Signature("t", (3, 8), Standardize.identity(3), Categorical(3))
    )
    fused = torch.backends.mha.get_fastpath_enabled()
    draws = post.predict(torch.randn(4, 3, 8), draws=3).draws
    assert float(draws.std(0).min()) > 0
    assert torch.backends.mha.get_fastpath_enabled() == fused


def test_global_generator_is_not_touched() -> None:
    x = torch.randn(3, 2, 6, 6)
    for kind in SITES:
        post = posterior(kind)
        before = torch.get_rng_state()
        post.predict(x, draws=4)
        assert torch.equal(torch.get_rng_state(), before)


def test_gaussian_draws_are_grouped_to_fit_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    post, x = posterior("gaussian"), torch.randn(4, 2, 6, 6)
    whole = post.predict(x, draws=7).draws
    monkeypatch.setattr("qbayes.posterior.network._WEIGHTS_AT_ONCE", 400)
    torch.testing.assert_close(post.predict(x, draws=7).draws, whole, **CLOSE)


def test_rows_are_cut_to_fit_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    post, x = posterior("chains"), torch.randn(11, 2, 6, 6)
    whole = post.predict(x, draws=4).draws
    monkeypatch.setattr("qbayes.posterior.network._ROWS_AT_ONCE", {("image", "cpu"): 6})
    torch.testing.assert_close(post.predict(x, draws=4).draws, whole, **CLOSE)


@pytest.mark.parametrize("kind", SITES)
def test_rows_are_cut_so_that_their_largest_map_is_a_small_block(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest map of the network has 4 · 6 · 6 numbers a row; 20 rows × draws of it may pass at once."""
    post, x = posterior(kind), torch.randn(80, 2, 6, 6)
    post.predict(x[:40], draws=6)
    # few rows are not looked at.
    assert post._largest_map == 0
    wanted = post.predict(x, draws=6).draws
    assert post._largest_map == 4 * 6 * 6
    passed: list[int] = []
    run = NetworkPosterior._outputs

    def counted(self: NetworkPosterior, *given: Any) -> Any:
        passed.append(len(given[1]) * (len(given[2]) if self.is_stochastic else 1))
        return run(self, *given)

    monkeypatch.setattr(NetworkPosterior, "_outputs", counted)
    monkeypatch.setattr("qbayes.posterior.network._NUMBERS_AT_ONCE", 20 * 4 * 6 * 6 + 5)
    torch.testing.assert_close(post.predict(x, draws=6).draws, wanted, **CLOSE)
    assert 18 <= max(passed) <= 20
    # a batch that is asked for stands.
    passed.clear()
    post.predict(x, draws=6, batch_size=80)
    assert max(passed) >= 80


def test_the_posterior_owns_its_members() -> None:
    network = Residual()
    state = network.state_dict()
    post = Posterior.from_trained(network, signature())
    x = torch.randn(2, 2, 6, 6)
    before = post.predict(x, draws=1).mean
    with torch.no_grad():
        for value in state.values():
            value.zero_()
    network.train()
    assert torch.equal(post.predict(x, draws=1).mean, before)
    assert not any(parameter.requires_grad for parameter in post.network.parameters())


def test_batch_norm_stays_as_trained() -> None:
    post = posterior("mask")
    before = post.network.bn.running_mean.clone()
    post.predict(torch.randn(5, 2, 6, 6) * 100, draws=2)
    assert torch.equal(post.network.bn.running_mean, before)


def test_a_constant_noise_travels_with_the_mean() -> None:
    network = ConstantNoise(place_sites(nn.Linear(2, 1), [Site(0, "mask", "", "before", 0.5)]), (1,))
    target = Standardize(torch.tensor([10.0]), torch.tensor([3.0]))
    sig = Signature("t", (2,), Standardize.identity(2), Gaussian((1,)), target)
    post = Posterior.from_trained(network, sig)
    found = post.predict(torch.randn(3, 2), draws=5)
    expected = torch.full((5, 3, 1), float(np.exp(-2.0)) * 9)
    torch.testing.assert_close(found.draw_variances, expected)
    assert sites_of(post.network)[0].module == ""


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (torch.zeros(3, 2, 6, 5), "shape"),
        (torch.zeros(2, 6, 6), "shape"),
        (torch.zeros(()), "shape"),
        (torch.zeros(0, 2, 6, 6), "at least one row"),
        (torch.full((2, 2, 6, 6), float("nan")), "row 0"),
        (np.full((1, 2, 6, 6), 1e300), "finite"),
        (torch.zeros(1, 2, 6, 6, dtype=torch.complex64), "real"),
        (torch.zeros(1, 2, 6, 6, dtype=torch.bool), "real"),
        ([[1.0], [2.0, 3.0]], "rectangular"),
        ([["a"]], "rectangular"),
        (None, "rectangular"),
    ],
)
def test_bad_inputs(x: object, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        posterior("mask").predict(x, draws=2)  # pyright: ignore[reportArgumentType]


def test_the_bad_row_is_named() -> None:
    x = torch.zeros(5, 2, 6, 6)
    x[3, 1, 2, 2] = float("inf")
    with pytest.raises(BadInput, match="row 3"):
        posterior("mask").predict(x)


@pytest.mark.parametrize(
    "options",
    [
        {"draws": 0},
        {"draws": 2.5},
        {"draws": "5"},
        {"first_row": -1},
        {"batch_size": 0},
        {"first_row": 2**32},
        {"seed": -1},
        {"seed": 0.5},
    ],
)
def test_bad_options(options: dict[str, int]) -> None:
    with pytest.raises(BadInput):
        posterior("mask").predict(torch.zeros(1, 2, 6, 6), **options)


def test_numpy_integers_and_other_types_of_input_are_welcome() -> None:
    post = posterior("mask")
    whole = post.predict(np.ones((2, 2, 6, 6)), draws=np.int64(3), seed=np.int64(4)).draws
    assert torch.equal(post.predict(np.ones((2, 2, 6, 6), np.uint8).tolist(), draws=3, seed=4).draws, whole)
    assert torch.equal(post.predict(torch.ones(2, 2, 6, 6, dtype=torch.int32), draws=3, seed=4).draws, whole)


def test_members_must_exist_and_fit() -> None:
    with pytest.raises(BadInput, match="at least one member"):
        NetworkPosterior(Residual(), [], signature())


class Folded(nn.Module):
    """Rows and time on one axis in the middle, as (rows · time, features) or time first."""

    def __init__(self, time_first: bool) -> None:
        super().__init__()
        self.time_first = time_first
        self.first, self.second, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows, time, _ = x.shape
        if self.time_first:
            z = self.second(self.first(x.transpose(0, 1)).relu()).mean(0)
        else:
            z = self.second(self.first(x.reshape(rows * time, -1)).relu()).view(rows, time, -1).mean(1)
        return self.out(z)


def folded(time_first: bool) -> NetworkPosterior:
    task = Task.from_arrays(torch.randn(12, 5, 4), torch.arange(12) % 3, kind="classification")
    module = attach(Folded(time_first), make_method("mcd", rate=0.5), task.example())
    return NetworkPosterior(module, [module.state_dict()], task.signature)


def test_noise_follows_the_rows_through_a_folded_axis() -> None:
    post, x = folded(time_first=False), torch.randn(11, 5, 4)
    whole = post.predict(x, draws=4).draws
    torch.testing.assert_close(post.predict(x, draws=4, batch_size=3).draws, whole, **CLOSE)
    torch.testing.assert_close(post.predict(x[6:], draws=4, first_row=6).draws, whole[:, 6:], **CLOSE)


def test_rows_off_the_first_axis_are_refused() -> None:
    with pytest.raises(BadInput, match="first axis"):
        folded(time_first=True).predict(torch.randn(11, 5, 4), draws=2)


def test_large_images_go_in_smaller_pieces() -> None:
    task = Task.from_arrays(torch.randn(4, 3, 64, 64), torch.arange(4) % 2, kind="classification")
    module = attach(nn.Sequential(nn.Flatten(), nn.Linear(12288, 4), nn.Linear(4, 2)), make_method("mcd"))
    post = NetworkPosterior(module, [module.state_dict()], task.signature)
    assert post._rows_at_once(1) == 2048 // 4


@pytest.mark.parametrize("kind", SITES)
def test_draws_one_after_the_other_channels_last_are_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU does, here on the CPU; a network that draws nothing runs once, not once a draw."""
    post, x = posterior(kind), torch.randn(7, 2, 6, 6)
    together = post.predict(x, draws=6).draws
    monkeypatch.setattr(NetworkPosterior, "_maps_on_a_gpu", property(lambda self: True))
    again, passes = posterior(kind), []
    for network in again.networks:
        network.register_forward_pre_hook(lambda module, inputs: passes.append(inputs[0]))
    torch.testing.assert_close(again.predict(x, draws=6).draws, together, **CLOSE)
    last = passes[-1]
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert not last.is_contiguous()
    # one look for a network's own randomness, then a pass a draw; members that draw nothing have one each.
    assert len(passes) == (len(again.networks) if kind == "members" else 7)
    # the posterior's own networks keep their layout: what is made of them must not depend on a prediction.
    assert all(value.is_contiguous() for value in again.networks[0].state_dict().values())
    monkeypatch.undo()
    torch.testing.assert_close(again.predict(x, draws=6).draws, together, **CLOSE)


class Viewed(nn.Module):
    """Reads its feature map as it lies in memory."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(channels, 4, 3), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.conv(x).relu().view(len(x), -1))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("method", ["pointwise", "mcd", "bbb"])
def test_a_network_that_needs_the_plain_layout_gets_it(
    method: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of one channel lie the same way in both layouts: there the second draw was the first to fail."""
    shape = (channels, 6, 6)
    task = Task.from_arrays(torch.randn(12, *shape), torch.arange(12) % 3, kind="classification")
    module = attach(Viewed(channels), make_method(method), task.example())
    x = torch.randn(7, *shape)
    plain, lanes = (NetworkPosterior(module, [module.state_dict()], task.signature) for _ in range(2))
    wanted = plain.predict(x, draws=4, batch_size=3).draws
    monkeypatch.setattr(NetworkPosterior, "_maps_on_a_gpu", property(lambda self: True))
    for _ in range(2):
        torch.testing.assert_close(lanes.predict(x, draws=4, batch_size=3).draws, wanted, **CLOSE)
    assert lanes._plain_layout or channels == 1
    assert all(value.is_contiguous() for value in lanes.network.state_dict().values())


@needs.gpu
@pytest.mark.parametrize("kind", SITES)
def test_a_gpu_answers_as_the_cpu_does(kind: str) -> None:
    post, x = posterior(kind), torch.randn(7, 2, 6, 6)
    here = post.predict(x, draws=6).draws
    # convolutions of a GPU have the ten bits of TF32.
    torch.testing.assert_close(post.to("cuda").predict(x, draws=6).draws, here, rtol=1e-2, atol=1e-3)


def test_threads_predict_as_one_thread_does() -> None:
    post, x = posterior("members"), torch.randn(6, 2, 6, 6)
    alone = post.predict(x, draws=6).draws
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post.predict(x, draws=6).draws, range(12)))
    assert all(torch.equal(answer, alone) for answer in answers)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_network_with_a_graph_on_it_is_refused_with_the_way_out() -> None:
    network = nn.Linear(4, 2)
    network.last = network(torch.randn(1, 4))
    with pytest.raises(BadInput, match="detach"):
        NetworkPosterior(network, [network.state_dict()], folded(False).signature)
