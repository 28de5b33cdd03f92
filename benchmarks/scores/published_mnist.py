"""The tables of docs/results/mnist.md."""

from collections.abc import Callable, Mapping, Sequence

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
    signed,
    table,
)

from qbayes.report.cells import has_collapsed, plain_scheme
from qbayes.report.frame import Row
from qbayes.report.pairs import Pair, score

OURS, PAPERS = "mnist", "mnist-paper"
# Error, NLL and ECE of LeNet-5 in float, as the literature reports them.
PEERS: Mapping[str, Mapping[str, float]] = {
    "deterministic": {"error": 0.009, "nll": 0.037},
    "ensemble of 10": {"error": 0.006, "nll": 0.016, "ece": 0.005},
    "variational": {"error": 0.015, "nll": 0.048, "ece": 0.010},
    "MCD": {"error": 0.006},
}
# name, label, factor, digits
Score = tuple[str, str, float, int]
ERROR: Score = ("error", "error, %", 100, 2)
NLL: Score = ("nll", "NLL", 1, 4)
ECE: Score = ("ece", "ECE, %", 100, 2)
PER_BATCH: Score = ("ece_per_batch", "ECE by batches, %", 100, 2)
PER_LARGE_BATCH: Score = ("ece_per_batch_1024", "ECE by batches of 1024, %", 100, 2)
AUROC: Score = ("confusion/auroc", "AUROC", 1, 4)
FLOAT = (ERROR, NLL, ECE, AUROC)
UNCERTAIN: tuple[Score, ...] = (
    ("entropy", "entropy", 1, 4),
    ("confusion/entropy", "entropy, FashionMNIST", 1, 3),
    ("mutual_information", "mutual information", 1, 4),
    ("confusion/mutual_information", "mutual information, FashionMNIST", 1, 3),
)
MASKS = {
    "default": "ours, mask of one bit",
    "default, mask=product": "ours, mask on the product's grid",
    "paper": "the paper's, mask on the product's grid",
    "paper, mask=exact": "the paper's, mask of one bit",
}


def float_table(studies: Studies) -> Lines:
    """Float scores, mean and deviation over the seeds, and the peers'."""
    ours = studies[OURS]
    found = {method: ours.floats(method=method) for method in ours.present("method", METHODS)}
    rows = [[named(method), *(_spread(some, one) for one in FLOAT)] for method, some in found.items()]
    rows += [[peer, *(_published(of, one) for one in FLOAT)] for peer, of in PEERS.items()]
    legend = (
        f"Mean and deviation over {len(ours.frame.values('seed'))} seeds; below, LeNet-5 in the literature. "
        "AUROC: telling MNIST from FashionMNIST by entropy."
    )
    return [*table(["", *(label for _, label, _, _ in FLOAT)], rows), "", legend]


def _spread(rows: Sequence[Row], one: Score) -> str:
    name, _, factor, digits = one
    values = [factor * score(row, name) for row in rows if name in row]
    return plus_minus(*mean_and_deviation(values), digits) if values else NONE


def _published(numbers: Mapping[str, float], one: Score) -> str:
    name, _, factor, digits = one
    # no more digits than were published.
    return number(factor * numbers[name], digits - 1) if name in numbers else NONE


def scores(studies: Studies) -> Lines:
    """Paired differences to float of what is right and of how well it is known, at equal bits."""
    return _differences(studies[OURS], FLOAT, EQUAL)


def grid(studies: Studies) -> Lines:
    """The same over activation bits and over weight bits."""
    return _differences(studies[OURS], FLOAT, (*ACTIVATIONS, *WEIGHTS))


def uncertainty(studies: Studies) -> Lines:
    """Paired differences to float of how unsure the networks are."""
    return _differences(studies[OURS], UNCERTAIN, EQUAL)


def _differences(held: Rows, columns: Sequence[Score], widths: Sequence[str]) -> Lines:
    rows = []
    for method in held.present("method", METHODS):
        for place, bits in enumerate(held.present("precision", widths)):
            pairs = held.pairs(method=method, precision=bits)
            if pairs:
                cells = [_difference(pairs, one) for one in columns]
                rows.append(["" if place else named(method), bits, *cells])
    head = ["", "bits", *(label.replace(", %", ", points") for _, label, _, _ in columns)]
    legend = (
        f"Change to float, paired, with its 95 % interval over the {len(held.frame.values('seed'))} seeds "
        "(Student's t: with three seeds 2.5 times their deviation on each side)."
    )
    return [*table(head, rows), "", legend]


def _difference(pairs: Sequence[Pair], one: Score) -> str:
    name, _, factor, digits = one
    if not all(pair.has(name) for pair in pairs):
        return NONE
    return interval(change(pairs, name, factor), digits)


def calibrated(studies: Studies) -> Lines:
    """Calibration only beside fine-tuning."""
    ours = studies[OURS]
    widths = [bits for bits in EQUAL if ours.pairs(training="calibrated", precision=bits)]
    if not widths:
        return ["No run of this table was calibrated only."]
    rows = []
    for method in ours.present("method", METHODS):
        for training in ("calibrated", "trained"):
            cells = []
            for bits in widths:
                pairs = ours.pairs(method=method, precision=bits, training=training)
                parts = [(ERROR, 2), (NLL, 3), (ECE, 2)]
                cells.append(
                    " / ".join(signed(change(pairs, one[0], one[2]).value, digits) for one, digits in parts)
                )
            rows.append([named(method) if training == "calibrated" else "", training, *cells])
    legend = "Mean change to float: error in points / NLL in nat / ECE in points."
    return [*table(["", "", *widths], rows), "", legend]


def papers(studies: Studies) -> Lines:
    """The paper's grid with its own recipe."""
    held = studies[PAPERS]
    columns = (ERROR, NLL, ECE, AUROC)
    rows = []
    for method in held.present("method", METHODS):
        for bits in ["float", *held.present("precision", (*ACTIVATIONS, *WEIGHTS))]:
            pairs = held.pairs(method=method, precision=bits)
            some = held.floats(method=method) if bits == "float" else [pair.quantised for pair in pairs]
            failed = len(held.failed(method=method, precision=bits))
            fallen = f"{sum(map(has_collapsed, pairs)) + failed} of {len(some) + failed}"
            cells = [_spread(some, one) for one in columns]
            rows.append([named(method) if bits == "float" else "", bits, *cells, fallen])
    legend = (
        "Mean and deviation over the seeds. Collapsed: error above the midpoint between float and chance, or "
        "failed in training (and then in no mean)."
    )
    return [*table(["", "bits", *(label for _, label, _, _ in columns), "collapsed"], rows), "", legend]


def batches(studies: Studies) -> Lines:
    """The ECE of the whole test set beside the means over batches: the paper has one or the other."""
    rows = []
    for study, recipe in ((OURS, "ours"), (PAPERS, "the paper's")):
        if study not in studies:
            continue
        held = studies[study]
        for bits in ["float", *held.present("precision", ("W8A8", "W8A7"))]:
            for method in held.present("method", METHODS):
                some = _rows(held, method, bits)
                cells = [_spread(some, one) for one in (ECE, PER_BATCH, PER_LARGE_BATCH)]
                rows.append([recipe, bits, named(method), *cells])
    head = ["recipe", "bits", "method", "ECE of the whole set, %", "mean over batches of 256", "of 1024"]
    if not rows:
        raise Missing("neither recipe has rows")
    return table(head, rows)


def _rows(held: Rows, method: str, bits: str) -> list[Row]:
    if bits == "float":
        return held.floats(method=method)
    return [pair.quantised for pair in held.pairs(method=method, precision=bits)]


def masks(studies: Studies) -> Lines:
    """MC dropout over activation bits, with the paper's arithmetic of the mask and with one bit."""
    schemes: dict[str, Mapping[str, list[Pair]]] = {}
    for study in ("mnist", "mnist-paper", "mnist-mask"):
        for scheme, by_bits in (_by_scheme(studies[study]) if study in studies else {}).items():
            schemes.setdefault(scheme, by_bits)
    if not schemes:
        raise Missing("no rows of mcd")
    widths = [bits for bits in ACTIVATIONS if any(bits in by_bits for by_bits in schemes.values())]
    rows = [
        [words, *(_mask_cell(schemes[scheme].get(bits, [])) for bits in widths)]
        for scheme, words in MASKS.items()
        if scheme in schemes
    ]
    legend = "Error of `mcd` in per cent, mean over the seeds (runs that collapsed)."
    return [*table(["scheme", *widths], rows), "", legend]


def _by_scheme(held: Rows) -> dict[str, dict[str, list[Pair]]]:
    found: dict[str, dict[str, list[Pair]]] = {}
    for pair in held.pairs(scheme=held.frame.values("scheme"), method="mcd"):
        of_scheme = found.setdefault(plain_scheme(str(pair.quantised["scheme"])), {})
        of_scheme.setdefault(str(pair.quantised["precision"]), []).append(pair)
    return found


def _mask_cell(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return NONE
    mean, _ = mean_and_deviation([100 * score(pair.quantised, "error") for pair in pairs])
    return f"{number(mean, 2)} ({sum(map(has_collapsed, pairs))} of {len(pairs)})"


TABLES: Mapping[str, Callable[[Studies], Lines]] = {
    "float": float_table,
    "scores": scores,
    "grid": grid,
    "uncertainty": uncertainty,
    "calibrated": calibrated,
    "paper": papers,
    "batches": batches,
    "masks": masks,
}
