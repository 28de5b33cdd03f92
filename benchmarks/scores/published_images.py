"""The tables of a page on an image study, by our recipe and by the paper's: mnist.md and cifar10.md."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
    interval,
    mean_and_deviation,
    named,
    number,
    plus_minus,
    table,
)

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.intervals import Estimate
from qbayes.lab.analysis.pairs import Pair, difference, score
from qbayes.lab.analysis.run_groups import has_collapsed
from qbayes.metrics.row_errors import ROW_ERROR

# name, label, factor, digits
Score = tuple[str, str, float, int]
ERROR: Score = ("error", "error, %", 100, 2)
NLL: Score = ("nll", "NLL", 1, 4)
ECE: Score = ("ece", "ECE, %", 100, 2)
PER_BATCH: Score = ("ece_per_batch", "ECE by batches, %", 100, 2)
PER_LARGE_BATCH: Score = ("ece_per_batch_1024", "ECE by batches of 1024, %", 100, 2)
AUROC: Score = ("confusion/auroc", "AUROC", 1, 4)
SCORES = (ERROR, NLL, ECE, AUROC)


@dataclass(frozen=True)
class ImagePage:
    """The study ``ours`` and its ``-paper``; ``peers`` are float scores of ``network`` in the literature."""

    ours: str
    data: str
    confusion: str
    network: str
    peers: Mapping[str, Mapping[str, float]]
    # the study of the paper's grid.
    papers: str

    @property
    def tables(self) -> Mapping[str, Callable[[Studies], Lines]]:
        return {
            "float": self.float_table,
            "grid": self.grid,
            "uncertainty": self.uncertainty,
            "paper": self.paper,
            "batches": self.batches,
        }

    def float_table(self, studies: Studies) -> Lines:
        """Float scores, mean and deviation over the seeds, and the peers'."""
        ours = studies[self.ours]
        found = {method: ours.floats(method=method) for method in ours.present("method", METHODS)}
        rows = [[named(method), *(spread(some, one) for one in SCORES)] for method, some in found.items()]
        rows += [[peer, *(_published(of, one) for one in SCORES)] for peer, of in self.peers.items()]
        seeds = len(ours.frame.values("seed"))
        legend = (
            f"Mean and deviation over {seeds} seeds; below, {self.network} in the literature. "
            f"AUROC: telling {self.data} from {self.confusion} by entropy."
        )
        return [*table(["", *(label for _, label, _, _ in SCORES)], rows), "", legend]

    def grid(self, studies: Studies) -> Lines:
        """The same over activation bits and over weight bits."""
        return differences_table(studies[self.ours], SCORES, (*ACTIVATIONS, *WEIGHTS))

    def uncertainty(self, studies: Studies) -> Lines:
        """Paired differences to float of how unsure the networks are."""
        columns: tuple[Score, ...] = (
            ("entropy", "entropy", 1, 4),
            ("confusion/entropy", f"entropy, {self.confusion}", 1, 3),
            ("mutual_information", "mutual information", 1, 4),
            ("confusion/mutual_information", f"mutual information, {self.confusion}", 1, 3),
        )
        return differences_table(studies[self.ours], columns, EQUAL)

    def paper(self, studies: Studies) -> Lines:
        """The paper's grid with its own recipe."""
        held = studies[self.papers]
        rows = []
        for method in held.present("method", METHODS):
            for bits in ["float", *held.present("precision", (*ACTIVATIONS, *WEIGHTS))]:
                pairs = held.pairs(method=method, precision=bits)
                some = held.floats(method=method) if bits == "float" else [pair.quantised for pair in pairs]
                failed = len(held.failed(method=method, precision=bits))
                fallen = f"{sum(map(has_collapsed, pairs)) + failed} of {len(some) + failed}"
                cells = [spread(some, one) for one in SCORES]
                rows.append([named(method) if bits == "float" else "", bits, *cells, fallen])
        legend = (
            "Mean and deviation over the seeds. Collapsed: error above the midpoint of float and chance, "
            "or failed in training (and then in no mean)."
        )
        return [*table(["", "bits", *(label for _, label, _, _ in SCORES), "collapsed"], rows), "", legend]

    def batches(self, studies: Studies) -> Lines:
        """The ECE of the whole test set beside the means over batches: the paper has one or the other."""
        rows = []
        for study, recipe in ((self.ours, "ours"), (self.papers, "the paper's")):
            if study not in studies:
                continue
            held = studies[study]
            for bits in ["float", *held.present("precision", ("W8A8", "W8A7"))]:
                for method in held.present("method", METHODS):
                    some = _rows(held, method, bits)
                    cells = [spread(some, one) for one in (ECE, PER_BATCH, PER_LARGE_BATCH)]
                    rows.append([recipe, bits, named(method), *cells])
        head = ["recipe", "bits", "method", "ECE of the whole set, %", "mean over batches of 256", "of 1024"]
        if not rows:
            raise Missing("neither recipe has rows")
        return table(head, rows)


def differences_table(held: Rows, columns: Sequence[Score], widths: Sequence[str]) -> Lines:
    """Changes to float by method and width, with their intervals."""
    rows = []
    for method in held.present("method", METHODS):
        for place, bits in enumerate(held.present("precision", widths)):
            pairs = held.pairs(method=method, precision=bits)
            if pairs:
                cells = [_difference(held, pairs, one) for one in columns]
                rows.append(["" if place else named(method), bits, *cells])
    head = ["", "bits", *(label.replace(", %", ", points") for _, label, _, _ in columns)]
    return [*table(head, rows), "", f"Change to float, paired, with its {interval_words(held)}."]


def interval_words(held: Rows) -> str:
    """What the intervals of a study hold: rows of before their errors were recorded know the seeds alone."""
    if any(name.startswith(ROW_ERROR) for row in held.frame.rows for name in row):
        return "95 % interval over seeds (Student's t) and test rows"
    return (
        "95 % interval over the seeds (Student's t; these rows record no errors over test rows: that of the "
        "error is bounded by a binomial, all others hold the seeds alone)"
    )


def changed(held: Rows, pairs: Sequence[Pair], one: Score) -> Estimate:
    """The mean change with the spread over seeds and, where rows record it, over test rows."""
    name, _, factor, _ = one
    return difference(held.frame, pairs, name).scaled(factor)


def change_cell(held: Rows, pairs: Sequence[Pair], one: Score) -> str:
    """The change and its interval; one that seeds alone leave without a width is no certainty."""
    if one[0].endswith("mutual_information") and all(one_of(pair) for pair in pairs):
        return NONE
    made = interval(changed(held, pairs, one), one[3])
    low, _, high = made.partition(" [")[2].rstrip("]").partition(", ")
    return f"{made.partition(' ')[0]} [seeds agree]" if low and low == high else made


def one_of(pair: Pair) -> bool:
    """Whether a run has but one network: its draws do not differ."""
    return pair.quantised["method"] == "pointwise"


def spread(rows: Sequence[Row], one: Score) -> str:
    name, _, factor, digits = one
    values = [factor * score(row, name) for row in rows if name in row]
    return plus_minus(*mean_and_deviation(values), digits) if values else NONE


def _published(numbers: Mapping[str, float], one: Score) -> str:
    name, _, factor, digits = one
    # no more digits than were published.
    return number(factor * numbers[name], digits - 1) if name in numbers else NONE


def _difference(held: Rows, pairs: Sequence[Pair], one: Score) -> str:
    return change_cell(held, pairs, one) if all(pair.has(one[0]) for pair in pairs) else NONE


def _rows(held: Rows, method: str, bits: str) -> list[Row]:
    if bits == "float":
        return held.floats(method=method)
    return [pair.quantised for pair in held.pairs(method=method, precision=bits)]


# Error, NLL and ECE in float, as the literature reports them.
MNIST = ImagePage(
    "mnist",
    "MNIST",
    "FashionMNIST",
    "LeNet-5",
    {
        "deterministic": {"error": 0.009, "nll": 0.037},
        "ensemble of 10": {"error": 0.006, "nll": 0.016, "ece": 0.005},
        "variational": {"error": 0.015, "nll": 0.048, "ece": 0.010},
        "MCD": {"error": 0.006},
    },
    papers="mnist-paper",
)
