"""The limits of fidelity can fail, and hold for inputs far outside of the calibrated range."""

import pytest
import torch

import qbayes as qb
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.subjects import (
    backend_strays,
    fake_against_reference,
    float_posterior,
    quantised,
    strays,
    task_of,
)


def far(name: str) -> torch.Tensor:
    x = next(iter(task_of(name).batches("test", 24)))[0].clone()
    x[0], x[1] = 10 * x[0].abs() + 50, -10 * x[1].abs() - 50
    return x


@pytest.mark.parametrize("kind", ["multiplier", "bias", "noise_multiplier", "high"])
def test_a_program_that_strays_is_found(kind: str) -> None:
    """One constant changed by a few per cent breaks the limits at its own op, and there alone."""
    posterior = quantised(float_posterior("mlp_tanh", "bbb"), "mlp_tanh", qb.Precision())
    program = qb.lower(posterior)
    op = next(op for op in program.ops if op.is_stochastic)
    constant = program.members[0].constants[op.name][kind]
    constant.add_(constant.abs().max() // 10) if kind == "bias" else constant.sub_(constant // 16)
    rows = fake_against_reference(posterior, program, far("mlp_tanh"), 3, 5)
    assert [row.op for row in strays(rows)] == [op.name]
    assert [row.op for row in rows if row.share_equal < 1] == [op.name]


@pytest.mark.parametrize(
    ("name", "method", "bits"),
    [("mlp_tanh", "bbb", 8), ("sequence", "bbb", 3), ("unet_map", "mcd", 4), ("mlp_silu", "sghmc", 2)],
)
def test_far_inputs_clamp_alike(name: str, method: str, bits: int) -> None:
    posterior = quantised(float_posterior(name, method), name, qb.Precision(weight=bits, activation=bits))
    program = qb.lower(posterior)
    assert strays(fake_against_reference(posterior, program, far(name), 4, 5)) == []
    assert backend_strays(program, far(name), 4, 5) == []
