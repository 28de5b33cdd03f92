"""Posteriors and programs that are copied, pickled or sent: the same answers, and nothing shared."""

import copy
import multiprocessing as mp
import os
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from handmade import sent
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.errors import BadInput
from qbayes.integer.backends.base import BACKENDS
from qbayes.integer.onnx.runtimes import missing
from qbayes.integer.posterior import ProgramPosterior
from qbayes.posterior.copying import Carried
from qbayes.posterior.likelihood import ConstantNoise, Gaussian
from qbayes.posterior.network import NetworkPosterior
from zoo.tasks import TASKS, ZOO


def unpickled(content: bytes) -> Any:
    return pickle.loads(content)  # noqa: S301  (what this test has pickled itself)


Copy = Callable[[Any], Any]
COPIES: dict[str, Copy] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda held: unpickled(pickle.dumps(held)),
}
KINDS = [
    *(f"{name}, {form}" for name in sent.METHODS for form in ("float", "quantised", "deployed")),
    *("regression, quantised", "regression", *sent.BACKENDS, "frozen draws"),
]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_gives_the_same_bits_and_shares_nothing(kind: str, how: str) -> None:
    original = sent.kinds()[kind]
    made = COPIES[how](original)
    wanted = sent.digest(original)
    assert type(made) is type(original)
    assert sent.digest(made) == wanted
    assert made.provenance == original.provenance
    assert made.signature.to_json() == original.signature.to_json()
    sent.spoil(made)
    assert sent.digest(original) == wanted
    assert sent.digest(COPIES[how](made)) != wanted, "what is spoilt must be what answers are made from"


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_as_it_was_asked_for(how: str) -> None:
    """Which bits, which backend, how many frozen draws, which sites."""
    one, other = sent.kinds()["mcd, quantised"], COPIES[how](sent.kinds()["mcd, quantised"])
    assert isinstance(one, NetworkPosterior)
    for name in ("sites", "quantised", "architecture"):
        assert getattr(other, name) == getattr(one, name)
    assert not any(module.training for network in other.networks for module in network.modules())
    assert not any(value.requires_grad for network in other.networks for value in network.parameters())
    deployed = COPIES[how](sent.kinds()["frozen draws"])
    assert isinstance(deployed, ProgramPosterior)
    assert (deployed.backend.name, deployed.interpreter.frozen.limit) == ("onednn", 2)
    assert deployed.program.signature is deployed.signature
    assert deployed.backend.program is deployed.program
    assert len(deployed.interpreter.frozen) == 0


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_one_never_asked_answers_as_that_would(how: str) -> None:
    """The first answer in float may differ in its last bits from the next ones; so does that of the copy."""
    fresh = [copy.deepcopy(sent.in_float("bbb")) for _ in range(2)]
    for posterior in fresh:
        posterior._probed = False
    made = COPIES[how](fresh[0])
    assert sent.digest(made) == sent.digest(fresh[1])


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("opened", [False, True])
def test_a_copied_program_is_equal(how: str, opened: bool, tmp_path: Path) -> None:
    program = sent.program()
    if opened:
        program = qb.Program.open(program.save(tmp_path / "program.qbayes"))
    made = COPIES[how](program)
    assert made.equals(program)
    for one, other in zip(made.members, program.members, strict=True):
        pairs = [
            (one.constants[op][name], held)
            for op in other.constants
            for name, held in other.constants[op].items()
        ]
        assert all(a.dtype == b.dtype and a.data_ptr() != b.data_ptr() for a, b in pairs if b.numel())
    assert str(made) == str(program)


def test_a_worker_that_is_sent_them_answers_the_same_and_changes_nothing_here() -> None:
    posteriors = sent.kinds()
    wanted = {name: sent.digest(posterior) for name, posterior in posteriors.items()}
    spawn = mp.get_context("spawn")
    answers = spawn.Queue()
    worker = spawn.Process(target=sent.answer_and_spoil, args=(posteriors, answers))
    worker.start()
    found = answers.get(timeout=300)
    worker.join(60)
    assert worker.exitcode == 0
    assert found == wanted
    assert {name: sent.digest(posterior) for name, posterior in posteriors.items()} == wanted


def test_sending_moves_no_memory_of_the_original() -> None:
    """Kernels hold the addresses of a program's codes; ``multiprocessing`` makes tensors shared in place."""
    for name, posterior in sent.kinds().items():
        held = [*sent.tensors_of(posterior), *sent.scales_of(posterior.signature)]
        before = [tensor.data_ptr() for tensor in held]
        ForkingPickler.dumps(posterior)
        now = [*sent.tensors_of(posterior), *sent.scales_of(posterior.signature)]
        assert [tensor.data_ptr() for tensor in now] == before, name
        assert not any(tensor.is_shared() for tensor in now), name


def test_an_ensemble_takes_no_open_file_for_each_number() -> None:
    """A shared tensor is an open file, of which a process may have about a thousand."""
    network = qb.attach(sent.Small(), qb.method("pointwise"))
    one, many = (
        NetworkPosterior(network, [network.state_dict()] * count, sent.digits().signature)
        for count in (1, 30)
    )
    files = []
    for posterior in (one, many):
        before = len(os.listdir("/proc/self/fd"))
        held = ForkingPickler.dumps(posterior)
        files.append(len(os.listdir("/proc/self/fd")) - before)
        del held
    assert files[1] <= files[0]


@pytest.mark.parametrize(
    "kind", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3, 4)])
def test_numbers_travel_whole(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 9).to(kind)
    found = unpickled(pickle.dumps(Carried.of(tensor))).tensor()
    assert (found.dtype, found.shape) == (kind, tensor.shape)
    assert torch.equal(found, tensor)
    turned = tensor.T if tensor.dim() == 2 else tensor
    assert torch.equal(Carried.of(turned).tensor(), turned)
    found.zero_()
    assert torch.equal(Carried.of(tensor).tensor(), tensor)


# together they have most of the layers there are.
QUICK = ("mobilenet_v3", "unet", "sequence")


def answering(network: nn.Module, task: qb.Task) -> nn.Module:
    """With a constant noise where the task needs one and the network has none."""
    likelihood = task.signature.likelihood
    if isinstance(likelihood, Gaussian) and isinstance(
        network(torch.zeros(2, *task.signature.input_shape)), Tensor
    ):
        return ConstantNoise(network, likelihood.shape)
    return network


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in ZOO],
)
def test_every_layer_of_a_network_can_be_copied(name: str) -> None:
    """In float with Gaussian weights, and fake-quantised."""
    entry = ZOO[name]
    task = TASKS[entry.task]()
    torch.manual_seed(1)
    network = qb.attach(answering(entry.build(), task), qb.method("bbb"))
    in_float = NetworkPosterior(network, [network.state_dict()], task.signature)
    quantised = qb.quantize(in_float, task, qb.Precision(), qb.FineTuning(epochs=0), progress=False)
    for posterior in (in_float, quantised):
        wanted = [sent.digest(posterior) for _ in range(2)][-1]
        assert [sent.digest(make(posterior)) for make in COPIES.values()] == [wanted] * 2


def test_layers_that_share_a_weight_still_do() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 3))
    tied[2].weight = tied[0].weight
    network = unpickled(pickle.dumps(of_network(tied))).network
    assert network[2].weight is network[0].weight
    assert isinstance(network[0].weight, nn.Parameter)


class Recurrent(nn.Module):
    """Its layer keeps lists of its own parameters; and a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)
        self.scale = torch.tensor([2.0])
        self.register_buffer("shift", torch.tensor([0.5]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x[:, None])[0][:, -1] * self.scale + self.shift)


@pytest.mark.parametrize("how", COPIES)
def test_what_is_no_part_of_the_state_travels_too(how: str) -> None:
    posterior = of_network(Recurrent())
    made = COPIES[how](posterior)
    assert sent.digest(made) == sent.digest(posterior)
    made.network.scale.add_(1)
    made.network.shift.add_(1)
    assert (float(posterior.network.scale), float(posterior.network.shift)) == (2.0, 0.5)


class Held(nn.Module):
    """A network with something on it."""

    def __init__(self, held: object = None) -> None:
        super().__init__()
        self.layer, self.held = nn.Linear(4, 3), held

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def of_network(network: nn.Module) -> NetworkPosterior:
    x = torch.randn(20, 4)
    task = qb.Task.from_arrays(
        x, torch.arange(20) % 3, x, torch.arange(20) % 3, kind="classification", name="three"
    )
    return NetworkPosterior(network, [network.state_dict()], task.signature)


def local_network() -> nn.Module:
    class Local(Held):
        pass

    return Local()


def hooked() -> nn.Module:
    network = Held()
    network.layer.register_forward_hook(lambda module, inputs, out: out + 1)
    return network


@pytest.mark.parametrize(
    ("network", "what"),
    [
        (local_network, r"test_copies.local_network.<locals>.Local at ''"),
        (lambda: Held(lambda x: x), r"test_copies.<lambda>.<locals>.<lambda> at ''"),
        (hooked, r"test_copies.hooked.<locals>.<lambda> at 'layer'"),
    ],
    ids=["a class", "a function", "a hook"],
)
def test_what_cannot_be_pickled_says_why_and_is_copied(network: Callable[[], nn.Module], what: str) -> None:
    posterior = of_network(network())
    with pytest.raises(BadInput, match=r"can be imported by name") as refused:
        pickle.dumps(posterior)
    assert what.partition(".")[2] in refused.value.got
    assert "save the posterior" in refused.value.do
    x = torch.randn(5, 4)
    assert torch.equal(
        copy.deepcopy(posterior).predict(x, draws=2).draws, posterior.predict(x, draws=2).draws
    )


def test_a_function_that_can_be_imported_is_pickled() -> None:
    made = unpickled(pickle.dumps(of_network(Held(doubled))))
    assert made.network.held is doubled


def test_a_backend_that_is_missing_on_the_other_side_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle.dumps(sent.kinds()["onednn"])
    monkeypatch.setattr(BACKENDS["onednn"], "why_not", classmethod(lambda *_: "this torch has no oneDNN"))
    with pytest.raises(BadInput, match="this torch has no oneDNN"):
        unpickled(content)


def test_the_extras_are_there_to_be_tried() -> None:
    assert {"onnxruntime", "openvino"} - set(sent.BACKENDS) == {
        name for name in ("onnxruntime", "openvino") if missing(name) is not None
    }
