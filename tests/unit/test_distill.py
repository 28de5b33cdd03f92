"""Fine-tuning by imitation: the divergences are the closed forms, and each draw imitates its own."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn

import qbayes as qb
from fine_tuned import plain_job, tuning
from qbayes.errors import BadInput
from qbayes.posterior.likelihood import Categorical, Gaussian
from qbayes.posterior.network import NetworkPosterior
from qbayes.quant.finetune.distill import Imitation, Taught, cast_once, mix_rows, student_state
from qbayes.quant.finetune.job import QuantizeJob, network_of
from qbayes.quant.finetune.quantize import quantize_members
from qbayes.quant.finetune.stacked import quantize_stacked
from qbayes.quant.prepare import prepare_module

METHODS: dict[str, dict[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.3},
    "bbb": {"sigma_linear": 0.1, "sigma_conv": 0.1},
}


class Normalised(nn.Module):
    """A convolution whose BatchNorm has gains of both signs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Linear(6 * 36, 10)
        with torch.no_grad():
            self.norm.weight.copy_(torch.tensor([1.0, -1.0, 0.5, -0.7, 2.0, -1.5]))
            self.norm.running_mean.copy_(torch.linspace(-1, 1, 6))  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


def fitted(method: str, network: nn.Module, task: qb.Task, **more: Any) -> NetworkPosterior:
    how = qb.method(method, **{**METHODS.get(method, {}), **more})
    budget = qb.Budget(epochs=20 if method == "sghmc" else 3, batch_size=64, learning_rate=3e-3)
    return qb.fit(network, task, how, budget, device="cpu")


def test_the_divergence_of_gaussians_is_torchs() -> None:
    heads = [{"mean": torch.randn(7, 2), "log_variance": torch.randn(7, 2)} for _ in range(2)]
    teacher, student = (
        distributions.Normal(one["mean"], torch.exp(0.5 * one["log_variance"])) for one in heads
    )
    wanted = distributions.kl_divergence(teacher, student).sum(1)
    torch.testing.assert_close(Gaussian((2,)).divergence(*heads), wanted)


def test_the_divergence_of_classes_is_torchs() -> None:
    one, other = torch.randn(5, 4), torch.randn(5, 4)
    wanted = distributions.kl_divergence(
        distributions.Categorical(logits=one), distributions.Categorical(logits=other)
    )
    torch.testing.assert_close(Categorical(4).divergence(one, other), wanted)
    assert float(Categorical(4).divergence(one, one).abs().max()) < 1e-6


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", ["lenet", "normalised"])
def test_before_rounding_the_student_draws_what_the_teacher_draws(method: str, network: str) -> None:
    task = qb.load_task("digits")
    plain = Normalised() if network == "normalised" else qb.network("lenet", task)
    posterior = fitted(method, plain, task)
    student = prepare_module(posterior.networks[0], task.signature.input_shape, qb.Precision())
    for _, quantizer in network_of(student).quantizers():
        quantizer.quantizing = False
    pair = Taught(student, copy.deepcopy(posterior.networks[0])).train()
    x, _ = next(task.batches("train", 16))
    x = task.signature.transform.apply(x)
    first, second = pair(x), pair(x)
    for outputs in (first, second):
        assert (outputs["student/"] - outputs["teacher/"]).abs().max() < 1e-4 * outputs[
            "teacher/"
        ].abs().max()
    # two passes are two draws.
    assert torch.equal(first["teacher/"], second["teacher/"]) is (method == "pointwise")
    assert not any(held for held in pair.noise.drawn.values())


def test_only_the_student_learns_and_the_teacher_keeps_its_running_means() -> None:
    task = qb.load_task("digits")
    posterior = fitted("mcd", Normalised(), task)
    student = prepare_module(posterior.networks[0], task.signature.input_shape, qb.Precision())
    pair = Taught(student, copy.deepcopy(posterior.networks[0])).train()
    before = {name: value.clone() for name, value in pair.teacher.state_dict().items()}
    x, y = next(task.batches("train", 16))
    outputs = pair(task.signature.transform.apply(x))
    Imitation(task.signature.likelihood, 0.5).nll(outputs, y).mean().backward()
    assert all(torch.equal(value, before[name]) for name, value in pair.teacher.state_dict().items())
    assert all(parameter.grad is None for parameter in pair.teacher.parameters())
    assert any(parameter.grad is not None for parameter in pair.student.parameters())
    assert student_state(pair.state_dict()).keys() == student.state_dict().keys()


def test_the_share_is_between_labels_and_teacher() -> None:
    likelihood, y = Categorical(3), torch.tensor([0, 2])
    outputs = {"student/": torch.randn(2, 3), "teacher/": torch.randn(2, 3)}
    labels = likelihood.nll(outputs["student/"], y)
    imitation = likelihood.divergence(outputs["teacher/"], outputs["student/"])
    for share in (0.25, 1.0):
        wanted = (1 - share) * labels + share * imitation
        torch.testing.assert_close(Imitation(likelihood, share).nll(outputs, y), wanted)


@pytest.mark.parametrize("method", METHODS)
def test_factors_that_are_cast_once_teach_what_autocast_teaches(method: str) -> None:
    task = qb.load_task("digits")
    posterior = fitted(method, Normalised(), task)
    x = task.signature.transform.apply(next(task.batches("train", 16))[0])
    teachers = [copy.deepcopy(posterior.networks[0]).train() for _ in range(2)]
    cast_once(teachers[1], torch.bfloat16)
    assert any(one.dtype == torch.bfloat16 for one in teachers[1].parameters())
    found: list[Tensor] = []
    for teacher in teachers:
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16):
            found.append(teacher(x))
    assert found[0].dtype == torch.bfloat16
    assert torch.equal(found[0], found[1])


def test_blended_rows_lie_between_a_row_and_the_one_before() -> None:
    x = torch.randn(400, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    found = mix_rows(x, 0.5)
    assert found.stride() == x.stride()
    before = x.roll(1, 0)
    # u from each row's numbers, which must all say the same: (x' − x) / (x₋₁ − x).
    parts = ((found - x) / (before - x)).flatten(1).double()
    part = parts.median(1).values
    torch.testing.assert_close(found, torch.lerp(x, before, part.float().view(-1, 1, 1, 1)))
    kept = int((found == x).flatten(1).all(1).sum())
    # of 400 rows half are left alone, up to five deviations of 10; the others' u is uniform: mean ½.
    assert abs(kept - 200) < 50
    assert part[part > 0].mean() == pytest.approx(0.5, abs=5 * 12**-0.5 / 200**0.5)
    assert torch.equal(mix_rows(x, 0.0), x)
    rows = torch.arange(6.0).view(3, 2)
    assert (mix_rows(rows, 1.0) != rows).any(1).all()


def test_teacher_and_student_see_the_same_mixed_rows() -> None:
    task = qb.load_task("digits")
    posterior = fitted("pointwise", Normalised(), task)
    student = prepare_module(posterior.networks[0], task.signature.input_shape, qb.Precision())
    for _, quantizer in network_of(student).quantizers():
        quantizer.quantizing = False
    pair = Taught(student, copy.deepcopy(posterior.networks[0]), mixup=0.5).train()
    x = task.signature.transform.apply(next(task.batches("train", 64))[0])
    plain = posterior.networks[0](x)
    outputs = pair(x)
    torch.testing.assert_close(outputs["student/"], outputs["teacher/"], rtol=1e-3, atol=1e-3)
    as_they_were = (outputs["teacher/"] - plain).abs().amax(1) < 1e-5
    assert 10 < int(as_they_were.sum()) < 54
    torch.testing.assert_close(pair.eval()(x)["teacher/"], plain)


def test_mixed_rows_need_distillation_alone() -> None:
    task = qb.load_task("digits")
    posterior = fitted("pointwise", Normalised(), task)
    budget = tuning(epochs=1, batch_size=256, learning_rate=1e-3)
    with pytest.raises(BadInput, match="mixed rows have no labels") as error:
        qb.quantize(posterior, task, "W8A8", replace(budget, distill=0.5, mixup=0.5), device="cpu")
    assert "distill=0.5" in error.value.got
    with pytest.raises(BadInput, match="mixup must be a share"):
        qb.FineTuning(distill=1.0, mixup=2.0)
    asked = [
        plain_job(posterior, task, qb.Precision(), budget, seed, distill=1.0, mixup=0.5) for seed in (0, 1)
    ]
    with pytest.raises(BadInput, match="mixed"):
        quantize_stacked(asked, device="cpu")
    made = [quantize_members(asked[0], device="cpu") for _ in range(2)]
    assert made[0].provenance["quantised"]["mixup"] == 0.5
    for one, other in zip(*(one.members[0].values() for one in made), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("method", [*METHODS, "sghmc"])
def test_stacked_imitation_is_that_of_each_alone(method: str) -> None:
    asked: list[QuantizeJob] = []
    budget = tuning(epochs=4, batch_size=80, learning_rate=1e-3, clip=1.0)
    for seed, bits in enumerate((8, 4, 3)):
        task = qb.load_task("diabetes", split=seed)
        network = qb.network("mlp", task, hidden=(20,), noise="row")
        posterior = fitted(method, network, task, **({"members": 2, "every": 1} if method == "sghmc" else {}))
        precision = qb.Precision(bits, bits, weight_range="minmax", activation_range="minmax")
        asked.append(plain_job(posterior, task, precision, budget, seed, distill=0.7))
    for one, found in zip(asked, quantize_stacked(asked, device="cpu"), strict=True):
        assert isinstance(found, NetworkPosterior)
        alone = quantize_members(one, device="cpu")
        assert found.provenance["quantised"]["distill"] == 0.7
        for mine, theirs in zip(found.members, alone.members, strict=True):
            assert mine.keys() == theirs.keys()
            for name, value in theirs.items():
                size = value.double().abs().max().clamp_min(1e-12)
                assert float((mine[name].double() - value.double()).abs().max() / size) <= 2e-6, name


def test_members_that_imitate_stay_apart() -> None:
    """Labels pull an ensemble together; a teacher of one's own does not."""
    task = qb.load_task("digits")
    how = qb.method("sghmc", members=5, every=2)
    budget = qb.Budget(epochs=40, batch_size=256, learning_rate=1e-2, schedule="constant")
    posterior = qb.fit(qb.network("mlp", task, hidden=(32,)), task, how, budget, device="cpu")
    budget = tuning(epochs=10, batch_size=128, learning_rate=1e-2, clip=1.0)
    found: dict[float, float] = {}
    for share in (0.0, 1.0):
        made = qb.quantize(posterior, task, "W4A4", replace(budget, distill=share), device="cpu")
        scores = [qb.evaluate(one, task, 5, 0, shifts=False).flat() for one in (made, posterior)]
        found[share] = scores[0]["mutual_information"] / scores[1]["mutual_information"]
    assert found[0.0] < 0.75  # 0.6
    assert 0.9 < found[1.0] < 1.5  # 1.3: four bits add a little of their own


class Viewed(nn.Module):
    """Reads its feature map as it lies in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(2, 4, 3), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.conv(x).relu().view(x.size(0), -1))


@pytest.mark.parametrize("name", ["pointwise", "mcd", "bbb"])
def test_a_teacher_that_needs_the_plain_layout_gets_it(name: str) -> None:
    """The student is traced, and reshapes; the rows come with their channels last."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 2, 6, 6, generator=generator), torch.arange(24) % 3
    task = qb.Task.from_arrays(x, y, x, y, kind="classification")
    posterior = fitted(name, Viewed(), task)
    made = [
        qb.quantize(
            posterior,
            task,
            qb.Precision(8, 8),
            tuning(epochs=1, batch_size=8, channels_last=last, distill=1.0),
            device="cpu",
        )
        for last in (True, False)
    ]
    one, other = (made_so.provenance["quantised"]["losses"][0][0] for made_so in made)
    # noise of outputs is drawn in the order of memory: there the draws are others.
    assert max(one, other) < 1e-3
    assert one == pytest.approx(other, rel=1e-5) or name == "bbb"


def test_the_papers_grid_has_no_teacher() -> None:
    task = qb.load_task("diabetes")
    posterior = fitted("bbb", qb.network("mlp", task, hidden=(8,), noise="row"), task)
    with pytest.raises(BadInput, match="keep their noise"):
        qb.quantize(posterior, task, {"preset": "paper"}, qb.FineTuning(distill=1.0), device="cpu")
    with pytest.raises(BadInput, match="not compiled"):
        qb.quantize(posterior, task, "W8A8", qb.FineTuning(compile=True, distill=1.0), device="cpu")
    with pytest.raises(BadInput, match="distill must be a share"):
        qb.FineTuning(distill=1.5)
    with pytest.raises(BadInput, match="optimizer"):
        qb.FineTuning(optimizer="adm")  # type: ignore[arg-type]
