"""The C kernels that were made for speed: the same integers as the definitions, at every edge."""

import pytest
import torch
from torch import Tensor

import needs
from handmade.programs import Maker
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.integer import ops
from qbayes.integer.arithmetic.fixed_point import fixed_point, shared_shift
from qbayes.integer.backends.base import choose
from qbayes.integer.backends.onednn.conv_linear import as_sampler_types, draw_codes
from qbayes.integer.backends.onednn.primitives import whole_product
from qbayes.integer.backends.onednn.small_linear import LinesKernel
from qbayes.integer.backends.onednn.trial import whole_product_is_exact
from qbayes.integer.c_library import kernels
from qbayes.integer.compare import compare_ops
from qbayes.integer.ops import Linear, Weights
from qbayes.integer.posterior import load
from qbayes.integer.program import Program

CPU = torch.device("cpu")
pytestmark = needs.unless(kernels(), needs.COMPILER)


@pytest.mark.parametrize("grids", [None, 0, 1, 2])
@pytest.mark.parametrize(
    ("inputs", "outputs", "rows"), [(13, 100, 1), (100, 100, 3), (5, 7, 400), (100, 9, 900)]
)
def test_small_matrices_are_bit_equal(grids: int | None, inputs: int, outputs: int, rows: int) -> None:
    """Few lines by plain codes, many by oneDNN: both give the reference's integers."""
    options = {"affine": True} if grids is None else {"grids": grids}
    make = Maker((inputs,), bits=8)
    program = make.program(make.linear(make.linear(make.input, outputs, **options), 3, relu=False, **options))
    kernel = choose("onednn", program, CPU).kernels[0][program.ops[0].name]
    assert isinstance(kernel, LinesKernel)
    found = compare_ops(program, "reference", "onednn", make.inputs(rows), draws=3, seed=1)
    assert all(row.largest == 0 for row in found)


def test_lines_of_several_axes_and_shared_rows_are_bit_equal() -> None:
    make = Maker((4, 11), bits=8)
    shared = make.linear(make.input, 6, grids=2)
    flat = make.moved(ops.Reshape, make.linear(make.mask(shared), 5, grids=1), shape=(20,))
    program = make.program(make.linear(flat, 3, relu=False))
    assert all(
        row.largest == 0 for row in compare_ops(program, "reference", "onednn", make.inputs(9), draws=4)
    )


@pytest.mark.parametrize("grids", [1, 2])
@pytest.mark.parametrize("whole", [True, False])
def test_sums_that_float32_does_not_hold_are_bit_equal(
    grids: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rows of a wide matrix: by the product in int32, and by plain codes where there is none."""
    if not whole:
        monkeypatch.setattr(
            "qbayes.integer.backends.onednn.small_linear.whole_product_is_exact",
            lambda inputs, outputs: False,
        )
    make = Maker((2450,), bits=8)
    program = make.program(make.linear(make.input, 60, relu=False, grids=grids))
    found = compare_ops(program, "reference", "onednn", make.inputs(64), draws=2, seed=1)
    assert all(row.largest == 0 for row in found)


@needs.unless(whole_product_is_exact(2450, 30), needs.INT8)
@pytest.mark.parametrize("x_zero", [0, 7, 255])
def test_the_whole_product_is_that_of_integers(x_zero: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (40, 2450), generator=generator, dtype=torch.uint8)
    w = torch.randint(-128, 128, (30, 2450), generator=generator, dtype=torch.int8)
    x[:5], w[:5], w[5:9] = 255, 127, -128
    wanted = (x.long() - x_zero) @ w.long().t()
    assert torch.equal(whole_product(x, x_zero, w).long(), wanted)


def test_packing_changes_no_answer() -> None:
    """Weights that are kept are packed when they are used again; answers stay the same for any batch."""
    make = Maker((64,), bits=8)
    hidden = make.linear(make.linear(make.input, 200, grids=1), 200, grids=2)
    program = make.program(make.linear(hidden, 3, relu=False, grids=1))
    x = make.inputs(120)
    want = torch.as_tensor(load(program, "reference").outputs(x, 3, 5))
    kept = load(program, "onednn", frozen_draws=3)
    for batch in (None, 7, None, 1):
        assert torch.equal(torch.as_tensor(kept.outputs(x, 3, 5, batch_size=batch)), want)


@pytest.mark.parametrize("grids", [1, 2])
@pytest.mark.parametrize("shape", [(3, 2450), (77, 25), (1, 1), (300, 7)])
def test_weights_are_drawn_as_defined(grids: int, shape: tuple[int, int]) -> None:
    """All shifts from factors that saturate to factors that vanish, both signs, exact ties and zero."""
    outputs, inputs = shape
    generator = torch.Generator().manual_seed(3)
    exponents = torch.linspace(-30.0, 12.0, outputs, dtype=torch.float64)
    factors = (1 + torch.rand(outputs, generator=generator, dtype=torch.float64)) * 2.0**exponents
    factors[::5] *= -1
    factors[1::7] = 2.0 ** exponents[1::7].round()
    factors[2::11] = 0
    m, s = fixed_point(factors)
    constants = {
        "mean": torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8),
        "sigma": torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8),
        "noise_multiplier": m,
        "noise_shift": s.to(torch.uint8),
        "bias": torch.zeros(outputs, dtype=torch.int32),
    }
    op = Linear("y", ("x",), "y", Weights("gaussian", 8, site=4, grids=grids), inputs, outputs)
    name = "weight" if grids == 1 else "noise"
    for seed, draw in ((0, 0), (5 << 32 | 9, 3)):
        got = draw_codes(op, as_sampler_types(constants), seed, draw)[name]
        assert torch.equal(got, op.weights.draw(constants, seed, draw)[name])


def test_sums_of_two_round_as_defined() -> None:
    """Every pair of codes, with multipliers that meet exact halves, and others."""
    every = torch.arange(256, dtype=torch.uint8)
    pairs = torch.cartesian_prod(every, every).t().contiguous()
    for real in ([0.5, 0.25], [0.5, -0.5], [0.37, 1.21], [-0.9, 1e-6]):
        make = Maker((256 * 256,), bits=8)
        joined = make.add(make.input, make.input)
        m, s = shared_shift(torch.tensor(real, dtype=torch.float64))
        make.constants[0]["add0"] |= {"multipliers": m, "shift": torch.tensor([s], dtype=torch.uint8)}
        program = make.program(joined)
        assert _added(program, "onednn", pairs).equal(_added(program, "reference", pairs))


def _added(program: Program, backend: str, pairs: Tensor) -> Tensor:
    kernel = choose(backend, program, CPU).kernels[0]["add0"]
    noise = ops.Noise(0, torch.zeros(1, dtype=torch.int64), 0, 1)
    return kernel([pairs[:1], pairs[1:]], noise, ())


@pytest.mark.parametrize("shape", [(3, 8, 6), (1, 5, 5), (4, 9), (7,)])
def test_bytes_become_the_codes_of_their_numbers(shape: tuple[int, ...]) -> None:
    make = Maker(shape, bits=6, members=2)
    flat = make.moved(ops.Reshape, make.input, shape=(torch.Size(shape).numel(),))
    program = make.program(make.linear(flat, 3, relu=False))
    interpreter = load(program, "onednn").interpreter
    x = torch.randint(0, 256, (5, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for member in program.members:
        assert torch.equal(interpreter.input_codes(x, member), interpreter.input_codes(x.float(), member))
