"""A program in memory: what its ops read, what noise reaches, when two are equal, and how it is shown."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from qbayes.integer.ops import Grids, Linear
from qbayes.integer.program import Program

Make = Callable[..., Program]
Run = Callable[..., dict[str, Tensor]]


def test_grids_are_those_of_the_member(make_program: Make) -> None:
    program = make_program()
    by_name = {op.name: op for op in program.ops}
    for member in program.members:
        zeros = member.zeros
        expected = Grids((zeros["mul"], zeros["sum"]), zeros["cat"], (7, 7), 7)
        assert program.grids(by_name["cat"], member) == expected
        assert program.grids(by_name["tanh"], member).out_bits == 6


def test_noise_free_values_are_equal_over_draws_and_noisy_ones_are_not(
    make_program: Make, run_ops: Run
) -> None:
    """The claim that an op may run once for all draws, checked by running it once a draw."""
    program = make_program()
    noisy = program.noisy_values()
    assert noisy == set(program.value_order()) - {"x", "conv"}
    codes = torch.randint(0, 256, (6, 2, 8, 8), dtype=torch.uint8)
    found = run_ops(program, 0, codes, draws=8)
    for name, values in found.items():
        draws = values.unflatten(0, (8, 6))
        assert bool((draws == draws[:1]).all()) == (name not in noisy), name


def test_value_order_is_the_order_of_running(make_program: Make) -> None:
    program = make_program("heads")
    assert program.value_order() == ("x", "first", "head0", "head1")
    assert set(program.value_order()) == set(program.values)


def test_scales_are_the_numbers_of_a_file(make_program: Make) -> None:
    member = make_program("heads").members[0]
    odd = replace(member, scales={**member.scales, "x": 0.1}, deviations={})
    assert odd.scales["x"] == float(torch.tensor(0.1)) != 0.1
    assert replace(member, scales={"x": 1e300}).scales["x"] == float("inf")


def test_equal_programs(make_program: Make) -> None:
    program = make_program()
    assert program.equals(make_program())
    assert not program.equals(make_program(seed=1))
    assert not program.equals(make_program(members=1))
    wide = [
        replace(m, constants={op: {n: t.long() for n, t in held.items()} for op, held in m.constants.items()})
        for m in program.members
    ]
    assert program.equals(replace(program, members=wide)), "the type of a tensor is not its meaning"


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p, provenance={}),
        lambda p: replace(p, precision={**p.precision, "weight": 5}),
        lambda p: replace(p, signature=replace(p.signature, labels=("c", "b", "a"))),
        lambda p: replace(p, ops=(*p.ops[:1], replace(p.ops[1], rate=0.26), *p.ops[2:])),
        lambda p: replace(
            p, members=[replace(p.members[0], zeros={**p.members[0].zeros, "sum": 1}), p.members[1]]
        ),
        lambda p: replace(p, members=[p.members[0], replace(p.members[1], deviations={})]),
        lambda p: replace(p, members=p.members[::-1]),
    ],
)
def test_any_difference_shows(change: Callable[[Program], Program], make_program: Make) -> None:
    program = make_program()
    assert not program.equals(change(program))


def test_tuples_and_lists_are_one_in_json(make_program: Make) -> None:
    one, two = (replace(make_program(), provenance={"rates": rates}) for rates in ((1, 2), [1, 2]))
    assert one.equals(two)
    assert not one.equals(replace(two, provenance={"rates": [1, 2.0]}))


def test_one_code_is_a_difference(make_program: Make) -> None:
    program, other = make_program(), make_program()
    other.members[1].constants["hidden"]["sigma"][3, 7] ^= 1
    assert not program.equals(other)


def test_constant_heads_of_members(make_program: Make) -> None:
    shared = make_program("constant", members=2)
    assert shared.constant_head("log_variance", 1) == [-1.5, 0.25]
    own = replace(shared, constant_heads={"log_variance": [1.0, 2.0, 3.0, 4.0]})
    assert [own.constant_head("log_variance", member) for member in (0, 1)] == [[1.0, 2.0], [3.0, 4.0]]


def test_print_says_what_there_is(make_program: Make) -> None:
    program = make_program()
    text = str(program)
    lines = text.splitlines()
    assert lines[0] == "program of 'test': 2×8×8 at 8 bits → logits; 2 members"
    assert [line.split()[0] for line in lines[2:-1]] == [op.name for op in program.ops]
    cells = next(line.split() for line in lines if line.startswith("noisy"))
    # 4 × 4 × 4 outputs · 3 × 3 kernel · 2 channels of a group · 2 sums; times 3 bits of weight and 7 of input
    assert cells[:7] == ["noisy", "conv", "4×4×4", "7", "3+5", "144", "2,304"]
    assert cells[7:9] == ["48,384", "draw"]
    assert next(line.split() for line in lines if line.startswith("conv"))[8] == "once"
    assert "1,197 weights a member" in lines[-1]
    assert all(
        isinstance(op, Linear) == (" linear " in line)
        for op, line in zip(program.ops, lines[2:], strict=False)
    )
