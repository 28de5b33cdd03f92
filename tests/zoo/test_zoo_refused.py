"""What no integer program can express is refused before any training, by name and with a way out."""

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from fine_tuned import tuning
from qbayes.training.loop import Loop
from zoo.refused import REFUSED
from zoo.tasks import TASKS


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one batch is asked for before the refusal, neither to train nor to calibrate."""
    monkeypatch.setattr(Loop, "run", lambda *_, **__: pytest.fail("it trained"))
    monkeypatch.setattr(qb.Task, "training_batches", lambda *_, **__: pytest.fail("it read rows"))


def refusals(network: nn.Module, task: str = "digits") -> list[qb.QbayesError]:
    """What ``prepare`` and ``quantize`` say to a network."""
    made = TASKS[task]()
    posterior = qb.Posterior.from_trained(network, made.signature)
    with pytest.raises(qb.QbayesError) as of_prepare:
        qb.prepare(posterior, qb.Precision())
    with pytest.raises(qb.QbayesError) as of_quantize:
        qb.quantize(posterior, made, finetuning=tuning(epochs=3), device="cpu", progress=False)
    return [of_prepare.value, of_quantize.value]


def assert_refused(network: nn.Module, *words: str, way_out: str, task: str = "digits") -> None:
    for error in refusals(network, task):
        assert isinstance(error, qb.BadInput)
        for word in words:
            assert word in error.got, error
        assert way_out in error.do, error


# what the error must propose instead.
WAYS_OUT = {
    "lstm": "1-D convolutions",
    "gru": "1-D convolutions",
    "multihead_attention": "convolutions",
    "scaled_dot_product": "convolutions",
    "matmul_of_activations": "convolutions",
    "layer_norm": "BatchNorm",
    "data_dependent": "without 'if'",
    "random_constant": "nn.Dropout",
    "random_like": "nn.Dropout",
    "functional_dropout": "nn.Dropout",
    "transposed_convolution": "nn.Upsample",
    "group_norm": "BatchNorm",
    "softmax_inside": "logits",
    "bilinear": "nearest",
    "own_autograd_function": "torch's own functions",
    "own_parameters": "nn.Linear",
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_network_is_refused_by_name_with_a_way_out(name: str) -> None:
    case = REFUSED[name]
    for error in refusals(case.build(), case.task):
        assert isinstance(error, qb.BadInput)
        assert case.names in str(error)
        assert WAYS_OUT[name] in error.do


@pytest.mark.parametrize("method", ["mcd", "bbb"])
@pytest.mark.parametrize("name", ["lstm", "layer_norm", "softmax_inside"])
def test_attached_randomness_does_not_hide_what_stands_in_the_way(name: str, method: str) -> None:
    """The layer is named as its owner knows it, not by a wrapper that a method put around it."""
    case = REFUSED[name]
    attached = qb.attach(case.build(), qb.method(method), TASKS[case.task]().example(4))
    for error in refusals(attached, case.task):
        assert case.names in str(error)
        assert WAYS_OUT[name] in error.do


class Flat(nn.Module):
    """One linear layer on 1×8×8 pixels; what it does with them is for others to say."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(64, 10)


class TwoInputs(Flat):
    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        return self.classifier(x.flatten(1)) * weights


class ReshapesRows(Flat):
    def forward(self, x: Tensor) -> Tensor:
        halves = x.reshape(-1, 32)
        return self.classifier((halves * 2).reshape(-1, 64))


class RowsInTheMiddle(Flat):
    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x.flatten(1)).t().contiguous().t()


class MixesRows(Flat):
    def forward(self, x: Tensor) -> Tensor:
        z = self.classifier(x.flatten(1))
        return z - z.mean(0)


def test_a_second_input_is_refused_by_its_name() -> None:
    assert_refused(TwoInputs(), "TwoInputs.forward", "'weights'", way_out="default")


@pytest.mark.parametrize(
    ("network", "word"), [(ReshapesRows(), "reshape"), (RowsInTheMiddle(), "t"), (MixesRows(), "mean")]
)
def test_rows_stay_apart_and_on_the_first_axis(network: nn.Module, word: str) -> None:
    assert_refused(network, "rows", f"'{word}'", way_out="batch on the first axis")


def test_a_layer_deep_in_a_sequential_is_named_by_its_path() -> None:
    body = nn.Sequential(nn.Linear(64, 16), nn.LayerNorm(16), nn.ReLU())
    network = nn.Sequential(nn.Flatten(), nn.ModuleDict({"body": body})["body"], nn.Linear(16, 10))
    assert_refused(network, "LayerNorm", "'1.1'", way_out="BatchNorm")


def test_a_norm_without_running_statistics_is_refused() -> None:
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.Linear(144, 10))
    assert_refused(network, "running statistics", "'1'", way_out="track_running_stats=True")


class Optional(Flat):
    """Its second input may be left out, and then nothing happens to the logits."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, negate: bool = False) -> Tensor:
        z = self.classifier(x.flatten(1))
        if mask is not None:
            z = z * 0
        return -z if negate else z


def test_arguments_with_a_default_keep_it() -> None:
    task = TASKS["digits"]()
    posterior = qb.Posterior.from_trained(Optional(), task.signature)
    prepared = qb.prepare(posterior, qb.Precision())
    x = task.example(64)
    with torch.no_grad():
        prepared.train()(x)  # the first batch sets the ranges
        apart = prepared.eval()(x) - posterior.network(x)
    assert float(apart.abs().max()) < 0.05 * float(posterior.network(x).abs().max())
