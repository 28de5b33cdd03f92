"""What a whole program may ask for: small files that ask for more are refused, large networks are not."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as save_tensors

from handmade.large import Outline, mobilenet_v2, resnet50, unet, vgg16
from qbayes.errors import BadFile, BadInput
from qbayes.integer.file import file
from qbayes.integer.file.member_record import member_bytes
from qbayes.integer.file.record import write_text
from qbayes.integer.ops import Add, AvgPool, MaxPool, Reshape, Upsample
from qbayes.integer.program import Program
from qbayes.integer.proof.budget import (
    MOST_BYTES,
    MOST_CONSTANTS,
    MOST_NUMBERS,
    MOST_OPERATIONS,
    MOST_WINDOWS_OF_MEMBERS,
    check_members,
    check_row,
    row_cost,
)

MOST_FILE = 1 << 20
MOST_MEMORY = 500 << 20
MOST_SECONDS = 2.0


def chain(side: int, ops: int, kind: str) -> Program:
    """One number, repeated to ``side × side``, through so many ops, and a corner of that."""
    net = Outline((1, 1, 1))
    net.ops.append(Upsample("up", ("x",), "up", (side, side)))
    net.widths["up"] = 1
    last, one = "up", ((1, 1), (1, 1), (0, 0))
    for number in range(ops):
        name = f"op{number}"
        net.ops.append(
            {
                "add": lambda name, x: Add(name, (x, x), name),
                "mean": lambda name, x: AvgPool(name, (x,), name, *one),
                "max": lambda name, x: MaxPool(name, (x,), name, *one, (1, 1)),
                "reshape": lambda name, x: Reshape(name, (x,), name, (1, side, side)),
            }[kind](name, last)
        )
        net.widths[name], last = 1, name
    return net.corner(last)


def many_classes() -> Program:
    net = Outline((1, 1, 1))
    net.ops.append(Upsample("up", ("x",), "up", (1, MOST_NUMBERS + 1)))
    net.ops.append(Reshape("flat", ("up",), "flat", (MOST_NUMBERS + 1,)))
    return net._program("flat", MOST_NUMBERS + 1)  # pyright: ignore[reportPrivateUsage]


def written(program: Program, members: int, path: Path) -> Path:
    """A file with the right hash, of a program that nobody has proven; all its constants are 0."""
    codes = torch.zeros(members, member_bytes(program), dtype=torch.uint8)
    tensors = {"codes": codes, "scales": torch.ones(members, len(program.values))}
    text = write_text(program)
    digest = file.content_hash(text, tensors)
    path.write_bytes(save_tensors(tensors, {"qbayes": f'{{"sha256":"{digest}","program":{text}}}'}))
    return path


@pytest.fixture
def bounded() -> Iterator[None]:
    """The test takes little memory and time, whatever it is given."""
    # from here on the peak is that of the test, whatever ran in this process before.
    Path("/proc/self/clear_refs").write_text("5")
    before, begun = kilobytes("VmRSS"), time.process_time()
    yield
    assert time.process_time() - begun < MOST_SECONDS
    assert (kilobytes("VmHWM") - before) << 10 < MOST_MEMORY


def kilobytes(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


# name: (program, members, what the message says)
HOSTILE: dict[str, tuple[Callable[[], Program], int, str]] = {
    "maps of 2^28 codes": (lambda: chain(1 << 14, 1, "add"), 1, "bytes of memory"),
    "twelve poolings": (lambda: chain(2047, 12, "mean"), 1, "4194304 windows in all"),
    "a largest and a mean": (lambda: chain(1500, 2, "max"), 1, "4194304 windows in all"),
    "poolings of members": (lambda: chain(2047, 1, "mean"), 5, "windows over all members"),
    "constants of members": (lambda: chain(2, 6, "add"), 8000, "constants over all members"),
    "large maps in many ops": (lambda: chain(1 << 13, 2000, "reshape"), 1, "multiplications"),
    "answers": (many_classes, 1, "numbers"),
}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_small_file_that_asks_for_more_is_refused(case: str, tmp_path: Path) -> None:
    make, members, why = HOSTILE[case]
    path = written(make(), members, tmp_path / "p.qbayes")
    assert path.stat().st_size < MOST_FILE
    with pytest.raises(BadFile, match=why) as caught:
        Program.open(path)
    assert caught.value.got
    assert caught.value.do
    assert str(path) in caught.value.got


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("kind", ["mean", "max"])
def test_a_file_with_as_many_windows_as_there_may_be_is_opened_with_little(kind: str, tmp_path: Path) -> None:
    path = written(chain(2046, 1, kind), 1, tmp_path / "p.qbayes")
    assert Program.open(path).values["op0"].shape == (1, 2046, 2046)


@pytest.mark.parametrize("make", [resnet50, vgg16, mobilenet_v2, unet], ids=lambda make: make.__name__)
def test_large_networks_keep_to_the_budgets(make: Callable[[], Program]) -> None:
    program = make()
    check_row(program)
    check_members(program, 10)


def test_a_u_net_takes_what_the_documentation_says() -> None:
    cost = row_cost(unet())
    assert math.log2(cost.peak) == pytest.approx(31.06, abs=0.01)
    assert math.log2(cost.operations) == pytest.approx(38.14, abs=0.01)


def test_the_budgets_end_where_they_say() -> None:
    """A little more is refused: a side, a member, an op."""
    # a code read and one written, and 64 bytes of lanes beside each that is written.
    side = math.isqrt(MOST_BYTES // 66)
    check_row(chain(side, 1, "add"))
    with pytest.raises(BadInput, match="bytes of memory"):
        check_row(chain(side + 1, 1, "add"))
    pooled = chain(1023, 1, "max")
    most = MOST_WINDOWS_OF_MEMBERS // 1023**2
    check_members(pooled, most)
    with pytest.raises(BadInput, match="windows over all members"):
        check_members(pooled, most + 1)
    added = chain(2, 1, "add")
    most = MOST_CONSTANTS // len(added.ops[1].constants(added.values))
    check_members(added, most)
    with pytest.raises(BadInput, match="constants over all members"):
        check_members(added, most + 1)
    nine, ten = (row_cost(chain(1 << 13, ops, "reshape")).operations for ops in (9, 10))
    assert ten - nine == 64 << 26
    most = 9 + (MOST_OPERATIONS - nine) // (ten - nine)
    check_row(chain(1 << 13, most, "reshape"))
    with pytest.raises(BadInput, match="multiplications"):
        check_row(chain(1 << 13, most + 1, "reshape"))
