"""The two predictions on CIFAR-10 made from the released code: of the mask, and of the size of the batch."""

from dataclasses import dataclass

from published_cifar_poster import POSTER, mean_of
from published_cifar_rows import EXACT, Held, named_once, or_not_run
from published_images import ECE, ERROR, PER_BATCH, PER_LARGE_BATCH
from published_numbers import ACTIVATIONS, NONE, Lines, Missing, named, number, signed, table

from qbayes.lab.analysis.pairs import Pair
from qbayes.lab.analysis.run_groups import has_collapsed

MASK_PREDICTED = "MC dropout does not collapse at four activation bits with a mask of one bit"
BATCH_PREDICTED = "The ECE of SGHMC falls by the size of the batch"


def predictions(held: Held) -> Lines:
    """The two predictions made from the released code, each with the rows that decide it."""
    return [
        *or_not_run(lambda: masks(held), MASK_PREDICTED),
        "",
        *or_not_run(lambda: batch_size(held), BATCH_PREDICTED),
    ]


@dataclass(frozen=True)
class Repeats:
    """The runs of one place: those that ended, and how many failed; a run that failed has collapsed."""

    pairs: list[Pair]
    failed: int

    @property
    def runs(self) -> int:
        return len(self.pairs) + self.failed

    @property
    def fallen(self) -> int:
        return sum(map(has_collapsed, self.pairs)) + self.failed

    @property
    def error(self) -> str:
        return number(mean_of([pair.quantised for pair in self.pairs], ERROR), 2) if self.pairs else NONE


def masks(held: Held) -> Lines:
    """MC dropout over activation bits: the paper's mask, and one of one bit in the same networks."""
    found = {
        words: {bits: _repeats(held, bits, scheme) for bits in ACTIVATIONS}
        for words, scheme in (("the paper's mask", "paper"), ("mask of one bit", EXACT))
    }
    if not all(any(one.runs for one in by_bits.values()) for by_bits in found.values()):
        raise Missing("no run of mcd by the paper's scheme with both masks")
    rows = [[words, *(_mask_cell(one) for one in by_bits.values())] for words, by_bits in found.items()]
    said = _said_of_masks(*(by_bits["W8A4"] for by_bits in found.values()))
    legend = "In brackets: runs that collapsed, or failed in training."
    return [*table(["error of `mcd`, %", *ACTIVATIONS], rows), "", legend, "", said]


def _repeats(held: Held, bits: str, scheme: str) -> Repeats:
    which = {"method": "mcd", "precision": bits, "scheme": scheme}
    return Repeats(held.papers.pairs(**which), len(held.papers.failed(**which)))


def _mask_cell(one: Repeats) -> str:
    return f"{one.error} ({one.fallen} of {one.runs})" if one.runs else NONE


def _said_of_masks(product: Repeats, exact: Repeats) -> str:
    question = f"*{MASK_PREDICTED}*"
    if not product.runs or not exact.runs:
        return f"{question}: not run yet."
    if exact.fallen:
        return f"{question}: **refuted**. {exact.fallen} of {exact.runs} runs collapse."
    numbers = f"W8A4 errs in {exact.error} % with it and in {product.error} % with the paper's"
    if product.fallen:
        return f"{question}: **confirmed**. {numbers}, which collapses in {product.fallen} of {product.runs}."
    return f"{question}: **confirmed**, but here the paper's mask does not collapse either. {numbers}."


def batch_size(held: Held) -> Lines:
    """SGHMC's fall in ECE: as the paper read it, across two batch sizes, and at one."""
    pairs = held.papers.pairs(method="sghmc", precision="W8A7", scheme="paper")
    if (
        not all(pair.has(name) for pair in pairs for name in (ECE[0], PER_BATCH[0], PER_LARGE_BATCH[0]))
        or not pairs
    ):
        raise Missing("no run of sghmc at W8A7 by the paper's scheme")
    read_as = {
        "as the paper read it: batches of 256 in float, of 1024 at W8A7": (PER_BATCH, PER_LARGE_BATCH),
        "batches of 256 in both": (PER_BATCH, PER_BATCH),
        "batches of 1024 in both": (PER_LARGE_BATCH, PER_LARGE_BATCH),
        "the whole test set": (ECE, ECE),
    }
    sides = {
        words: (
            mean_of([pair.float for pair in pairs], before),
            mean_of([pair.quantised for pair in pairs], after),
        )
        for words, (before, after) in read_as.items()
    }
    rows = [[words, number(a, 2), number(b, 2), signed(b - a, 2)] for words, (a, b) in sides.items()]
    poster = POSTER["ece"]["sghmc"]
    assert poster[0] is not None
    assert poster[1] is not None
    rows.append(["the poster", number(poster[0], 2), number(poster[1], 2), signed(poster[1] - poster[0], 2)])
    falls = [b - a for a, b in sides.values()]
    return [
        *table(["ECE of `sghmc`", "float, %", "W8A7, %", "change, points"], rows),
        "",
        _said_of_batches(falls),
    ]


def _said_of_batches(falls: list[float]) -> str:
    """``falls`` are the changes as the paper read it, by 256, by 1024 and over the whole set."""
    question = f"*{BATCH_PREDICTED}*"
    crossed, *same = falls
    if crossed >= 0:
        return f"{question}: cannot be seen. Read as the paper did, it does not fall ({signed(crossed, 2)})."
    share = min(100 * (1 - min(same[:2]) / crossed), 100)
    if min(same[:2]) > crossed / 2:
        return (
            f"{question}: **confirmed**. Read across two sizes it falls by {number(-crossed, 2)} points, "
            f"at one size it changes by {signed(same[0], 2)} and {signed(same[1], 2)}: at least "
            f"{number(share, 0)} % of the fall is the batch."
        )
    return (
        f"{question}: **refuted** here. Read across two sizes it falls by {number(-crossed, 2)} points, "
        f"and at one size still by {number(-min(same[:2]), 2)}."
    )


def batches(held: Held) -> Lines:
    """The ECE of the whole test set beside the means over batches, by our scheme and by the paper's."""
    rows = []
    for words, some, widths in (
        ("ours", held.best, ("W8A8", "W8A7")),
        ("the paper's", held.papers, ("W8A7",)),
    ):
        for bits in ("float", *some.present("precision", widths)):
            if bits == "float" and some is held.papers:
                continue
            for method in some.present("method", POSTER["ece"]):
                found = (
                    some.floats(method=method)
                    if bits == "float"
                    else [pair.quantised for pair in some.pairs(method=method, precision=bits)]
                )
                if found:
                    cells = [number(mean_of(found, one), 2) for one in (ECE, PER_BATCH, PER_LARGE_BATCH)]
                    rows.append(["–" if bits == "float" else words, bits, named(method), *cells])
    if not rows:
        raise Missing("no run with an ECE")
    head = [
        "scheme",
        "bits",
        "method",
        "ECE of the whole set, %",
        "mean over batches of 256, %",
        "of 1024, %",
    ]
    return table(head, named_once(rows))
