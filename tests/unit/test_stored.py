"""Posteriors from strangers: what their JSON asks for takes no memory that their weights do not have."""

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

import qbayes as qb
from qbayes import Budget, Precision, Task, fit, load_posterior, method, network, quantize, save_posterior
from qbayes.errors import BadFile, BadInput
from qbayes.networks import NETWORKS, REBUILT, build_network, rebuilt_by
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.storage import save
from qbayes.posterior.storage.outline import NetworkNotGiven, no_larger_than
from qbayes.posterior.storage.save import HEADER, WEIGHTS
from qbayes.posterior.storage.weights_header import Damaged, read_layout
from qbayes.quant.finetune.fine_tuning import FineTuning
from qbayes.quant.prepare import prepare_again

SHORT = Budget(epochs=1, batch_size=8)
# beyond what the process has, for a folder below 1 MB.
MOST_BYTES, MOST_SECONDS = 500 << 20, 2.0


def images(kind: str = "classification", rows: int = 24) -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 1, 8, 8, generator=generator)
    labels = torch.arange(rows) % 3
    y = labels if kind == "classification" else torch.randn(rows, 2, generator=generator)
    return Task.from_arrays(x, y, x, y, kind=kind, name="images")


def posterior(name: str, how: str, kind: str = "classification", **options: Any) -> NetworkPosterior:
    task = images(kind)
    given = {"members": 2, "every": 1, "burn_in": 0} if how == "sghmc" else {}
    budget = Budget(epochs=2, batch_size=8)
    return fit(
        network(name, task, **options), task, method(how, **given), budget, device="cpu", progress=False
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = fit(
        network("mlp", images(), hidden=(4,)), images(), method("mcd"), SHORT, device="cpu", progress=False
    )
    return save_posterior(made, tmp_path_factory.mktemp("small") / "p")


@pytest.fixture(scope="module")
def small_quantised(small: Path) -> Path:
    made = quantize(
        load_posterior(small),
        images(),
        Precision(4, 4),
        FineTuning(epochs=0),
        device="cpu",
        progress=False,
    )
    return save_posterior(made, small.with_name("q"))


def rewritten(folder: Path, to: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The posterior with another JSON, whose hashes are right: made, not damaged."""
    to.mkdir(parents=True, exist_ok=True)
    (to / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    header = json.loads((folder / HEADER).read_bytes())
    change(header)
    header["content_sha256"] = save._content_hash(header)
    (to / HEADER).write_text(json.dumps(header))
    return to


def with_architecture(**changed: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header["architecture"] |= changed

    return change


def with_signature(**changed: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header["signature"] |= changed

    return change


def constant_noise_of(shape: list[int]) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        target = {"mean": [0.0] * shape[0], "std": [1.0] * shape[0]}
        likelihood = {"kind": "gaussian", "shape": shape}
        header["signature"] |= {"likelihood": likelihood, "target": target, "labels": []}
        header["constant_noise"] = True

    return change


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


HOSTILE: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "wide": with_architecture(options={"hidden": [60000, 60000]}),
    "one width": with_architecture(options={"hidden": [1 << 30]}),
    "beyond 64 bits": with_architecture(options={"hidden": [10**30]}),
    "product beyond 64 bits": with_architecture(input_shape=[2**30, 2**30, 2**30]),
    "deep": with_architecture(options={"hidden": [4] * 200_000}),
    "inputs": with_architecture(input_shape=[60000, 60000]),
    "outputs": with_architecture(outputs=[1 << 30]),
    "image for lenet": with_architecture(name="lenet", input_shape=[1, 60000, 60000], options={}),
    "channels of resnet18": with_architecture(
        name="resnet18", input_shape=[60000, 8, 8], options={"width": 60000}
    ),
    "noise": constant_noise_of([1, 1 << 20, 1 << 20]),
    "nested options": with_architecture(options={"hidden": nested(400)}),
    "an option that is none": with_architecture(options={"x" * 100_000: 1}),
    "a name that is none": with_architecture(name="../" * 100_000),
    "a dotted name": with_architecture(name="os.system"),
    "a path": with_architecture(name="/tmp/own_networks"),
    "kind": with_architecture(kind="x" * 100_000),
    "another size": with_architecture(options={"hidden": [5]}),
    "more layers": with_architecture(options={"hidden": [4] * 100}),
}


@pytest.fixture
def bounded() -> Iterator[None]:
    """The test takes little memory and time, whatever it is given."""
    # from here on the peak is that of the test, whatever ran in this process before.
    Path("/proc/self/clear_refs").write_text("5")
    before, begun = kilobytes("VmRSS"), time.process_time()
    yield
    assert time.process_time() - begun < MOST_SECONDS
    assert (kilobytes("VmHWM") - before) << 10 < MOST_BYTES


def kilobytes(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("quantised", [False, True], ids=["float", "quantised"])
@pytest.mark.parametrize("case", HOSTILE)
def test_json_that_asks_for_more_than_is_stored_is_refused(
    case: str, quantised: bool, small: Path, small_quantised: Path, tmp_path: Path
) -> None:
    folder = rewritten(small_quantised if quantised else small, tmp_path / "p", HOSTILE[case])
    # JSON and weights are of the same folder: it contradicts itself, and a store makes it again.
    with pytest.raises(Damaged) as caught:
        load_posterior(folder)
    assert caught.value.must
    assert caught.value.do
    assert len(str(caught.value)) < 10_000


@pytest.mark.usefixtures("bounded")
def test_a_quantised_posterior_is_not_traced_with_rows_without_end(tmp_path: Path) -> None:
    """The weights of a ResNet do not say how large its images are."""
    trained = posterior("resnet18", "pointwise", width=1)
    made = quantize(trained, images(), Precision(8, 8), FineTuning(epochs=0), device="cpu", progress=False)
    folder = save_posterior(made, tmp_path / "q")
    for side in (3000, 1 << 20, 1 << 40):
        large = rewritten(folder, tmp_path / f"{side}", with_signature(input_shape=[1, side, side]))
        with pytest.raises(BadFile) as caught:
            load_posterior(large)
        assert caught.value.do
    again = load_posterior(rewritten(folder, tmp_path / "64", with_signature(input_shape=[1, 64, 64])))
    assert again.predict(torch.zeros(2, 1, 64, 64), draws=1).mean.shape == (2, 3)


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("how", ["pointwise", "mcd", "bbb", "sghmc"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"hidden": (5,)}),
        ("mlp", {"hidden": (3,), "noise": "constant"}),
        ("lenet", {}),
        ("resnet8", {}),
        ("resnet18", {"width": 2}),
    ],
    ids=["mlp", "one noise", "lenet", "resnet8", "resnet18"],
)
def test_what_is_laid_out_first_is_bit_equal(
    name: str, options: Mapping[str, Any], how: str, kind: str, tmp_path: Path
) -> None:
    made = posterior(name, how, kind, **options)
    again = load_posterior(save_posterior(made, tmp_path / "p"))
    for old, new in zip(made.members, again.members, strict=True):
        assert list(old) == list(new)
        assert all(torch.equal(old[key], new[key]) and old[key].dtype == new[key].dtype for key in old)
    x = images(kind).signature.transform.mean.new_ones(5, 1, 8, 8)
    one, other = (held.predict(x, draws=4, seed=3) for held in (made, again))
    assert torch.equal(one.draws, other.draws)
    assert torch.equal(one.variance, other.variance)
    # and it is the caller's network in every respect: its copy computes, trains and moves.
    assert not any(value.is_meta for value in again.network.state_dict().values())
    again.network.train()(x)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_registered_networks_keep_nothing_but_their_state(name: str) -> None:
    """What else a network kept would be lost on meta, where it is laid out."""
    built = build_network(name, (1, 8, 8), 3)
    state = set(built.state_dict())
    for prefix, part in built.named_modules():
        for key, value in vars(part).items():
            assert not isinstance(value, Tensor), f"{prefix}.{key}"
        buffers = {f"{prefix}.{key}".lstrip(".") for key in part._buffers}
        assert buffers <= state, prefix
    assert {key for key, _ in built.named_parameters(remove_duplicate=False)} <= state


# ---- factories of one's own

OWN = '''
import torch
from torch import nn

TABLE = torch.linspace(0, 1, 4)
cached = None
calls = []

class Own(nn.Module):
    """Reads its tensors while it is built, keeps some outside of its state, and ties two layers."""
    def __init__(self, input_shape, outputs, depth=2, width=4, table=8):
        super().__init__()
        calls.append(depth)
        global cached
        if cached is None:
            cached = torch.arange(4.0)
        rates = [rate.item() for rate in torch.linspace(0, 0.5, max(depth, 1))]
        self.first = nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        if depth > 1:
            self.layers[1].weight = self.layers[0].weight
        self.last = nn.Linear(width, outputs[0])
        self.scale = float(TABLE.sum()) + sum(rates)
        self.offset = cached[:1].clone()
        self.register_buffer("table", torch.sin(torch.arange(table)), persistent=False)
    def forward(self, x):
        z = self.first(x.flatten(1)) * self.scale + self.table[1] + self.offset
        for layer in self.layers:
            z = torch.relu(layer(z))
        return self.last(z)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_stored.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield "own_stored:Own"
    sys.modules.pop("own_stored", None)


def saved_own(own: str, tmp_path: Path) -> tuple[NetworkPosterior, Path]:
    made = fit(network(own, images()), images(), method("mcd"), SHORT, device="cpu", progress=False)
    return made, save_posterior(made, tmp_path / "p")


def opened(folder: Path, name: str) -> NetworkPosterior:
    return save.load_posterior(folder, rebuilt_by(name), prepare_again)


def test_a_factory_of_one_s_own_is_built_for_real(own: str, tmp_path: Path) -> None:
    """Values it reads, tensors it keeps elsewhere and weights it ties come out right, in both forms."""
    made, folder = saved_own(own, tmp_path)
    x = torch.randn(5, 1, 8, 8)
    assert torch.equal(opened(folder, own).predict(x, draws=4).draws, made.predict(x, draws=4).draws)
    small = quantize(made, images(), Precision(8, 8), FineTuning(epochs=0), device="cpu", progress=False)
    again = opened(save_posterior(small, tmp_path / "q"), own)
    assert torch.equal(again.predict(x, draws=4).draws, small.predict(x, draws=4).draws)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    "options", [{"depth": 10**9}, {"width": 1 << 17}, {"table": 1 << 30}, {"width": 1 << 40}]
)
def test_a_file_does_not_choose_how_large_one_s_own_network_is(
    options: dict[str, int], own: str, tmp_path: Path
) -> None:
    _, folder = saved_own(own, tmp_path)
    hostile = rewritten(folder, tmp_path / "hostile", with_architecture(options=options))
    with pytest.raises(BadInput, match="as large as the weights"):
        opened(hostile, own)


def test_only_the_recorded_name_is_imported_and_only_when_it_is_given(own: str, tmp_path: Path) -> None:
    _, folder = saved_own(own, tmp_path)
    calls = sys.modules["own_stored"].calls
    calls.clear()
    with pytest.raises(NetworkNotGiven, match="given by the caller") as caught:
        load_posterior(folder)
    assert "own_stored:Own" in caught.value.got
    for other in ("own_stored:Other", "os:system", "mlp"):
        with pytest.raises(NetworkNotGiven, match="the posterior was fitted with") as caught:
            opened(folder, other)
        assert "own_stored:Own" in caught.value.got
    assert calls == []


def test_the_guard_is_of_one_thread_and_ends(own: str) -> None:
    with no_larger_than({}):
        thread = threading.Thread(target=lambda: made.append(nn.Linear(5000, 5000)))
        made: list[nn.Module] = []
        thread.start()
        thread.join()
        with pytest.raises(BadInput):
            nn.Linear(5000, 5000)
    assert made
    nn.Linear(5000, 5000)


# ---- weights


def test_a_layout_is_what_safetensors_reads(tmp_path: Path) -> None:
    kinds = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.int8)
    tensors = {f"t{n}": torch.zeros(n, 2, 3, dtype=kind) for n, kind in enumerate(kinds)}
    (tmp_path / "w").write_bytes(save_tensors({**tensors, "scalar": torch.ones(())}))
    found = read_layout(tmp_path / "w")
    assert found == {name: ((*value.shape,), value.dtype) for name, value in tensors.items()} | {
        "scalar": ((), torch.float32)
    }


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]},
        {"shape": [1]},
        None,
        7,
    ],
)
def test_a_layout_that_lies_is_refused(entry: Any, small: Path, tmp_path: Path) -> None:
    text = json.dumps({"0/x": entry}).encode()
    payload = len(text).to_bytes(8, "little") + text + b"\0" * 4
    (tmp_path / WEIGHTS).write_bytes(payload)
    with pytest.raises(Damaged, match="safetensors"):
        read_layout(tmp_path / WEIGHTS)
    # also where the JSON vouches for it.
    header = json.loads((small / HEADER).read_bytes()) | {
        "weights_sha256": hashlib.sha256(payload).hexdigest()
    }
    header["content_sha256"] = save._content_hash(header)
    (tmp_path / HEADER).write_text(json.dumps(header))
    with pytest.raises(BadFile):
        save.load_posterior(tmp_path, REBUILT)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("length", [0, 1, 1 << 40, (1 << 64) - 1])
def test_a_header_that_is_longer_than_its_file_is_refused(length: int, tmp_path: Path) -> None:
    (tmp_path / WEIGHTS).write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(Damaged):
        read_layout(tmp_path / WEIGHTS)


def test_what_is_damaged_says_so_and_what_does_not_fit_too(small: Path, tmp_path: Path) -> None:
    """A store makes again what is damaged, and only that: the two must not be told as one another."""
    cut = rewritten(small, tmp_path / "cut", lambda header: None)
    (cut / WEIGHTS).write_bytes((cut / WEIGHTS).read_bytes()[:-5])
    with pytest.raises(Damaged, match="the sha256 that"):
        load_posterior(cut)
    with pytest.raises(Damaged, match="the sha256 that"):
        load_posterior(cut, nn.Linear(3, 4))
    with pytest.raises(BadInput, match="the parameters that were saved") as caught:
        load_posterior(small, network("mlp", images(), hidden=(5,)))
    assert not isinstance(caught.value, Damaged)
    newer = rewritten(small, tmp_path / "newer", lambda header: header.update(version=2))
    with pytest.raises(BadFile, match="version") as caught:
        qb.load_posterior(newer)
    assert not isinstance(caught.value, Damaged)
