"""The tables of docs/results/integers.md, from the rows beside it.

    python benchmarks/scores/integer_tables.py

Every number is a mean over three seeds of differences to float, paired: the same float posterior, the same
noise. A test holds the page to what this prints.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import mean

Row = dict[str, str]
RESULTS = Path(__file__).parents[2] / "docs" / "results"
METHODS = ("pointwise", "mcd", "bbb", "sghmc")
BITS = ("W8A8", "W8A7", "W4A4", "W3A3", "W2A2")
RULES = ("lsq", "mse", "percentile", "ema", "minmax")
SEEDS = 3
COLLAPSED = 0.8  # error of a network that always answers the same digit: about 0.9


def rows(name: str) -> list[Row]:
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def signed(values: Iterable[float], digits: int) -> str:
    """The mean with its sign, as typeset: a true minus."""
    return f"{mean(values):+.{digits}f}".replace("-", "−")


class Paired:
    """Rows of a file beside the float row that each started from."""

    def __init__(self, held: list[Row], float_name: str, key: tuple[str, ...]) -> None:
        self.held, self._key = held, key
        self._floats = {self._of(row): row for row in held if row["precision"] == float_name}

    def _of(self, row: Row) -> tuple[str, ...]:
        return tuple(row[name] for name in self._key)

    def floats(self, **wanted: str) -> list[Row]:
        return [r for r in self._floats.values() if all(r[name] == value for name, value in wanted.items())]

    def cells(self, numbers: tuple[tuple[str, float, int], ...], **wanted: str) -> str:
        chosen = [row for row in self.held if all(row[name] == value for name, value in wanted.items())]
        if len(chosen) != SEEDS:
            raise ValueError(f"{len(chosen)} rows of {wanted}, not {SEEDS}")
        cells = []
        for name, factor, digits in numbers:
            there = [(row, self._floats[self._of(row)]) for row in chosen]
            relative = name == "rmse"
            cells.append(
                signed(
                    (
                        factor * ((float(q[name]) - float(f[name])) / (float(f[name]) if relative else 1))
                        for q, f in there
                    ),
                    digits,
                )
            )
        return " | ".join(cells)


CLASSES = (("error", 100, 2), ("nll", 1, 4), ("ece", 100, 2))
IMAGES = (("error", 100, 2), ("nll", 1, 3), ("ece", 100, 2))
TABLES = (("rmse", 100, 1), ("nll", 1, 3))


def mnist() -> Iterator[str]:
    held = Paired(rows("integers_mnist.csv"), "float", ("method", "seed"))
    for method in METHODS:
        floats = held.floats(method=method)
        error, nll, ece = (mean(float(row[name]) for row in floats) for name in ("error", "nll", "ece"))
        first = f"`{method}` (float: {100 * error:.2f} %, {nll:.4f}, {100 * ece:.2f} %)"
        for bits in BITS:
            both = (held.cells(CLASSES, method=method, precision=bits, epochs=e) for e in ("0", "10"))
            yield f"| {first if bits == BITS[0] else ''} | {bits} | {' | '.join(both)} |"


def mnist_mask() -> Iterator[str]:
    held = rows("integers_mnist.csv")
    names = {"": "ours", "-mask": "the paper's product with the mask", "-paper": "the paper's whole scheme"}
    for bits in ("W8A4", "W8A3"):
        for suffix, name in names.items():
            cells = []
            for epochs in ("0", "10"):
                some = [r for r in held if r["precision"] == bits + suffix and r["epochs"] == epochs]
                errors = [float(row["error"]) for row in some]
                lost = sum(error > COLLAPSED for error in errors)
                cells.append(
                    f"{100 * mean(errors):.2f} %" + (f" ({lost} of {SEEDS} collapsed)" if lost else "")
                )
            yield f"| {bits if not suffix else ''} | {name} | {' | '.join(cells)} |"


def digits() -> Iterator[str]:
    held = Paired(rows("integers_digits.csv"), "float32", ("task", "method", "seed"))
    for task, numbers in (("digits", IMAGES), ("diabetes", TABLES)):
        yield from _sweep(held, task, numbers)


def _sweep(held: Paired, task: str, numbers: tuple[tuple[str, float, int], ...]) -> Iterator[str]:
    for method in METHODS:
        for bits in BITS:
            both = [
                held.cells(numbers, task=task, method=method, precision=bits, training=how)
                for how in ("calibration", "qat")
            ]
            yield f"| {f'`{method}`' if bits == BITS[0] else ''} | {bits} | {' | '.join(both)} |"


def ranges() -> Iterator[str]:
    """NLL lost, the mean over pointwise and mcd."""
    held = Paired(rows("integers_ranges.csv"), "float32", ("network", "method", "seed"))
    for rule in RULES:
        cells = []
        for how in ("calibration", "qat, 10 epochs"):
            for bits in ("W8A8", "W4A4", "W3A3", "W2A2"):
                each = (
                    held.cells((("nll", 1, 6),), scheme=rule, precision=bits, training=how, method=method)
                    for method in ("pointwise", "mcd")
                )
                cells.append(signed((float(cell.replace("−", "-")) for cell in each), 3))
        yield f"| `{rule}` | {' | '.join(cells)} |"


def mask() -> Iterator[str]:
    held = Paired(rows("integers_mask.csv"), "float32", ("network", "method", "seed"))
    ways = (("default", "qat"), ("product", "qat"), ("paper", "qat"), ("paper", "qat as the paper's"))
    for bits in ("W8A4", "W8A3", "W8A2"):
        cells = (
            held.cells(
                (("error", 100, 2), ("nll", 1, 3)),
                network="lenet relu", precision=bits, scheme=scheme, training=how,
            )
            for scheme, how in ways
        )  # fmt: skip
        yield f"| {bits} | {' | '.join(cells)} |"


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "mnist": mnist, "mnist mask": mnist_mask, "digits and diabetes": digits, "ranges": ranges, "mask": mask,
}  # fmt: skip


def main() -> None:
    for name, part in PARTS.items():
        print(f"{name}:", *part(), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
