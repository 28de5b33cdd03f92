"""The exported C on Cortex-M, played by QEMU: the same bits as the reference, with the DSP instructions and
without, within the flash and the memory that the export names."""

import functools
import subprocess
from pathlib import Path

import pytest

import needs
import qbayes as qb
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.c_build import exported, run
from parity.subjects import float_posterior, quantised
from qbayes.export.c.sizes import CODE_BYTES, STACK_BYTES, size_of
from qbayes.export.targets.c import CTarget
from qbayes.integer.program import Program

BOARD = Path(__file__).resolve().parents[2] / "examples" / "small-device"
PROGRAMS = ("arm-none-eabi-gcc", "qemu-system-arm", "make")
pytestmark = [needs.unless(BOARD.is_dir(), needs.EXAMPLES), *map(needs.on_path, PROGRAMS)]
METHODS = {"mlp": ("pointwise", "mcd", "bbb", "sghmc"), "lenet_relu": ("pointwise", "mcd", "bbb")}
OFTEN = {("mlp", "mcd", 8), ("lenet_relu", "bbb", 4)}
CASES = [
    pytest.param(network, method, bits, marks=() if (network, method, bits) in OFTEN else pytest.mark.full)
    for network, methods in METHODS.items()
    for method in methods
    for bits in (8, 4)
]


@functools.cache
def program_of(network: str, method: str, bits: int) -> Program:
    precision = qb.Precision(weight=bits, activation=bits)
    return qb.lower(quantised(float_posterior(network, method), network, precision))


def on_board(network: Path, build: Path, goal: str, *settings: str) -> str:
    """Both outputs of a goal of the example's Makefile: semihosting writes to standard error."""
    command = ["make", "-s", "-C", BOARD, goal, f"NETWORK={network}", f"BUILD={build}", *settings]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize(("network", "method", "bits"), CASES)
def test_a_board_gives_the_same_bits(network: str, method: str, bits: int, tmp_path: Path) -> None:
    folder = exported(program_of(network, method, bits), tmp_path / "c")
    assert "the same bits as the reference" in on_board(folder, tmp_path / "plain", "bits")
    assert "the same bits as the reference" in on_board(folder, tmp_path / "dsp", "bits", "DSP=1")


def test_a_board_with_a_difference_says_so(tmp_path: Path) -> None:
    """The comparison itself can fail."""
    folder = exported(program_of("mlp", "mcd", 8), tmp_path / "c")
    data = folder / "network_test_data.h"
    data.write_text(data.read_text().replace("UINT64_C(2026)", "UINT64_C(2027)"))
    with pytest.raises(AssertionError, match="bits differ"):
        on_board(folder, tmp_path / "build", "bits")


@pytest.mark.full
def test_a_cortex_m7_gives_the_same_bits(tmp_path: Path) -> None:
    folder = exported(program_of("lenet_relu", "mcd", 8), tmp_path / "c")
    told = on_board(folder, tmp_path / "build", "bits", "MACHINE=mps2-an500", "CPU=cortex-m7", "DSP=1")
    assert "the same bits" in told


def test_the_example_project_answers_and_counts_instructions(tmp_path: Path) -> None:
    precision = qb.Precision(weight=4, activation=4)
    program = qb.lower(quantised(float_posterior("lenet_relu", "mcd"), "lenet_relu", precision))
    told = on_board(exported(program, tmp_path / "c"), tmp_path / "build", "run")
    for label in (
        "answer: ",
        "probability in 1/1000: ",
        "entropy in 1/1000 nats: ",
        "instructions of a draw: ",
    ):
        assert label in told
    # a weight takes an instruction at least, and the timer is not that wrong.
    assert 500_000 < int(told.split("instructions of a draw: ")[1].split()[0]) < 50_000_000


@pytest.mark.parametrize(("network", "method", "bits"), CASES)
def test_sizes_are_what_the_export_says(network: str, method: str, bits: int, tmp_path: Path) -> None:
    program = program_of(network, method, bits)
    folder = exported(program, tmp_path / "c")
    size = size_of(CTarget().network(program))
    for optimise in ("-Os", "-O2"):
        flags = ["-mcpu=cortex-m4", "-mthumb", "-std=c99", optimise, "-fstack-usage"]
        run(["arm-none-eabi-gcc", *flags, "-c", folder / "network.c", "-o", folder / "network.o"])
        listed = run(["arm-none-eabi-size", "-B", folder / "network.o"]).splitlines()[1].split()
        text, data, bss = (int(number) for number in listed[:3])
        assert data == 0, "constants belong into flash"
        # what is counted as a word for each field of a struct may be a byte, or left out and zero.
        assert text - CODE_BYTES <= size.constants <= text
        # the arena, and the state behind it.
        assert size.arena - 16 <= bss <= size.arena + 32
        depth = [int(line.split("\t")[1]) for line in (folder / "network.su").read_text().splitlines()]
        assert sum(sorted(depth)[-6:]) <= STACK_BYTES
