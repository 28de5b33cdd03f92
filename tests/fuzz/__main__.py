"""``python -m fuzz``: random programs on one target, in processes that may die.

    make fuzz PROGRAMS=50000 TARGET=onednn
    make fuzz PROGRAMS=50000 TARGET=onednn KERNELS=off     # without the library's own C kernels
    make fuzz PROGRAMS=500 TARGET=c

A process that dies names the program that it died on, and the next goes on behind it. The exit code is 1 if
any program was wrong.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from fuzz.checks import check
from handmade.random_programs import random_case
from qbayes.errors import QbayesError

# what a line of a stretch begins with: libraries print too.
ROW = "row: "
LARGEST_SHARE = (
    1e-3  # of codes that a kernel which rounds in float32 may give otherwise: the stated tolerance
)


@dataclass
class Tally:
    """What a stretch of seeds came to."""

    programs: int = 0
    rounded: int = 0
    codes: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, row: dict[str, object]) -> None:
        self.programs += 1
        self.rounded, self.codes = self.rounded + int(row["rounded"]), self.codes + int(row["codes"])  # pyright: ignore[reportArgumentType]
        self.wrong += [f"seed {row['seed']}: {one}" for one in row["wrong"]]  # pyright: ignore[reportGeneralTypeIssues]


def main() -> int:
    options = _parser().parse_args()
    if options.stretch:
        _work(options.seed, options.seed + options.programs, options.target)
        return 0
    share = -(-options.programs // options.processes)
    last = options.seed + options.programs
    starts = range(options.seed, last, share)
    began = time.monotonic()
    with ThreadPoolExecutor(options.processes) as pool:
        tallies = list(pool.map(lambda at: _stretch(at, min(at + share, last), options.target), starts))
    wrong = [one for tally in tallies for one in tally.wrong]
    rounded, codes = (sum(getattr(tally, name) for tally in tallies) for name in ("rounded", "codes"))
    for line in wrong[:100]:
        print(line)
    count = sum(tally.programs for tally in tallies)
    print(
        f"{options.target}: {count} programs from seed {options.seed}, {len(wrong)} wrong, "
        f"{rounded} of {codes} codes rounded otherwise where allowed, {time.monotonic() - began:.0f} s"
    )
    return int(bool(wrong) or rounded > LARGEST_SHARE * codes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="onednn", help="a backend, or c")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--stretch", action="store_true", help="in this process, a line of JSON a program")
    return parser


def _stretch(first: int, last: int, target: str) -> Tally:
    tally = Tally()
    while first < last:
        done = first - 1
        for row in _child(first, last, target):
            tally.add(row)
            done = int(row["seed"])  # pyright: ignore[reportArgumentType]
        if done < last - 1:
            tally.programs += 1
            tally.wrong.append(f"seed {done + 1}: the process died")
        first = done + 2 if done < last - 1 else last
    return tally


def _child(first: int, last: int, target: str) -> Iterator[dict[str, object]]:
    """A row for each program, from a process of its own, which may die.

    It is started anew: a fork would take along whatever locks other threads hold.
    """
    words = ["--stretch", "--programs", str(last - first), "--seed", str(first), "--target", target]
    with subprocess.Popen(
        [sys.executable, "-m", "fuzz", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(ROW):
                yield json.loads(line.removeprefix(ROW))


def _work(first: int, last: int, target: str) -> None:
    torch.set_num_threads(1)
    for seed in range(first, last):
        try:
            outcome = check(random_case(seed), target)
            row = {"wrong": outcome.wrong, "rounded": outcome.rounded, "codes": outcome.codes}
        except (AssertionError, QbayesError, RuntimeError, KeyError, ValueError) as error:
            row = {"wrong": [f"{type(error).__name__}: {error}"[:300]], "rounded": 0, "codes": 0}
        print(ROW + json.dumps({"seed": seed, **row}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
