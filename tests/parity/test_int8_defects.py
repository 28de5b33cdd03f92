"""Convolutions that oneDNN's int8 kernels get wrong run in exact integers, and a trial would find more."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import needs
import qbayes as qb
from fuzz.checks import Outcome, check_backend
from handmade.programs import Maker
from handmade.random_programs import Case
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.integer import ops
from qbayes.integer.arithmetic.exact_matmul import dirty_memory
from qbayes.integer.backends.base import choose
from qbayes.integer.backends.onednn import trial
from qbayes.integer.backends.onednn.primitives import Shape
from qbayes.integer.backends.onednn.trial import why_missing, why_wrong
from qbayes.integer.ops import Weights
from qbayes.integer.program import Program
from qbayes.integer.proof.verify import verify

pytestmark = needs.unless(why_missing() is None, needs.INT8)

# (row, channels out, kernel, stride, padding, dilation, groups)
Layer = tuple[tuple[int, ...], int, Sequence[int], Sequence[int], Sequence[int], Sequence[int], int]
EMPTY: dict[str, Layer] = {
    "padding as wide as the kernel": ((1, 28, 28), 1, (2, 2), (2, 2), (2, 2), (1, 1), 1),
    "depthwise": ((8, 9, 9), 8, (3, 3), (1, 1), (3, 3), (1, 1), 8),
    "one axis only": ((4, 12, 7), 8, (1, 3), (1, 1), (2, 1), (1, 1), 4),
    "taps on both sides of a short axis": ((5, 1, 9), 5, (2, 2), (1, 1), (1, 0), (2, 1), 1),
    "it ends the process": ((2, 9, 1), 2, (1, 1), (2, 2), (1, 1), (2, 2), 2),
    "a sequence": ((1, 20), 3, (2,), (2,), (2,), (1,), 1),
}
THIN: dict[str, Layer] = {
    "a width of one behind a stride": ((8, 5, 2), 8, (3, 3), (2, 2), (1, 1), (1, 1), 8),
    "without padding": ((8, 2, 2), 160, (1, 2), (1, 2), (0, 0), (1, 1), 8),
    "a single channel": ((1, 13, 4), 20, (7, 3), (1, 3), (1, 0), (1, 1), 1),
}


def program_of(layer: Layer, **weights: object) -> tuple[Maker, Program]:
    row, channels, kernel, stride, padding, dilation, groups = layer
    make = Maker(row, seed=3)
    for zeros in make.zeros:
        zeros[make.input] = 128
    placing = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    out = make.conv(make.input, channels, kernel, relu=False, **placing, **weights)  # pyright: ignore[reportArgumentType]
    size = math.prod(make.values[out].shape)
    return make, make.program(make.linear(make.moved(ops.Reshape, out, shape=(size,)), 3, relu=False))


def outcome(layer: Layer, **weights: object) -> Outcome:
    make, program = program_of(layer, **weights)
    return check_backend(Case(0, program, make.inputs(5), 1), "onednn")


@pytest.mark.parametrize("layer", [*EMPTY.values(), *THIN.values()], ids=[*EMPTY, *THIN])
def test_these_shapes_run_in_exact_integers_and_are_right(layer: Layer) -> None:
    _, program = program_of(layer)
    first = choose("onednn", program, torch.device("cpu")).report()[0]
    assert (first.kind, first.how) == ("conv", "exact")
    assert "oneDNN" in first.why
    assert outcome(layer).wrong == ()


@pytest.mark.parametrize("name", ["padding as wide as the kernel", "a single channel"])
def test_without_the_rule_the_trial_finds_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_why_defect", lambda shape: None)
    _, program = program_of((EMPTY | THIN)[name])
    first = choose("onednn", program, torch.device("cpu")).report()[0]
    assert first.why == "oneDNN's sums are not those of exact integers"


def test_without_both_the_answers_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defects are real on this machine, and the check of random programs sees them."""
    monkeypatch.setattr("qbayes.integer.backends.onednn.conv_linear.why_wrong", lambda shape, zero: None)
    monkeypatch.setattr(
        "qbayes.integer.backends.onednn.conv_linear.weight_limit", lambda shape, top: 127
    )  # else in two parts
    assert outcome(EMPTY["padding as wide as the kernel"]).wrong
    assert outcome(THIN["a single channel"]).wrong


def has_empty_window(n: int, k: int, s: int, p: int, d: int) -> bool:
    """By the definition: every tap of every window."""
    count = (n + 2 * p - d * (k - 1) - 1) // s + 1
    return any(all(not 0 <= w * s - p + t * d < n for t in range(k)) for w in range(count))


@settings(max_examples=600, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 7), st.integers(1, 4))
def test_windows_in_the_padding_are_found_without_walking_all(n: int, k: int, s: int, p: int, d: int) -> None:
    if n + 2 * p < d * (k - 1) + 1:
        return
    shape = Shape(4, 4, (3, k), (9, n), (1, s), (1, p), (1, d))
    found = trial._why_defect(shape)  # pyright: ignore[reportPrivateUsage]
    assert (found is not None) == has_empty_window(n, k, s, p, d)


@pytest.mark.parametrize("byte", [0x55, 0xAA])
def test_memory_is_dirty_within_and_only_within(byte: int) -> None:
    with dirty_memory(byte):
        inside = [torch.empty(size, dtype=torch.uint8) for size in (5000, 70000)]
    assert all(float((some[64:] == byte).float().mean()) > 0.99 for some in inside)
    del inside
    with dirty_memory(0):
        assert torch.zeros(5000).sum() == 0


def test_an_ordinary_network_of_such_a_layer_answers_as_the_reference() -> None:
    """From ``fit`` to ``load``, as a user would: most answers were off, and asked again they were others."""
    task = qb.load_task("digits")
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 1, 2, stride=2, padding=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 10),
    )
    posterior = qb.fit(network, task, qb.method("pointwise"), qb.Budget(epochs=1), seed=0)
    program = qb.lower(qb.quantize(posterior, task, qb.Precision(8, 8), qb.FineTuning(epochs=0)))
    x, _ = next(task.batches("test", 200))
    reference = qb.load(program, backend="reference").predict(x, draws=1).mean
    for byte in (0, 0x55, 0xAA):
        with dirty_memory(byte):
            assert torch.equal(qb.load(program, backend="onednn").predict(x, draws=1).mean, reference)


def test_sums_of_raw_codes_beyond_int32_are_left_to_exact_integers() -> None:
    """The proof speaks of centred codes; oneDNN sums raw ones, which reach twice as far."""
    make = Maker((70_000,), seed=1)
    make.zeros[0][make.input] = 128
    make.linear(make.input, 2, relu=False, extreme=True)
    make.constants[0]["linear0"]["weight"].fill_(127)
    program = make.program("v0")
    proof = verify(program)
    assert proof.ops[0].accumulator < 1 << 31 < 70_000 * 127 * 255
    x = torch.full((2, 70_000), 1e6)
    x[1] = -1e6
    for rows in (x, x.repeat(40, 1)):
        truth, made = (
            qb.load(program, backend=name).predict(rows, draws=1).mean for name in ("reference", "onednn")
        )
        assert torch.equal(truth, made)


def test_average_pools_sum_what_the_kernel_can_hold() -> None:
    """2^23.5 raw codes of 255 leave int32, where centred ones of Z = 128 do not."""
    side = 3450
    make = Maker((1, side, side), seed=1)
    make.zeros[0][make.input] = 128
    pooled = make.avg_pool(make.input, adaptive=1)
    program = make.program(make.linear(make.moved(ops.Reshape, pooled, shape=(1,)), 2, relu=False))
    verify(program)
    codes = torch.full((1, 1, side, side), 255, dtype=torch.uint8)
    op, member = program.ops[0], program.members[0]
    assert side**2 * 255 > 1 << 31 > side**2 * 128
    kernels = {
        name: choose(name, program, torch.device("cpu")).kernels[0][op.name]
        for name in ("reference", "onednn")
    }
    noise = ops.Noise(0, torch.zeros(1, dtype=torch.int64), 0, 1)
    truth, made = (kernel([codes], noise, ()) for kernel in kernels.values())
    assert torch.equal(truth, made)
    held = member.constants[op.name]
    grids = program.grids(op, member)
    exact = round(side**2 * 127 * int(held["multiplier"]) / 2 ** int(held["shift"])) + grids.zero
    assert int(truth) == min(exact, 255)


def test_point_weights_draw_no_noise_for_their_bias() -> None:
    with pytest.raises(qb.BadInput, match="bias_site of weights that draw no noise"):
        Weights("point", 8, bias_site=3)


def test_the_trial_is_of_the_real_size(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    product = trial.product

    def watched(shape: Shape, x: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return product(shape, x, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(trial, "product", watched)
    assert why_wrong(Shape(3, 5, (3, 3), (41, 43), (1, 1), (1, 1), (1, 1)), 9) is None
    assert set(seen) == {(1, 3, 41, 43), (2, 3, 41, 43)}
