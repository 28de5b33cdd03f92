"""Random valid programs on every way of running them, memory dirtied: ``make fuzz`` runs more of them."""

from collections.abc import Sequence

import pytest

from fuzz.checks import check
from handmade.random_programs import random_case, random_program
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.c_build import needs_compiler
from qbayes.integer.ops import OPS

LARGEST_SHARE = 1e-3  # the tolerance that onednn states


def stretches(programs: int, size: int) -> list[range]:
    """Some seeds a test, so that processes can share them."""
    return [range(first, first + size) for first in range(0, programs, size)]


def wrong(seeds: Sequence[int], target: str) -> list[str]:
    found, rounded, codes = [], 0, 0
    for seed in seeds:
        outcome = check(random_case(seed), target)
        found += [f"seed {seed}: {what}" for what in outcome.wrong]
        rounded, codes = rounded + outcome.rounded, codes + outcome.codes
    # few codes say little about a share of one in a thousand
    many = codes > 10 / LARGEST_SHARE and rounded > LARGEST_SHARE * codes
    return [*found, f"{rounded} of {codes} codes differ"] if many else found


def test_the_same_seed_gives_the_same_program_and_all_ops_occur() -> None:
    programs = [random_program(seed) for seed in range(60)]
    assert {op.kind for program in programs for op in program.ops} == set(OPS)
    assert {len(program.members) for program in programs} == {1, 2, 3}
    assert random_program(17).equals(programs[17])


@pytest.mark.parametrize("seeds", stretches(300, 25), ids=str)
def test_onednn_has_the_codes_of_the_reference(seeds: range) -> None:
    assert wrong(seeds, "onednn") == []


@pytest.mark.parametrize("seeds", stretches(100, 25), ids=str)
def test_onednn_without_kernels_in_c(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("onednn", "onednn.conv_linear", "onednn.float_rounding"):
        monkeypatch.setattr(f"qbayes.integer.backends.{module}.kernels", lambda: None)
    assert wrong(seeds, "onednn") == []


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_runtimes_stay_within_their_tolerance(target: str) -> None:
    assert wrong(range(10), target) == []


@needs_compiler
def test_exported_c_is_bit_equal_under_sanitizers() -> None:
    assert wrong(range(4), "c") == []
