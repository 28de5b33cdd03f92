"""In which arithmetic networks train where it cannot be the one that was asked for, and that keys tell it."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import qbayes as qb
from qbayes.errors import RunFailed
from qbayes.lab.study.plan.plan import Plan, make_plan
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.spec.study import Study
from qbayes.training.budget import resolve_arithmetic

CPU = torch.device("cpu")
IMAGE, ROW = (3, 32, 32), (13,)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes this processor one with products of bfloat16, or one without."""
    return lambda has: monkeypatch.setattr("qbayes.training.budget._processor_has_bf16", lambda: has)


def task_of() -> qb.Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 3, generator=generator)
    return qb.Task.from_arrays(x, (x[:, 0] > 0).long(), kind="classification")


def trained(**options: object) -> qb.NetworkPosterior:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    budget = qb.Budget(epochs=2, batch_size=16, **options)  # type: ignore[arg-type]
    return qb.fit(network, task_of(), qb.method("pointwise"), budget, device="cpu", progress=False)


@pytest.mark.parametrize("shape", [IMAGE, ROW])
@pytest.mark.parametrize("has", [False, True])
def test_bf16_runs_where_it_is_asked_for_and_there(
    processor: Callable[[bool], None], has: bool, shape: tuple[int, ...]
) -> None:
    processor(has)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if has else "ignore")
        assert resolve_arithmetic(qb.Budget(bf16=True), CPU, shape).bf16 is has
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_arithmetic(qb.Budget(bf16="auto"), CPU, shape).bf16 is (has and shape == IMAGE)
        assert resolve_arithmetic(qb.Budget(bf16=False), CPU, shape).bf16 is False


def test_a_processor_without_bf16_says_so_once_and_trains_in_float32(
    processor: Callable[[bool], None],
) -> None:
    processor(False)
    with pytest.warns(
        UserWarning, match=r"bf16 must have a processor with such products; cpu has none"
    ) as said:
        asked = trained(bf16=True)
    assert len(said) == 1
    plain = trained(bf16=False)
    for name, value in plain.members[0].items():
        assert torch.equal(asked.members[0][name], value), "the same numbers, to the last bit"


class Edge(nn.Module):
    """Its layer is given 3.4e38: below the largest float32, above the largest bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        nn.init.constant_(self.layer.weight, 2e-38)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.sign() * 3.4e38)


def test_a_loss_that_is_not_finite_in_bf16_ends_the_training(processor: Callable[[bool], None]) -> None:
    processor(True)
    network = Edge()
    x = torch.tensor([[1.0, -1.0, 1.0]])
    assert torch.isfinite(network(x)).all(), "it is finite in float32"
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.isfinite(network(x)).all()
    budget = qb.Budget(epochs=2, batch_size=16, bf16=True)
    with pytest.raises(RunFailed, match="loss is not finite"):
        qb.fit(network, task_of(), qb.method("pointwise"), budget, device="cpu", progress=False)


def runs_of(bf16: object) -> Plan:
    content = {
        "run": {
            "task": "digits",
            "network": "lenet",
            "method": "pointwise",
            "training": {"epochs": 1, "bf16": bf16},
            "quantize": {"epochs": 1, "bf16": bf16},
            "precision": "W8A8",
        }
    }
    return make_plan(Study.from_content(content), Tasks(None))


def test_a_study_begun_in_another_arithmetic_takes_nothing_of_it(processor: Callable[[bool], None]) -> None:
    processor(True)
    begun = runs_of("auto")
    processor(False)
    gone_on = runs_of("auto")
    for stage in ("float", "quantised", "scores"):
        assert not set(begun.keys(stage)) & set(gone_on.keys(stage)), stage
    done = Plan(gone_on.runs, {stage: set(begun.keys(stage)) for stage in ("float", "quantised", "scores")})
    assert done.left("float") == gone_on.keys("float"), "what another arithmetic made does not pass for it"
    # what runs is in the keys, not what was asked for.
    assert runs_of(False).keys("float") == gone_on.keys("float")
    processor(True)
    assert runs_of(True).keys("float") == begun.keys("float")
