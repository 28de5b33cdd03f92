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

# name, label, factor, digits
Score = tuple[str, str, float, int]
ERROR: Score = ("error", "error, %", 100, 2)
NLL: Score = ("nll", "NLL", 1, 4)
ECE: Score = ("ece", "ECE, %", 100, 2)
PER_BATCH: Score = ("ece_per_batch", "ECE by batches, %", 100, 2)
PER_LARGE_BATCH: Score = ("ece_per_batch_1024", "ECE by batches of 1024, %", 100, 2)
AUROC: Score = ("confusion/auroc", "AUROC", 1, 4)
SCORES = (ERROR, NLL, ECE, AUROC)
MASKS = {
    "default": "ours, mask of one bit",
    "default, mask=product": "ours, mask on the product's grid",
    "paper": "the paper's, mask on the product's grid",
    "paper, mask=exact": "the paper's, mask of one bit",
}


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
            "scores": self.scores,
            "grid": self.grid,
            "uncertainty": self.uncertainty,
            "calibrated": self.calibrated,
            "paper": self.paper,
            "batches": self.batches,
            "masks": self.masks,
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

    def scores(self, studies: Studies) -> Lines:
        """Paired differences to float of what is right and of how well it is known, at equal bits."""
        return differences_table(studies[self.ours], SCORES, EQUAL)

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

    def calibrated(self, studies: Studies) -> Lines:
        """Calibration only beside fine-tuning."""
        ours = studies[self.ours]
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
                        " / ".join(
                            signed(change(pairs, one[0], one[2]).value, digits) for one, digits in parts
                        )
                    )
                rows.append([named(method) if training == "calibrated" else "", training, *cells])
        legend = "Mean change to float: error in points / NLL in nat / ECE in points."
        return [*table(["", "", *widths], rows), "", legend]

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

    def masks(self, studies: Studies) -> Lines:
        """MC dropout over activation bits, with the paper's arithmetic of the mask and with one bit."""
        schemes: dict[str, Mapping[str, list[Pair]]] = {}
        for study in (self.ours, self.papers):
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


def differences_table(held: Rows, columns: Sequence[Score], widths: Sequence[str]) -> Lines:
    """Changes to float by method and width, with their intervals."""
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


def spread(rows: Sequence[Row], one: Score) -> str:
    name, _, factor, digits = one
    values = [factor * score(row, name) for row in rows if name in row]
    return plus_minus(*mean_and_deviation(values), digits) if values else NONE


def _published(numbers: Mapping[str, float], one: Score) -> str:
    name, _, factor, digits = one
    # no more digits than were published.
    return number(factor * numbers[name], digits - 1) if name in numbers else NONE


def _difference(pairs: Sequence[Pair], one: Score) -> str:
    name, _, factor, digits = one
    if not all(pair.has(name) for pair in pairs):
        return NONE
    return interval(change(pairs, name, factor), digits)


def _rows(held: Rows, method: str, bits: str) -> list[Row]:
    if bits == "float":
        return held.floats(method=method)
    return [pair.quantised for pair in held.pairs(method=method, precision=bits)]


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
