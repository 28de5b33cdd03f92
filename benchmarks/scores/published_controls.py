"""What training does and what bits do: float, float with the same fine-tuning, and integers, side by side."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from published_images import ECE, ERROR, NLL, Score, change_cell, changed, interval_words, spread
from published_numbers import (
    METHODS,
    NONE,
    Lines,
    Missing,
    Rows,
    Studies,
    named,
    signed,
    table,
)

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.intervals import Estimate
from qbayes.lab.analysis.pairs import Pair, score
from qbayes.lab.study.spec.sections import CONTROL

BITS = ("W8A8", "W8A7", "W4A4", "W3A3", "W2A2")
INFORMATION: Score = ("mutual_information", "mutual information", 1, 4)
COLUMNS = (ERROR, NLL, ECE, INFORMATION)
# how the bits were set, by the column `training`.
WAYS = {"calibrated": "calibrated", "trained": "labels", "imitation": "distilled"}
# what the statement at the head of the page is about, with its unit.
LOST = ((ERROR, "points of error"), (NLL, "nat"), (ECE, "points of ECE"))


class Controlled:
    """A study's rows beside those of its control: the float network with the fine-tuning of a precision."""

    def __init__(self, held: Rows) -> None:
        self.held = held
        floats = {row["float"]: row for row in held.floats()}
        rows = held.done(precision=CONTROL)
        self._controls = [Pair(row, floats[row["float"]]) for row in rows if row["float"] in floats]

    def __bool__(self) -> bool:
        return bool(self._controls)

    def control(self, method: str, bits: str, training: str) -> list[Pair]:
        """The control of a precision, beside the float network as it was."""
        wanted = {"method": method, "scheme": f"as {bits}", "training": training}
        return [
            pair
            for pair in self._controls
            if all(pair.quantised.get(name) == value for name, value in wanted.items())
        ]

    def bits(self, method: str, bits: str, training: str) -> list[Pair]:
        return self.held.pairs(method=method, precision=bits, training=training)

    def bits_alone(self, method: str, bits: str, training: str) -> list[Pair]:
        """Integers beside the control: both were fine-tuned, what is left are the bits."""
        base = {pair.unit: pair.quantised for pair in self.control(method, bits, training)}
        pairs = self.bits(method, bits, training)
        return [Pair(pair.quantised, base[pair.unit]) for pair in pairs if pair.unit in base]

    def change(self, pairs: Sequence[Pair], one: Score) -> Estimate:
        return changed(self.held, pairs, one)

    def cell(self, pairs: Sequence[Pair], one: Score) -> str:
        return change_cell(self.held, pairs, one)


def controls(studies: Studies, study: str = "mnist") -> Lines:
    """Changes to float by what was done to the network; the last of each block is what the bits did."""
    found = Controlled(studies[study])
    rows: list[list[str]] = []
    for method in found.held.present("method", METHODS):
        first = named(method)
        for bits in BITS:
            block = list(_block(found, method, bits))
            if len(block) > 1:
                rows += [[first if not n else "", bits if not n else "", *one] for n, one in enumerate(block)]
                first = ""
    if not rows:
        raise Missing(f"no network of {study} was set to one precision in two ways")
    head = [
        "",
        "bits",
        "what was done",
        "seeds",
        *(label.replace(", %", ", points") for _, label, _, _ in COLUMNS),
    ]
    return [*table(head, rows), "", *_legend(found)]


def _block(found: Controlled, method: str, bits: str) -> Iterable[list[str]]:
    for training, words in WAYS.items():
        pairs = found.bits(method, bits, training)
        if pairs:
            yield _line(found, f"{bits}, {words}", pairs)
        control = found.control(method, bits, training)
        if control:
            yield _line(found, f"float, {words} alike", control)
            alone = found.bits_alone(method, bits, training)
            if alone:
                yield _line(found, f"the bits alone ({words})", alone)


def _line(found: Controlled, words: str, pairs: Sequence[Pair]) -> list[str]:
    cells = (found.cell(pairs, one) for one in COLUMNS)
    return [words, str(len({pair.quantised["seed"] for pair in pairs})), *cells]


def _legend(found: Controlled) -> Lines:
    said = (
        f"Change to float, paired, with its {interval_words(found.held)}. *Calibrated* sets the ranges and "
        "trains nothing, *labels* trains on the training labels, *distilled* on the float network's own "
        "predictions."
    )
    if found:
        return [f"{said} *The bits alone* are integers less the float network with the same fine-tuning."]
    return [
        said,
        "",
        "**These rows have no control**: no float network had the same fine-tuning. What fine-tuned integers "
        "gain over float may be the training's; only the calibrated rows show what bits do.",
    ]


def cost(studies: Studies, study: str = "mnist") -> Lines:
    """Float scores, and what fewer bits cost: the table that stands first."""
    found = Controlled(studies[study])
    held = found.held
    rows: list[list[str]] = []
    for method in held.present("method", METHODS):
        floats = held.floats(method=method)
        scores = [spread(floats, one) for one in (ERROR, NLL, ECE)]
        rows.append([named(method), "float", _kilobytes(floats), str(len(floats)), *scores, NONE])
        for bits in BITS:
            pairs = found.bits(method, bits, "trained")
            if pairs:
                line = [found.cell(pairs, one) for one in (ERROR, NLL, ECE)]
                sizes = _kilobytes([pair.quantised for pair in pairs])
                control = found.control(method, bits, "trained")
                line.append(found.cell(control, NLL) if control else NONE)
                rows.append(["", bits, sizes, str(len(pairs)), *line])
    head = ["", "bits", "kB", "seeds", "error, % or points", "NLL", "ECE, % or points", "NLL of the control"]
    legend = (
        f"Float: mean and deviation over the seeds. Bits: the change to float, paired, with its "
        f"{interval_words(found.held)}; fine-tuned on labels, scored on integers only. The control is the "
        "float network with the same fine-tuning: what it gains is the training's."
    )
    return [*table(head, rows), "", legend, "", *_most(found)]


def _most(found: Controlled) -> Lines:
    """The most that any method loses at each precision, and where the highest interval ends."""
    lines: Lines = []
    for bits in BITS:
        runs = {
            method: found.bits(method, bits, "trained") for method in found.held.present("method", METHODS)
        }
        losses = {method: pairs for method, pairs in runs.items() if pairs}
        if losses:
            parts = [_highest(found, losses, one, unit) for one, unit in LOST]
            lines.append(f"- {bits}: at most {', '.join(parts)}.")
    return lines


def _highest(found: Controlled, losses: Mapping[str, Sequence[Pair]], one: Score, unit: str) -> str:
    digits = one[3]
    changes = {method: found.change(pairs, one) for method, pairs in losses.items()}
    method = max(changes, key=lambda one: changes[one].value)
    ends = [high for made in changes.values() if (high := made.bounds()[1]) is not None]
    end = f", intervals to {signed(max(ends), digits)}" if ends else ""
    return f"{signed(changes[method].value, digits)} {unit} ({named(method)}{end})"


def _kilobytes(rows: Sequence[Row]) -> str:
    sizes = [score(row, "bytes") / 1000 for row in rows if "bytes" in row]
    return f"{sum(sizes) / len(sizes):,.0f}" if sizes else NONE


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"cost": cost, "controls": controls}
