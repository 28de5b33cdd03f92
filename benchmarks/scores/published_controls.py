"""What training does and what bits do: float, float with the same fine-tuning, and integers, side by side."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from published_images import ECE, ERROR, NLL, Score, spread
from published_numbers import (
    METHODS,
    NONE,
    Lines,
    Missing,
    Rows,
    Studies,
    change,
    interval,
    named,
    signed,
    table,
)

from qbayes.report.bootstrap import Unit, estimate
from qbayes.report.frame import Row
from qbayes.report.pairs import Pair, score
from qbayes.study.table import CONTROL

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
            yield _line(f"{bits}, {words}", pairs)
        control = found.control(method, bits, training)
        if control:
            yield _line(f"float, {words} alike", control)
            alone = found.bits_alone(method, bits, training)
            if alone:
                yield _line(f"the bits alone ({words})", alone)


def _line(words: str, pairs: Sequence[Pair]) -> list[str]:
    cells = (interval(change(pairs, name, factor), digits) for name, _, factor, digits in COLUMNS)
    return [words, str(len({pair.quantised["seed"] for pair in pairs})), *cells]


def _legend(found: Controlled) -> Lines:
    said = (
        "Change to float, paired, with its 95 % interval over the seeds. *Calibrated* sets the ranges and "
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
        rows.append([named(method), "float", _kilobytes(floats), str(len(floats)), *scores])
        for bits in BITS:
            pairs = found.bits(method, bits, "trained")
            if pairs:
                line = [
                    interval(change(pairs, name, factor), digits)
                    for name, _, factor, digits in (ERROR, NLL, ECE)
                ]
                sizes = _kilobytes([pair.quantised for pair in pairs])
                rows.append(["", bits, sizes, str(len(pairs)), *line])
    head = ["", "bits", "kB", "seeds", "error, % or points", "NLL", "ECE, % or points"]
    legend = (
        "Float: mean and deviation over the seeds. Bits: the change to float, paired, with its 95 % interval "
        "over the seeds (Student's t); fine-tuned on labels, scored on integers only."
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
            parts = [_highest(losses, one, unit) for one, unit in LOST]
            lines.append(f"- {bits}: at most {', '.join(parts)}.")
    return lines


def _highest(losses: Mapping[str, Sequence[Pair]], one: Score, unit: str) -> str:
    name, _, factor, digits = one
    changes = {method: change(pairs, name, factor) for method, pairs in losses.items()}
    method = max(changes, key=lambda one: changes[one].value)
    ends = [high for made in changes.values() if (high := made.bounds()[1]) is not None]
    end = f", intervals to {signed(max(ends), digits)}" if ends else ""
    return f"{signed(changes[method].value, digits)} {unit} ({named(method)}{end})"


def _kilobytes(rows: Sequence[Row]) -> str:
    sizes = [score(row, "bytes") / 1000 for row in rows if "bytes" in row]
    return f"{sum(sizes) / len(sizes):,.0f}" if sizes else NONE


def bounded(studies: Studies, study: str = "mnist") -> Lines:
    """What is left of the uncertainty: factors on float's, and the worst of each in words."""
    found = Controlled(studies[study])
    lines: dict[tuple[str, str, str], list[Pair]] = {
        (method, bits, training): found.bits(method, bits, training)
        for method in found.held.present("method", METHODS)
        for bits in BITS
        for training in WAYS
    }
    lines = {key: pairs for key, pairs in lines.items() if pairs}
    rows = []
    before = ("", "")
    for (method, bits, training), pairs in lines.items():
        shown = [named(method) if method != before[0] else "", bits if (method, bits) != before else ""]
        before = (method, bits)
        cells = [
            _times(pairs, name) for name in ("mutual_information", "confusion/mutual_information", "ece")
        ]
        auroc = interval(change(pairs, "confusion/auroc"), 4) if _scored(pairs, "confusion/auroc") else NONE
        rows.append([*shown, WAYS[training], *cells, auroc])
    head = ["", "bits", "", "mutual information", "the same, FashionMNIST", "ECE", "AUROC"]
    legend = (
        "The first three are factors on float's score, the geometric mean over the seeds with its 95 % "
        "interval; AUROC is a difference. A point network has no mutual information."
    )
    return [*table(head, rows), "", legend, "", *_worst(lines)]


def _worst(lines: Mapping[tuple[str, str, str], Sequence[Pair]]) -> Lines:
    """The statement that holds: how far it goes at each number of bits."""
    said: Lines = []
    for training, words in WAYS.items():
        for bits in BITS:
            here = {m: pairs for (m, b, t), pairs in lines.items() if (b, t) == (bits, training)}
            if here:
                said.append(f"- {bits}, {words}: {_extremes(here)}.")
    return said


def _extremes(here: Mapping[str, Sequence[Pair]]) -> str:
    parts: list[str] = []
    informed = {m: pairs for m, pairs in here.items() if _scored(pairs, "mutual_information", above=0)}
    if informed:
        factors = {m: _factor(pairs, "mutual_information") for m, pairs in informed.items()}
        low, high = min(factors, key=factors.__getitem__), max(factors, key=factors.__getitem__)
        parts.append(
            f"the mutual information of test digits is between ×{factors[low]:.2f} ({named(low)}) and "
            f"×{factors[high]:.2f} ({named(high)}) of float's"
        )
    rises = {m: _factor(pairs, "ece") for m, pairs in here.items() if _scored(pairs, "ece", above=0)}
    if rises:
        worst = max(rises, key=rises.__getitem__)
        parts.append(f"the ECE at most ×{rises[worst]:.1f} ({named(worst)})")
    return ", ".join(parts)


def _scored(pairs: Sequence[Pair], name: str, above: float = -math.inf) -> bool:
    return all(
        pair.has(name) and min(score(pair.quantised, name), score(pair.float, name)) > above for pair in pairs
    )


def _logs(pairs: Sequence[Pair], name: str) -> dict[Unit, float]:
    return {pair.unit: math.log(score(pair.quantised, name) / score(pair.float, name)) for pair in pairs}


def _factor(pairs: Sequence[Pair], name: str) -> float:
    return math.exp(estimate(_logs(pairs, name)).value)


def _times(pairs: Sequence[Pair], name: str) -> str:
    """``×0.65 [0.60, 0.70]``: the geometric mean, since a factor has no sign."""
    if not _scored(pairs, name, above=0):
        return NONE
    found = estimate(_logs(pairs, name))
    low, high = found.bounds()
    ends = "" if low is None or high is None else f" [{math.exp(low):.2f}, {math.exp(high):.2f}]"
    return f"×{math.exp(found.value):.2f}{ends}"


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"cost": cost, "controls": controls, "bounded": bounded}
