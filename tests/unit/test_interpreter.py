"""The interpreter: what runs once, what runs for each draw, and that no way of cutting the work shows."""

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from handmade.programs import Maker, every_op
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.errors import BadInput
from qbayes.integer import ops
from qbayes.integer.backends.base import Kernel, choose
from qbayes.integer.interpreter import FrozenDraws, Interpreter
from qbayes.integer.ops.base import Noise
from qbayes.integer.posterior import ProgramPosterior, load
from qbayes.integer.program import Program
from qbayes.integer.structure.program_data import plan
from qbayes.posterior.predictive import CategoricalPredictive, GaussianPredictive

CPU = torch.device("cpu")


def masked_network(members: int = 1) -> tuple[Maker, Program]:
    """A convolution that runs once, a mask, a shortcut around it, and a layer behind both."""
    make = Maker((2, 6, 6), members=members)
    stem = make.conv(make.input, 8, padding=1)
    joined = make.add(make.mask(stem, channelwise=True), stem)
    flat = make.moved(ops.Reshape, make.avg_pool(joined, adaptive=2), shape=(32,))
    return make, make.program(make.linear(flat, 4, relu=False))


def gaussian_network(grids: int = 1) -> tuple[Maker, Program]:
    make = Maker((12,))
    hidden = make.linear(make.linear(make.input, 10), 9, grids=grids)
    return make, make.program(make.linear(make.mask(hidden), 3, relu=False, grids=grids))


def one_by_one(program: Program, x: Tensor, draws: int, seed: int, first_row: int = 0) -> Tensor:
    """The definition: each draw by itself, every op by ``Op.run``, all values kept."""
    found = []
    for draw in range(draws):
        member = program.members[draw % len(program.members)]
        z = program.signature.transform.apply(x)
        top = (1 << program.values[program.input].bits) - 1
        scale = torch.tensor(member.scales[program.input])
        codes = ((z / scale).round() + member.zeros[program.input]).clamp(0, top).to(torch.uint8)
        values = {program.input: codes}
        noise = Noise(seed, torch.tensor([draw]), first_row, len(x))
        for op in program.ops:
            inputs = [values[name] for name in op.inputs]
            values[op.output] = op.run(inputs, program.grids(op, member), member.constants[op.name], noise)
        (name,) = program.outputs.values()
        found.append((values[name].float() - member.zeros[name]) * torch.tensor(member.scales[name]))
    return torch.stack(found)


class Counting(Interpreter):
    """Counts the calls of every kernel and the weights drawn."""

    def __init__(self, program: Program, frozen_draws: int = 0) -> None:
        super().__init__(program, choose("reference", program, CPU), frozen_draws)
        self.calls: Counter[str] = Counter()
        self.drawn: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        for name, kernel in self.backend.kernels[0].items():
            self.backend.kernels[0][name] = self._counted(name, kernel)  # pyright: ignore[reportArgumentType]

    def _counted(self, name: str, kernel: Kernel) -> object:
        counts = self

        class Counted:
            takes_shared, draws_weights = kernel.takes_shared, kernel.draws_weights

            def draw(self, seed: int, draw: int) -> object:
                counts.drawn[name] += 1
                return kernel.draw(seed, draw)

            def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[object]) -> Tensor:
                counts.calls[name] += 1
                out = kernel(inputs, noise, drawn)
                counts.rows[name] += len(out)
                return out

        return Counted()


@pytest.mark.parametrize("bits", [8, 5, 2])
def test_folded_draws_are_the_draws_one_by_one(bits: int) -> None:
    make = every_op(bits, members=2)
    program = make.program(make.ops[-1].output)
    x = make.inputs(5)
    got = load(program, "reference").outputs(x, 5, 3, first_row=7)
    assert torch.equal(torch.as_tensor(got), one_by_one(program, x, 5, 3, first_row=7))


@pytest.mark.parametrize("grids", [0, 1, 2])
def test_gaussian_draws_are_the_draws_one_by_one(grids: int) -> None:
    make, program = gaussian_network(grids)
    x = make.inputs(4)
    got = torch.as_tensor(load(program, "reference").outputs(x, 3, 11))
    assert torch.equal(got, one_by_one(program, x, 3, 11))
    assert not torch.equal(got[0], got[1])


def test_ops_before_the_noise_run_once() -> None:
    make, program = masked_network()
    steps = plan(program)
    assert [step.op.kind for step in steps.prefix] == ["conv"]
    assert [step.op.kind for step in steps.suffix] == ["mask", "add", "avg_pool", "reshape", "linear"]
    counting = Counting(program)
    counting.outputs(make.inputs(3), 4, 0)
    assert counting.rows["conv0"] == 3
    assert counting.rows["add2"] == 3 * 4


def test_a_network_without_noise_runs_once_for_all_draws() -> None:
    make = Maker((4,))
    program = make.program(make.linear(make.input, 3, relu=False))
    counting = Counting(program)
    x = make.inputs(6)
    heads = counting.outputs(x, 5, 0)[""]
    assert counting.rows["linear0"] == 6
    assert torch.equal(heads, one_by_one(program, x, 1, 0).expand(5, -1, -1))


def test_values_are_let_go_after_their_last_use() -> None:
    _, program = masked_network()
    steps = plan(program)
    done = {step.op.kind: step.done for step in (*steps.prefix, *steps.suffix)}
    stem, masked, joined, pooled, flat = (op.output for op in program.ops[:5])
    assert done["conv"] == (program.input,)
    # the stem serves every draw: it stays.
    assert done["add"] == (masked,)
    assert (done["avg_pool"], done["reshape"], done["linear"]) == ((joined,), (pooled,), (flat,))
    assert stem not in {name for names in done.values() for name in names}


def test_weights_are_drawn_once_for_all_rows() -> None:
    make, program = gaussian_network()
    counting = Counting(program)
    counting.outputs(make.inputs(9), 4, 0, batch_size=2)
    assert counting.drawn == {"linear1": 4, "linear3": 4}
    assert counting.calls["linear1"] >= 5


@pytest.mark.parametrize("backend", ["reference", "onednn"])
@pytest.mark.parametrize("bits", [8, 4])
def test_answers_do_not_depend_on_the_batch(backend: str, bits: int) -> None:
    make = every_op(bits, members=2)
    deployed = load(make.program(make.ops[-1].output), backend)
    x = make.inputs(7)
    whole = torch.as_tensor(deployed.outputs(x, 4, 5))
    for size in (1, 2, 3, 7, 100):
        assert torch.equal(torch.as_tensor(deployed.outputs(x, 4, 5, 0, size)), whole)
    assert torch.equal(torch.as_tensor(deployed.outputs(x[3:], 4, 5, first_row=3)), whole[:, 3:])
    few_at_once = load(deployed.program, backend)
    few_at_once.interpreter._rows_at_once = 3  # pyright: ignore[reportPrivateUsage]
    assert torch.equal(torch.as_tensor(few_at_once.outputs(x, 4, 5)), whole)


def test_weights_that_do_not_fit_together_are_drawn_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    make, program = gaussian_network()
    x = make.inputs(3)
    together = torch.as_tensor(load(program, "reference").outputs(x, 5, 2))
    monkeypatch.setattr("qbayes.integer.interpreter._WEIGHTS_AT_ONCE", 2 * (10 * 9 + 9 * 3))
    assert torch.equal(torch.as_tensor(load(program, "reference").outputs(x, 5, 2)), together)


def test_draw_d_uses_member_d_mod_m() -> None:
    make = every_op(6, members=3)
    program = make.program(make.ops[-1].output)
    x = make.inputs(2)
    draws = torch.as_tensor(load(program, "reference").outputs(x, 7, 1))
    assert torch.equal(draws, one_by_one(program, x, 7, 1))
    fewer = torch.as_tensor(load(program, "reference").outputs(x, 2, 1))
    assert torch.equal(fewer, draws[:2])


@pytest.mark.parametrize("backend", ["reference", "onednn"])
def test_frozen_draws_give_the_same_answers_without_drawing(backend: str) -> None:
    make, program = gaussian_network()
    x = make.inputs(3)
    fresh, frozen = load(program, backend), load(program, backend, frozen_draws=3)
    for seed in (1, 1, 2, 1):
        assert torch.equal(
            torch.as_tensor(frozen.outputs(x, 5, seed)), torch.as_tensor(fresh.outputs(x, 5, seed))
        )
    assert len(frozen.interpreter.frozen) == 3
    assert len(fresh.interpreter.frozen) == 0


def test_frozen_draws_are_kept_by_seed_and_draw() -> None:
    make, program = gaussian_network()
    counting = Counting(program, frozen_draws=3)
    x = make.inputs(2)
    counting.outputs(x, 5, 1)
    assert counting.drawn["linear1"] == 5
    counting.outputs(x, 5, 1)
    # three of five were kept.
    assert counting.drawn["linear1"] == 7
    counting.outputs(x, 2, 9)
    assert counting.drawn["linear1"] == 9
    counting.outputs(x, 2, 9)
    assert counting.drawn["linear1"] == 9


def test_frozen_draws_never_exceed_their_limit() -> None:
    kept = FrozenDraws(4)
    for seed in range(6):
        for draw in range(9):
            kept.find(seed, draw, lambda: {"op": object()})
            assert len(kept) <= 4
    assert len(FrozenDraws(0)) == 0


def test_predictions_from_several_threads_are_those_from_one() -> None:
    make = every_op(8, members=2)
    deployed = load(make.program(make.ops[-1].output), "auto", frozen_draws=2)
    inputs = [make.inputs(3) for _ in range(6)]
    expected = [torch.as_tensor(deployed.outputs(x, 4, 0)) for x in inputs]
    started = threading.Barrier(3)

    def answer(x: Tensor) -> Tensor:
        started.wait(timeout=30)
        return torch.as_tensor(deployed.outputs(x, 4, 0))

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(answer, inputs))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_classification_answers_with_probabilities() -> None:
    make, program = masked_network()
    deployed = load(program)
    answer = deployed.predict(make.inputs(3), draws=4, seed=2)
    assert isinstance(answer, CategoricalPredictive)
    logits = torch.as_tensor(deployed.outputs(make.inputs(3), 4, 2))
    assert logits.shape == (4, 3, 4)
    assert torch.allclose(answer.draws.sum(-1), torch.ones(4, 3))


def test_a_constant_head_is_the_same_for_every_row_and_draw() -> None:
    make = Maker((6,))
    mean = make.linear(make.mask(make.linear(make.input, 8)), 2, relu=False)
    program = make.program(mean, heads=("mean",), noise=(-1.0, 0.5))
    x = make.inputs(5)
    deployed = load(program)
    heads = deployed.outputs(x, 3, 0)
    assert not isinstance(heads, Tensor)
    assert torch.equal(heads["mean"], one_by_one(program, x, 3, 0))
    answer = deployed.predict(x, draws=3)
    assert isinstance(answer, GaussianPredictive)
    # v = exp(log_variance) · std² with the target's std of 2.
    expected = (torch.tensor([-1.0, 0.5]).exp() * 4.0).expand(3, 5, 2)
    assert torch.allclose(answer.draw_variances, expected)


def test_a_program_can_be_loaded_from_its_file(tmp_path: Path) -> None:
    make = every_op(4, members=2)
    program = make.program(make.ops[-1].output)
    path = program.save(tmp_path / "all.qbayes")
    x = make.inputs(3)
    for backend in ("reference", "onednn"):
        opened, kept = load(path, backend), load(program, backend)
        assert isinstance(opened, ProgramPosterior)
        assert torch.equal(torch.as_tensor(opened.outputs(x, 4, 1)), torch.as_tensor(kept.outputs(x, 4, 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frozen_draws": -1}, "frozen_draws must be"),
        ({"frozen_draws": 1.5}, "frozen_draws must be"),
        ({"device": "warp"}, "device must be one that torch knows"),
        ({"backend": "onednm"}, "did you mean 'onednn'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    _, program = masked_network()
    with pytest.raises(BadInput, match=message):
        load(program, **options)  # pyright: ignore[reportArgumentType]
