"""The tables of docs/results/uci.md."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from published_numbers import (
    ACTIVATIONS,
    EQUAL,
    METHODS,
    PLAIN,
    WEIGHTS,
    Lines,
    Missing,
    Rows,
    Studies,
    change,
    interval,
    median_over,
    named,
    number,
    plus_minus,
    ratio,
    signed,
    spread_of,
    table,
)
from published_uci_paper import papers

from qbayes.report.bootstrap import Estimate
from qbayes.report.pairs import Pair

Measure = Callable[[Sequence[Pair]], Estimate]
OURS = "uci"
# RMSE and NLL over the 20 fixed splits of Hernández-Lobato and Adams, in original units, as the literature
# reports them.
PEERS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "MCD, converged": {
        "boston": (2.90, 2.40), "concrete": (4.82, 2.93), "energy": (0.54, 1.21),
        "power": (4.01, 2.80), "wine": (0.62, 0.93), "yacht": (0.67, 1.25),
    },
    "BBB": {
        "boston": (3.31, 2.64), "concrete": (5.79, 3.26), "energy": (1.00, 1.56),
        "power": (4.22, 2.94), "wine": (0.64, 0.97), "yacht": (0.97, 1.45),
    },
    "deep ensemble of 5": {
        "boston": (3.28, 2.41), "concrete": (6.03, 3.06), "energy": (2.09, 1.38),
        "power": (4.11, 2.79), "wine": (0.64, 0.94), "yacht": (1.58, 1.18),
    },
}  # fmt: skip
SCORES = ("rmse", "nll")
RMSE_MARGIN, NLL_MARGIN = 1.0, 0.01  # per cent and nat: more is a loss (as for the claims)
FEW = ("W4A4", "W3A3", "W2A2")
EIGHT = ("W8A8", "W8A7")
FIRST_LAYER = "overrides={'hidden.0': {'weight': 8}}"


def short(task: str) -> str:
    return task.partition("/")[2]


def heads(ours: Rows) -> list[str]:
    return [short(task).capitalize() for task in ours.tasks()]


def methods_of(ours: Rows) -> list[str]:
    return ours.present("method", METHODS)


# ---- float, beside the peers


def float_table(studies: Studies) -> Lines:
    """RMSE and NLL with standard errors over the splits; the best of ours is bold."""
    ours = studies[OURS]
    tasks, methods = ours.tasks(), methods_of(ours)
    found = {
        (method, task, metric): spread_of(ours.floats(method=method, task=task), metric)
        for method in methods
        for task in tasks
        for metric in SCORES
    }
    best = {
        (task, metric): min(found[method, task, metric].value for method in methods)
        for task in tasks
        for metric in SCORES
    }

    def cell(method: str, task: str) -> str:
        parts = []
        for metric in SCORES:
            one = found[method, task, metric]
            text = plus_minus(one.value, one.se_runs, 2)
            parts.append(f"**{text}**" if one.value == best[task, metric] else text)
        return " / ".join(parts)

    rows = [[named(method), *(cell(method, task) for task in tasks)] for method in methods]
    rows += [[peer, *(_peer_cell(of[short(task)]) for task in tasks)] for peer, of in PEERS.items()]
    rows.append(["best of ours less best of theirs", *(_against(found, methods, task) for task in tasks)])
    legend = (
        f"RMSE / NLL, mean and standard error over {len(ours.frame.values('fold'))} splits; bold: the best "
        "of ours. Last row: the difference in standard errors of ours, ✓ where it is at most one."
    )
    return [*table(["", *heads(ours)], rows), "", legend]


def _peer_cell(numbers: tuple[float, float]) -> str:
    return " / ".join(number(value, 2) for value in numbers)


def _against(found: Mapping[tuple[str, str, str], Estimate], methods: Sequence[str], task: str) -> str:
    """The best of ours less the best of the peers, in standard errors of ours; lower is better."""
    parts = []
    for place, metric in enumerate(SCORES):
        ours = min((found[method, task, metric] for method in methods), key=lambda one: one.value)
        theirs = min(of[short(task)][place] for of in PEERS.values())
        apart = (ours.value - theirs) / ours.se_runs if ours.se_runs else math.nan
        parts.append(f"{signed(apart, 1)} {'✓' if apart <= 1 else '✗'}")
    return " / ".join(parts)


# ---- eight bits


def eight_bits(studies: Studies) -> Lines:
    """What eight bits cost, set by set, with intervals, and whether they exclude a loss that counts."""
    ours = studies[OURS]
    parts = [*_eight(ours, "RMSE, %", lambda pairs: ratio(pairs, "rmse"), RMSE_MARGIN, 2), ""]
    parts += [*_eight(ours, "NLL, nat", lambda pairs: change(pairs, "nll"), NLL_MARGIN, 3), ""]
    legend = (
        "Change to float with its 95 % interval over the splits, paired; of the RMSE that of the mean over "
        f"the splits. ✓: the interval excludes a loss of more than {RMSE_MARGIN:g} % or {NLL_MARGIN:g} nat; "
        "✗: it lies beyond that; no mark: too wide to tell."
    )
    return [*parts, legend]


def _eight(ours: Rows, title: str, measure: Measure, margin: float, digits: int) -> Lines:
    rows, shown = [], []
    for method in methods_of(ours):
        for bits in ours.present("precision", EIGHT):
            found = [measure(ours.pairs(method=method, task=task, precision=bits)) for task in ours.tasks()]
            marks = [judged(one, margin) for one in found]
            shown += marks
            cells = [
                f"{interval(one, digits)} {mark}".rstrip() for one, mark in zip(found, marks, strict=True)
            ]
            rows.append([named(method), bits, *cells])
    counted = f"{shown.count('✓')} of {len(shown)} ✓, {shown.count('✗')} ✗"
    return [*table([title, "bits", *heads(ours)], rows), "", f"{counted}."]


def judged(found: Estimate, margin: float) -> str:
    """Whether an interval excludes a loss beyond the margin (✓), lies beyond it (✗), or neither."""
    low, high = found.bounds()
    if low is None or high is None:
        return "✗" if found.value == math.inf else ""
    return "✓" if high <= margin else "✗" if low > margin else ""


def over_sets(studies: Studies) -> Lines:
    """What eight bits cost a method, over all sets."""
    ours = studies[OURS]
    rows = []
    for method in methods_of(ours):
        for bits in ours.present("precision", EIGHT):
            for training in ("trained", "calibrated"):
                by_set = [
                    ours.pairs(method=method, task=task, precision=bits, training=training)
                    for task in ours.tasks()
                ]
                if not all(by_set):
                    continue
                cells = []
                for digits, margin, measure in (
                    (2, RMSE_MARGIN, _MEASURES[0][2]),
                    (4, NLL_MARGIN, _MEASURES[1][2]),
                ):
                    found = mean_of([measure(pairs) for pairs in by_set])
                    cells.append(f"{interval(found, digits)} {judged(found, margin)}".rstrip())
                rows.append([named(method), bits, training, *cells])
    legend = (
        f"Mean over the {len(ours.tasks())} sets of the change to float, with its 95 % interval over the "
        "splits (the sets are those of the table, not a sample). ✓: it excludes a loss of "
        f"{RMSE_MARGIN:g} % or {NLL_MARGIN:g} nat."
    )
    return [*table(["", "bits", "", "RMSE, %", "NLL, nat"], rows), "", legend]


def mean_of(found: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates: ``se² = Σ se_i² / n²``, with the fewest degrees of freedom."""
    count = len(found)
    error = math.sqrt(sum(one.se_runs**2 for one in found)) / count
    value = sum(one.value for one in found) / count
    return Estimate(value, error, min(one.freedom for one in found), sum(one.runs for one in found))


# ---- fewer bits


def medians(studies: Studies) -> Lines:
    """The median over the sets of what each width costs."""
    ours = studies[OURS]
    parts: Lines = []
    # side by side they would be wider than a page.
    for asked in (EQUAL, (*ACTIVATIONS, *WEIGHTS)):
        widths = ours.present("precision", asked)
        rows = [
            [
                named(method) if title == _MEASURES[0][0] else "",
                title,
                *(signed(_median(ours, method, bits, measure), digits) for bits in widths),
            ]
            for method in methods_of(ours)
            for title, digits, measure in (_MEASURES if asked == EQUAL else _MEASURES[:2])
        ]
        parts += [*table(["", "", *widths], rows), ""] if widths else []
    legend = (
        f"Median over the {len(ours.tasks())} sets of the change to float; RMSE, CRPS: per cent of the mean "
        "over the splits; NLL: nat; coverage of the 90 % interval: points."
    )
    return [*parts, legend]


def _median(ours: Rows, method: str, bits: str, measure: Measure) -> float:
    return median_over(ours.tasks(), lambda task: measure(_pairs(ours, method, task, bits)).value)


def _pairs(ours: Rows, method: str, task: str, bits: str) -> Sequence[Pair]:
    return ours.pairs(method=method, task=task, precision=bits)


_MEASURES: tuple[tuple[str, int, Measure], ...] = (
    ("RMSE, %", 1, lambda pairs: ratio(pairs, "rmse")),
    ("NLL", 3, lambda pairs: change(pairs, "nll")),
    ("CRPS, %", 1, lambda pairs: ratio(pairs, "crps")),
    ("coverage, points", 1, lambda pairs: change(pairs, "coverage_90", 100)),
)


def few_bits(studies: Studies) -> Lines:
    """The change of the RMSE, set by set, below five bits."""
    ours = studies[OURS]
    rows = [
        [
            named(method) if bits == FEW[0] else "",
            bits,
            *(interval(ratio(_pairs(ours, method, task, bits), "rmse"), 1) for task in ours.tasks()),
        ]
        for method in methods_of(ours)
        for bits in ours.present("precision", FEW)
    ]
    legend = "Change of the mean RMSE to float in per cent, with its 95 % interval over the splits."
    return [*table(["", "bits", *heads(ours)], rows), "", legend]


def calibrated(studies: Studies) -> Lines:
    """Calibration only beside fine-tuning."""
    ours = studies[OURS]
    if not ours.pairs(training="calibrated"):
        return ["No run of this table was calibrated only."]
    widths = [bits for bits in EQUAL if ours.pairs(training="calibrated", precision=bits)]
    rows = []
    for method in methods_of(ours):
        for training in ("calibrated", "trained"):
            cells = [_median_of(ours, method, bits, training) for bits in widths]
            rows.append([named(method) if training == "calibrated" else "", training, *cells])
    legend = "Median over the sets of the change to float: RMSE in per cent / NLL in nat."
    return [*table(["", "", *widths], rows), "", legend]


def _median_of(ours: Rows, method: str, bits: str, training: str) -> str:
    def pairs(task: str) -> Sequence[Pair]:
        return ours.pairs(method=method, task=task, precision=bits, training=training)

    rmse = median_over(ours.tasks(), lambda task: ratio(pairs(task), "rmse").value)
    nll = median_over(ours.tasks(), lambda task: change(pairs(task), "nll").value)
    return f"{signed(rmse, 1)} / {signed(nll, 3)}"


def first_layer(studies: Studies) -> Lines:
    """Few bits everywhere, and everywhere but in the weights of the first layer, which have eight."""
    ours = studies[OURS]
    schemes = [name for name in map(str, ours.frame.values("scheme")) if FIRST_LAYER in name]
    if not schemes:
        raise Missing("no run has other weights in its first layer")
    rows = []
    for method in methods_of(ours):
        for bits in ours.present("precision", FEW):
            for words, scheme in (("all", PLAIN), ("first layer W8", schemes)):
                pairs = [
                    ours.pairs(method=method, task=task, precision=bits, scheme=scheme)
                    for task in ours.tasks()
                ]
                if not all(pairs):
                    continue
                losses = [ratio(some, "rmse").value for some in pairs]
                nats = [change(some, "nll").value for some in pairs]
                middle = f"**{signed(median(losses), 1)}** / {signed(median(nats), 3)}"
                first = [named(method), bits] if words == "all" else ["", ""]
                rows.append([*first, words, middle, *(signed(loss, 1) for loss in losses)])
    head = ["", "bits", "weights", "median: RMSE, % / NLL", *heads(ours)]
    legend = "Change to float; of the sets the RMSE in per cent."
    return [*table(head, rows), "", legend]


TABLES: Mapping[str, Callable[[Studies], Lines]] = {
    "float": float_table,
    "eight bits": eight_bits,
    "over sets": over_sets,
    "first layer": first_layer,
    "medians": medians,
    "few bits": few_bits,
    "calibrated": calibrated,
    "paper": papers,
}
