"""The tables of docs/results/cifar10.md that no other page has: the poster, bits by layer, parts, width."""

import re
from collections.abc import Callable, Mapping, Sequence

from published_images import (
    ECE,
    ERROR,
    NLL,
    PER_BATCH,
    PER_LARGE_BATCH,
    SCORES,
    ImagePage,
    Score,
    spread,
)
from published_numbers import (
    ACTIVATIONS,
    EQUAL,
    METHODS,
    NONE,
    WEIGHTS,
    Lines,
    Missing,
    Rows,
    Studies,
    change,
    interval,
    mean_and_deviation,
    named,
    number,
    plus_minus,
    table,
)

from qbayes.report.bootstrap import Estimate, estimate
from qbayes.report.frame import Row
from qbayes.report.pairs import Pair, score

CIFAR10 = ImagePage(
    "cifar10",
    "CIFAR-10",
    "SVHN",
    "ResNet-18 of standard width",
    {
        "deterministic": {"error": 0.048, "nll": 0.193, "ece": 0.029, "confusion/auroc": 0.93},
        "MCD": {"error": 0.056, "nll": 0.171, "ece": 0.006, "confusion/auroc": 0.93},
        "cyclical SGHMC": {"error": 0.043},
    },
    papers="cifar10-gpu-paper",
)
# Per cent, read off the authors' poster: the mean of three seeds. Its ECE is a mean over batches, of 1024
# images for the quantised pointwise and sghmc networks and of 256 for all else.
_GRID = ("float", *ACTIVATIONS, *WEIGHTS[1:])
POSTER: Mapping[str, Mapping[str, tuple[float | None, ...]]] = {
    "error": {
        "pointwise": (8.13, 8.10, 8.55, 10.31, 17.73, 74.5, 8.25, 8.45, 9.27, 13.54),
        "mcd": (7.22, 7.38, 7.90, 9.63, 90.0, 90.0, 7.45, 7.63, 8.04, 11.61),
        "bbb": (8.27, 8.23, 8.61, 10.31, 15.87, 49.7, 8.23, 8.57, 10.25, 28.03),
        "sghmc": (7.70, 7.82, 7.89, 8.86, 13.90, 51.7, 7.83, 7.82, 8.29, 15.52),
    },
    "ece": {
        "pointwise": (6.88, 6.53, 7.05, 8.53, 14.85, 24.05, None, 6.92, 7.62, 10.83),
        "mcd": (3.67, 3.77, 4.68, 8.96, 21.58, 1.79, None, 3.94, 4.63, 9.23),
        "bbb": (3.10, 3.32, 3.39, 4.25, 7.43, 13.07, None, 3.43, 3.94, 6.12),
        "sghmc": (3.02, 1.79, 1.61, 2.39, 8.76, 16.34, None, 1.57, 2.45, 12.99),
    },
}
MIXED = "default, mixed=bytes"
# how a scheme writes that a layer has other bits.
_OVERRIDE = re.compile(r"'([^']+)': \{'weight': (\d+), 'activation': \2\}")


def poster(studies: Studies) -> Lines:
    """The paper's grid, ours above the poster's, cell by cell."""
    held = studies[CIFAR10.papers]
    parts: Lines = []
    for title, metric in (("error, %", "error"), ("ECE by batches, %", "ece")):
        rows = []
        for method in held.present("method", METHODS):
            ours = [_rows(held, method, bits) for bits in _GRID]
            measured = [
                spread(some, _measure(metric, method, bits)) if some else NONE
                for bits, some in zip(_GRID, ours, strict=True)
            ]
            theirs = [NONE if cell is None else number(cell, 2) for cell in POSTER[metric][method]]
            rows += [[named(method), "here", *measured], ["", "poster", *theirs]]
        parts += [*table([title, "", *_GRID], rows), ""]
    legend = (
        "Mean and deviation over the seeds, and the poster's mean of three. Both ECEs are means over "
        "batches, of 1024 images for the quantised `pointwise` and `sghmc` and of 256 for all else, as the "
        "authors had it."
    )
    return [*parts, legend]


def _measure(metric: str, method: str, bits: str) -> Score:
    if metric == "error":
        return ERROR
    return PER_LARGE_BATCH if method in ("pointwise", "sghmc") and bits != "float" else PER_BATCH


def _rows(held: Rows, method: str, bits: str, scheme: object = ("default", "paper")) -> list[Row]:
    if bits == "float":
        return held.floats(method=method)
    return [pair.quantised for pair in held.pairs(method=method, precision=bits, scheme=scheme)]


def mixed(studies: Studies) -> Lines:
    """Bits by layer less equal bits of the same bytes, paired."""
    held = studies[CIFAR10.ours]
    rows = []
    for method in held.present("method", METHODS):
        for bits in held.present("precision", EQUAL):
            uniform = held.pairs(method=method, precision=bits)
            chosen = held.pairs(method=method, precision=bits, scheme=MIXED)
            if not chosen:
                continue
            cells = [_mean(chosen, ERROR), _mean(uniform, ERROR)]
            cells += [interval(_apart(chosen, uniform, one), one[3]) for one in (ERROR, NLL, ECE)]
            sizes = [_mean(some, ("bytes", "", 1e-3, 1)) for some in (chosen, uniform)]
            rows.append([named(method), bits, " / ".join(sizes), " / ".join(cells[:2]), *cells[2:]])
    if not rows:
        raise Missing("no run has bits by layer")
    legend = (
        "Two numbers are those of bits by layer and of equal bits. Differences are of bits by layer less "
        "equal bits, paired, with the 95 % interval over the seeds: below 0, bits by layer are better."
    )
    head = ["", "size of", "kB", "error, %", "error, points", "NLL", "ECE, points"]
    return [*table(head, rows), "", legend]


def _apart(one: Sequence[Pair], other: Sequence[Pair], of: Score) -> Estimate:
    name, _, factor, _ = of
    base = {pair.unit: score(pair.quantised, name) for pair in other}
    units = {pair.unit: factor * (score(pair.quantised, name) - base[pair.unit]) for pair in one}
    return estimate(units)


def _mean(pairs: Sequence[Pair], of: Score) -> str:
    name, _, factor, digits = of
    return number(mean_and_deviation([factor * score(pair.quantised, name) for pair in pairs])[0], digits)


def standard(studies: Studies) -> Lines:
    """The standard width: scores and bytes of one seed."""
    held = studies["cifar10-gpu-standard"]
    rows = []
    for method in held.present("method", METHODS):
        for bits in ("float", *held.present("precision", EQUAL)):
            for scheme, words in (("default", ""), (MIXED, "bits by layer")):
                some = _rows(held, method, bits, scheme)
                if some and not (bits == "float" and words):
                    cells = [spread(some, one) for one in SCORES]
                    rows.append([named(method), f"{bits} {words}".strip(), *cells, _megabytes(some)])
    return table(["", "bits", *(label for _, label, _, _ in SCORES), "MB"], rows)


def ablation(studies: Studies) -> Lines:
    """One part of the recipe changed at a time, one seed."""
    held = studies["cifar10-gpu-ablation"]
    everything = {"scheme": held.frame.values("scheme"), "training": ("trained", "calibrated")}
    rows = []
    for method in held.present("method", METHODS):
        pairs = held.pairs(method=method, **everything)
        for pair in sorted(pairs, key=lambda pair: (pair.quantised["weight"], _changed(pair.quantised))):
            row = pair.quantised
            cells = [interval(change([pair], name, factor), digits) for name, _, factor, digits in SCORES]
            rows.append([named(method), str(row["precision"]), _changed(row) or "nothing", *cells])
    head = ["", "bits", "changed", *(label.replace(", %", ", points") for _, label, _, _ in SCORES)]
    return [*table(head, rows), "", "Change to float of one network."]


def _changed(row: Row) -> str:
    """What differs from the recipe: of the precision's scheme and of the fine-tuning."""
    scheme = _OVERRIDE.sub(r"\2 bits in \1", str(row["scheme"]).partition(", ")[2])
    scheme = scheme.removeprefix("overrides={").removesuffix("}")
    tuning = [
        _said(name.partition(".")[2], row[name])
        for name in sorted(row)
        if name.startswith("axis:quantise.") and row[name] is not None
    ]
    return ", ".join(filter(None, [scheme, *tuning]))


def _said(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name}={value:g}" if isinstance(value, int | float) else f"{name}={value}"


def _megabytes(rows: Sequence[Row]) -> str:
    return plus_minus(*mean_and_deviation([score(row, "bytes") / 1e6 for row in rows]), 2)


TABLES: Mapping[str, Callable[[Studies], Lines]] = {
    **CIFAR10.tables,
    "poster": poster,
    "mixed": mixed,
    "ablation": ablation,
    "standard": standard,
}
