"""What waits for a GPU on the page of CIFAR-10: the recipe changed by parts, the standard width."""

import re
from collections.abc import Sequence

from published_cifar_rows import MIXED, or_not_run
from published_images import SCORES, spread
from published_numbers import (
    EQUAL,
    METHODS,
    Lines,
    Rows,
    Studies,
    change,
    interval,
    mean_and_deviation,
    named,
    plus_minus,
    table,
)

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.pairs import score

# how a scheme writes that a layer has other bits.
_OVERRIDE = re.compile(r"'([^']+)': \{'weight': (\d+), 'activation': \2\}")


def standard(studies: Studies) -> Lines:
    """The standard width: scores and bytes of one seed."""
    return or_not_run(lambda: _standard(studies["cifar10-gpu-standard"]))


def ablation(studies: Studies) -> Lines:
    """One part of the recipe changed at a time, one seed."""
    return or_not_run(lambda: _ablation(studies["cifar10-gpu-ablation"]))


def _standard(held: Rows) -> Lines:
    rows = []
    for method in held.present("method", METHODS):
        for bits in ("float", *held.present("precision", EQUAL)):
            for scheme, words in (("default", ""), (MIXED, "bits by layer")):
                some = _rows(held, method, bits, scheme)
                if some and not (bits == "float" and words):
                    cells = [spread(some, one) for one in SCORES]
                    rows.append([named(method), f"{bits} {words}".strip(), *cells, _megabytes(some)])
    return table(["", "bits", *(label for _, label, _, _ in SCORES), "MB"], rows)


def _rows(held: Rows, method: str, bits: str, scheme: str) -> list[Row]:
    if bits == "float":
        return held.floats(method=method)
    return [pair.quantised for pair in held.pairs(method=method, precision=bits, scheme=scheme)]


def _ablation(held: Rows) -> Lines:
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
        if name.startswith("axis:quantize.") and row[name] is not None
    ]
    return ", ".join(filter(None, [scheme, *tuning]))


def _said(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name}={value:g}" if isinstance(value, int | float) else f"{name}={value}"


def _megabytes(rows: Sequence[Row]) -> str:
    return plus_minus(*mean_and_deviation([score(row, "bytes") / 1e6 for row in rows]), 2)
