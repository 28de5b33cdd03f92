"""``python -m golden``: record what the library answers, or compare it with what it answered before.

    make golden                                         # compare all
    python -m golden --compare --part zoo/vgg           # the parts whose names begin so
    python -m golden --record --processes 2             # before a change that must change no bit

The exit code is 1 if any answer is another. On a processor other than the recorded one it says how to record
there, and compares what must agree on all.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from golden.cases import PARTS, answers
from golden.hashes import Entry
from golden.kept import FILE, differences, elsewhere, read, write


def main() -> int:
    options = _parser().parse_args()
    parts = [part for part in PARTS if part.startswith(options.part)]
    begun = time.monotonic()
    if options.record:
        write(dict(_answered(parts, options.processes)), options.to)
        print(f"recorded {len(parts)} parts in {time.monotonic() - begun:.0f} s")
        return 0
    kept = read()
    told = elsewhere(kept)
    if told:
        print(told)
    count = 0
    for part, found in _answered(parts, options.processes):
        near = bool(told) and not part.startswith("exact/")
        lines = differences(part, found, kept["cases"].get(part, {}), near=near)
        count += len(lines)
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    print(f"compared {len(parts)} parts in {time.monotonic() - begun:.0f} s: {count} answers differ")
    return int(bool(count or told or not parts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m golden")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", action="store_true", help="write what the library answers now")
    what.add_argument("--compare", action="store_true", help="say what it answers otherwise")
    parser.add_argument("--part", default="", help="how the names of the parts begin")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--to", type=Path, default=FILE, help="the file to record into")
    return parser


def _answered(parts: Sequence[str], processes: int) -> Iterator[tuple[str, dict[str, Entry]]]:
    """Parts in their order, by so many processes. Each is started anew: a fork would take locks along."""
    if processes <= 1:
        yield from ((part, answers(part)) for part in parts)
        return
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh) as pool:
        yield from zip(parts, pool.map(answers, parts), strict=True)


if __name__ == "__main__":
    sys.exit(main())
