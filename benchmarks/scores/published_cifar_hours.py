"""What the studies of CIFAR-10 took: hours by study, stage and method, from their stores into a CSV.

    python benchmarks/scores/published_cifar_hours.py STORE … [--csv docs/results/cifar10-hours.csv]

A stage's hours are those that its process took of the processor. A stage without such a record (a store of an
older version) has the seconds on the clock, times its threads: an upper bound. Rows of studies that are not
named stay as they are.
"""

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from published_cifar_rows import NETWORKS, Held
from published_numbers import NONE, Lines, Missing, Studies, named, number, table

from qbayes.errors import QbayesError
from qbayes.lab.analysis.frame import STAGES, Frame
from qbayes.posterior.storage.save import write_atomically

NAME = "cifar10-hours.csv"
COLUMNS: tuple[str, ...] = ("study", "stage", "method", "done", "hours")
# hours of a core that a study may take.
MOST = {"cifar10-tiny": 20.0, "cifar10": 40.0}
WORDS = {
    "float": "float training",
    "quantised": "calibration and fine-tuning",
    "program": "lowering",
    "scores": "evaluation",
}
Row = Mapping[str, str]


def rows_of(store: Path) -> list[Row]:
    """The hours of a store's finished stages, by stage and method."""
    frame = Frame.read(store)
    rows: list[Row] = []
    for stage in STAGES:
        seconds: dict[str, list[float]] = defaultdict(list)
        for done in frame.stages(stage).values():
            if "seconds" in done and done.get("method"):
                on_the_clock = float(done["seconds"]) * int(done.get("threads", 1))
                seconds[str(done["method"])].append(float(done.get("core_seconds", on_the_clock)))
        rows += [
            dict(
                zip(
                    COLUMNS,
                    (frame.name, stage, method, str(len(some)), f"{sum(some) / 3600:.4f}"),
                    strict=True,
                )
            )
            for method, some in sorted(seconds.items())
        ]
    return rows


def read(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def text_of(rows: Iterable[Row]) -> str:
    lines = [",".join(COLUMNS), *(",".join(row[name] for name in COLUMNS) for row in rows)]
    return "\n".join(lines) + "\n"


def hours_of(held: Held, stage: str, method: str) -> str:
    """The mean hours of one such stage, where they are known."""
    found = _of(read(held.folder / NAME), study=held.network.study, stage=stage, method=method)
    done = sum(int(row["done"]) for row in found)
    return number(_total(found) / done, 2) if done else NONE


def hours(studies: Studies) -> Lines:
    """All hours by study and stage, beside what a study may take."""
    rows = read(studies.folder / NAME)
    if not rows:
        raise Missing(f"no {NAME}")
    lines: list[Sequence[str]] = []
    for network in NETWORKS:
        of_study = _of(rows, study=network.study)
        if not of_study:
            continue
        methods = list(dict.fromkeys(row["method"] for row in of_study))
        cells = [number(_total(_of(of_study, stage=stage)), 1) for stage in WORDS]
        total = _total(of_study)
        mark = "✓" if total <= MOST[network.study] else "✗"
        by_method = "; ".join(
            f"{named(one)} {number(_total(_of(of_study, method=one)), 1)}" for one in methods
        )
        lines.append(
            [f"`{network.study}`", *cells, number(total, 1), f"≤ {MOST[network.study]:g} {mark}", by_method]
        )
    head = ["study", *WORDS.values(), "all", "aim", "by method"]
    legend = (
        "Hours of the processor, of processes with one thread each. The CSV has hours on the clock, an upper "
        "bound, for stages without that record."
    )
    return [*table(head, lines), "", legend]


def _of(rows: Iterable[Row], **columns: str) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in columns.items())]


def _total(rows: Iterable[Row]) -> float:
    return sum(float(row["hours"]) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stores", type=Path, nargs="+", help="folders that 'qbayes study run' wrote")
    parser.add_argument("--csv", type=Path, help="the table to write; without it, it is printed")
    given = parser.parse_args()
    try:
        found = [row for store in given.stores for row in rows_of(store)]
    except QbayesError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.csv is None:
        print(text_of(found), end="")
        return 0
    named_studies = {row["study"] for row in found}
    kept = [row for row in read(given.csv) if row["study"] not in named_studies]
    write_atomically(given.csv, text_of([*kept, *found]).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
