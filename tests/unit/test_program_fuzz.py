"""Thousands of mutants of real programs: each is refused, or means the same, or is a program that runs.

Damage (bits, bytes, cuts, insertions) must be refused or leave an equal program. Edits by somebody who makes
the hashes right again may give another program; then the proof must hold: every op runs on it without an
error, all codes stay in their range, and the outputs are finite.
"""

import copy
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from qbayes.errors import BadFile
from qbayes.integer.file.file import content_hash
from qbayes.integer.file.record import write_text
from qbayes.integer.ops import AvgPool, Conv, MaxPool, type_of_codes
from qbayes.integer.program import Program

Make = Callable[..., Program]
Run = Callable[..., dict[str, Tensor]]

LARGEST_RUN = 1 << 18  # elements of one row that a mutant may have to be run here


def damaged(payload: bytes, rng: random.Random, count: int) -> Iterator[bytes]:
    """Flipped bits, foreign bytes, cuts, insertions, repetitions and swaps, half of them in the header."""
    header = 8 + int.from_bytes(payload[:8], "little")
    for _ in range(count):
        data = bytearray(payload)
        place = rng.randrange(header if rng.random() < 0.5 else len(data))
        match rng.randrange(7):
            case 0 | 1:
                data[place] ^= 1 << rng.randrange(8)
            case 2:
                data[place] = rng.randrange(256)
            case 3:
                del data[place:]
            case 4:
                data[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 5:
                del data[place : place + rng.randrange(1, 9)]
            case _:
                other = rng.randrange(len(data))
                data[place : place + 4], data[other : other + 4] = (
                    data[other : other + 4],
                    data[place : place + 4],
                )
        yield bytes(data)


@pytest.mark.parametrize("kind", ["every", "constant", "wide"])
def test_damage_is_refused_or_changes_nothing(kind: str, make_program: Make, tmp_path: Path) -> None:
    program = make_program(kind, members=1)
    path = program.save(tmp_path / "p")
    payload = path.read_bytes()
    ends = Counter[str]()
    for mutant in damaged(payload, random.Random(0), 2000):
        path.write_bytes(mutant)
        try:
            found = Program.open(path)
        except BadFile:
            ends["refused"] += 1
            continue
        assert found.equals(program), "a damaged file became another program"
        ends["same"] += 1
    assert ends["refused"] > 1900, ends


# what a number, text, list or object may be turned into; most of it is nonsense.
STRANGE: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        8,
        9,
        16,
        17,
        62,
        63,
        64,
        255,
        256,
        2**31 - 1,
        2**31,
        2**32,
        2**63,
        10**40,
    ),
    *(
        0.0,
        -0.0,
        0.5,
        1.0,
        1e-45,
        1e308,
        float("inf"),
        float("nan"),
        "",
        "x",
        "conv",
        "\x1b[2J",
        "\ud800",
        "n" * 500,
    ),
    *([], {}, [[]], [1], [1, 1], [0, 0], [2, 2], [3, 3], [-1, 1], {"x": 1}, [None], [1] * 20),
)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every part of a JSON value."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, part in inner:
        yield (*path, key)
        yield from places(part, (*path, key))


def edit(header: dict[str, Any], rng: random.Random) -> None:
    """One change of the JSON: a neighbouring number, something strange, a part left out, doubled or moved."""
    paths = list(places(header))
    of_ops = [path for path in paths if path[:3] == ("sections", "graph", "ops")]
    *path, key = rng.choice(of_ops if of_ops and rng.random() < 0.8 else paths)
    holder: Any = header
    for step in path:
        holder = holder[step]
    old = holder[key]
    match rng.randrange(10):
        case 0 | 1 | 2 | 3 if type(old) is int:
            holder[key] = old + rng.choice((-2, -1, 1, 2, old, -old))
        case 4 if isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(rng.choice(holder)))
        case 5 if isinstance(holder, list):
            rng.shuffle(holder)
        case 6:
            del holder[key]
        case 7 if isinstance(holder, list):
            holder[key] = copy.deepcopy(rng.choice(holder))
        case _:
            holder[key] = copy.deepcopy(rng.choice(STRANGE))


def edit_tensors(tensors: dict[str, Tensor], rng: random.Random) -> None:
    """Some bytes of the codes, or a scale, become anything."""
    if rng.random() < 0.8:
        flat = tensors["codes"].view(-1)
        for _ in range(rng.choice((1, 1, 2, 8))):
            flat[rng.randrange(len(flat))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    else:
        flat = tensors["scales"].view(-1)
        flat[rng.randrange(len(flat))] = rng.choice((0.0, -1.0, 1e-38, 1e38, math.nan, math.inf, 0.5))


def with_hashes(header: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    text = json.dumps(header, separators=(",", ":"))
    entry = f'{{"sha256":"{content_hash(text, tensors)}","program":{text}}}'
    return save_tensors(tensors, {"qbayes": entry})


def elements(program: Program) -> int:
    """Elements of the largest value, padded where an op pads."""
    largest = max(math.prod(value.shape) for value in program.values.values())
    for op in program.ops:
        if isinstance(op, Conv | MaxPool | AvgPool):
            shape = program.values[op.inputs[0]].shape
            padded = [n + 2 * p for n, p in zip(shape[1:], op.padding, strict=True)]
            largest = max(largest, shape[0] * math.prod(padded))
    return largest


def check_runs(program: Program, run: Run) -> None:
    """Random codes, and those at both ends of their range, through every op."""
    top = (1 << program.values[program.input].bits) - 1
    shape = program.values[program.input].shape
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, top + 1, (3, *shape), dtype=np.uint8))
    codes[1], codes[2] = 0, top
    for name, found in run(program, 0, codes).items():
        value = program.values[name]
        assert found.dtype == type_of_codes(value.bits)
        assert tuple(found.shape) == (6, *value.shape), name
        assert int(found.max()) < 1 << value.bits, name
    for head in program.outputs.values():
        scale, zero = torch.tensor(program.members[0].scales[head]), program.members[0].zeros[head]
        for code in (0, (1 << program.values[head].bits) - 1):
            assert bool(torch.isfinite(scale * (code - zero))), head


def outcome(path: Path, program: Program, run: Run) -> str:
    try:
        found = Program.open(path)
    except BadFile:
        return "refused"
    if found.equals(program):
        return "same"
    if elements(found) > LARGEST_RUN:
        return "large"
    check_runs(found, run)
    return "runs"


@pytest.mark.parametrize(
    ("kind", "count"), [("every", 500), ("heads", 500), ("constant", 300), ("wide", 500)]
)
def test_edits_with_right_hashes(
    kind: str, count: int, make_program: Make, run_ops: Run, tmp_path: Path
) -> None:
    program = make_program(kind, members=1)
    path = program.save(tmp_path / "p")
    tensors = load_tensors(path.read_bytes())
    text, rng, ends = write_text(program), random.Random(1), Counter[str]()
    for number in range(count):
        header, mutated = json.loads(text), {name: tensor.clone() for name, tensor in tensors.items()}
        if number % 2:
            edit_tensors(mutated, rng)
        else:
            for _ in range(rng.choice((1, 1, 1, 2))):
                edit(header, rng)
        path.write_bytes(with_hashes(header, mutated))
        ends[outcome(path, program, run_ops)] += 1
    # the test means something only if both happen often.
    assert ends["refused"] > count // 4, ends
    assert ends["runs"] > count // 10, ends
    assert ends["large"] <= count // 50, ends
