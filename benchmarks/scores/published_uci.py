"""The tables of docs/results/uci.md."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from published_numbers import (
    Lines,
    Rows,
    Studies,
    interval,
    named,
    number,
    plus_minus,
    signed,
    spread_of,
    table,
)
from published_uci_bits import calibrated, eight_bits, few_bits, first_layer, grid, over_sets, scores
from published_uci_choices import ABLATION, ablation, candidates
from published_uci_paper import collapses, papers
from published_uci_sets import (
    NLL,
    NOT_RUN,
    RMSE,
    by_set,
    bytes_of,
    chosen,
    control_text,
    cost_of,
    has_controls,
    heads,
    methods_of,
    of_control,
    short,
    thousands,
)

from qbayes.lab.analysis.intervals import Estimate

OURS, LARGE, OF_CANDIDATES = "uci", "uci-large", "-candidates"
# RMSE and NLL over the 20 fixed splits of Hernández-Lobato and Adams, original units, of one paper each. A
# row stands beside the method of ours that it is, or beside none.
PEERS: Mapping[str, tuple[str | None, str, Mapping[str, tuple[float, float]]]] = {
    "MC dropout, trained to convergence": (
        "mcd",
        "Mukhoti, Stenetorp and Gal, *On the importance of strong baselines in Bayesian deep learning* "
        "(2018, arXiv 1811.09385), its tables of RMSE and of test log-likelihood",
        {
            "boston": (2.90, 2.40), "concrete": (4.82, 2.93), "energy": (0.54, 1.21),
            "power": (4.01, 2.80), "wine": (0.62, 0.93), "yacht": (0.67, 1.25),
        },
    ),
    "deep ensemble of 5": (
        None,
        "Lakshminarayanan, Pritzel and Blundell, *Simple and scalable predictive uncertainty estimation "
        "using deep ensembles* (NeurIPS 2017), Table 1",
        {
            "boston": (3.28, 2.41), "concrete": (6.03, 3.06), "energy": (2.09, 1.38),
            "power": (4.11, 2.79), "wine": (0.64, 0.94), "yacht": (1.58, 1.18),
        },
    ),
}  # fmt: skip
SCORES = ("rmse", "nll")
# test rows over training rows of a split.
OVERLAP = 1 / 9
HEAD = ("W8A8", "W4A4", "W3A3", "W2A2")


def when_run(make: Callable[[Rows], Lines], name: str, studies: Studies) -> Lines:
    """The table of a study's rows, or of its candidates; else the sentence that it was not run yet."""
    if name == OURS or name in studies:
        return make(studies[name])
    study = name.removesuffix(OF_CANDIDATES)
    return [f"Not run yet: `qbayes study run {study}`. The table stands here when its rows are published."]


def of_both(make: Callable[[Rows], Lines]) -> dict[str, Callable[[Studies], Lines]]:
    """A table of each network's study."""
    return {"": partial(when_run, make, OURS), ", 3 × 100": partial(when_run, make, LARGE)}


# ---- what the rows are


def origin(ours: Rows) -> Lines:
    """How the hyper-parameters of these rows were chosen: as the rows say."""
    rows = [*ours.floats()]
    networks = "one network for all four methods" if _one_network(rows) else "more than one network"
    failed = f"{len(ours.frame.failed):,} failed" if ours.frame.failed else "none failed"
    count = f"{len(ours.frame.rows):,} runs of {len(ours.frame.values('fold'))} splits, {failed}"
    if chosen(rows):
        return [
            f"{count}, {networks}: in each split held-out rows chose the hyper-parameters, by the grid below."
        ]
    return [
        f"**These rows are of an older study** ({count}, {networks}): its recipe was repaired after looking "
        "at test rows, and some cells got seeds that others lack. What it says of float against the "
        "literature is too good. What bits cost is a difference between two runs of one network, which "
        "this touches less. The study in `studies/uci.toml` chooses by held-out rows alone; it has "
        f"{NOT_RUN}."
    ]


def _one_network(rows: Sequence[Mapping[str, object]]) -> bool:
    """Networks differ in the layers that they say the spread of."""
    layers = {tuple(sorted(name for name in row if str(name).startswith("spread/"))) for row in rows}
    return len(layers) == 1


# ---- the headline


def headline(ours: Rows) -> Lines:
    """The same bits in every layer: median, mean and worst set beside each other, with the control."""
    rows = []
    for method in methods_of(ours):
        for bits in ours.present("precision", HEAD):
            pairs = by_set(ours, method=method, precision=bits)
            if pairs is None:
                continue
            first = named(method) if bits == HEAD[0] else ""
            size = bytes_of(pairs)
            rmse, nll = cost_of(pairs, RMSE), cost_of(pairs, NLL)
            cells = [*rmse.cells(1), nll.text(3)]
            if has_controls(ours):
                cells += [control_text(ours, bits, method, measure) for measure in (RMSE, NLL)]
            rows.append([first, bits, thousands(sum(size.values()) / len(size)), *cells])
    beside = [f"control: {measure}" for measure in (RMSE, NLL)] if has_controls(ours) else []
    head = ["", "bits", "bytes", "RMSE, %: median", "mean", "worst set", NLL, *beside]
    legend = (
        f"Change to float over the {len(ours.tasks())} sets, fine-tuned, the same bits in every layer "
        "(inputs and answers have 16). RMSE: of the mean over the splits; its mean over the sets has a 95 "
        f"% interval over the splits. NLL and the control: median / mean / worst set. {of_control(ours)} "
        "Bytes: the file of the program, mean over the sets."
    )
    return [*table(head, rows), "", legend]


def summary(ours: Rows) -> Lines:
    """The headline in words: the range over the methods."""
    parts = []
    for bits in ours.present("precision", HEAD):
        costs = {method: by_set(ours, method=method, precision=bits) for method in methods_of(ours)}
        known = {method: cost_of(pairs, RMSE) for method, pairs in costs.items() if pairs is not None}
        if not known:
            continue
        medians, means = [one.median for one in known.values()], [one.mean.value for one in known.values()]
        method, (worst, task) = max(
            ((name, one.worst) for name, one in known.items()), key=lambda one: one[1][0]
        )
        parts.append(
            f"- **{bits}**: {_range(medians)} of RMSE in the median over the sets, {_range(means)} in the "
            f"mean; the worst is {named(method)} on {short(task)}, {signed(worst, 1)} %."
        )
    return parts


def _range(values: Sequence[float]) -> str:
    return f"{_between(values)} %"


# ---- float, beside the peers


def float_table(ours: Rows) -> Lines:
    """RMSE and NLL over the splits; each peer beside the method of ours that it is."""
    tasks, methods = ours.tasks(), methods_of(ours)
    found = {
        (method, task, metric): spread_of(ours.floats(method=method, task=task), metric)
        for method in methods
        for task in tasks
        for metric in SCORES
    }
    rows = [
        [named(method), *(_float_cell([found[method, task, metric] for metric in SCORES]) for task in tasks)]
        for method in methods
    ]
    rows += [
        [peer, *(_peer_cell(of[short(task).lower()]) for task in tasks)] for peer, (_, _, of) in PEERS.items()
    ]
    for peer, (method, _, of) in PEERS.items():
        if method in methods:
            cells = [
                _less([found[method, task, m] for m in SCORES], of[short(task).lower()]) for task in tasks
            ]
            rows.append([f"{named(method)} less {peer}", *cells])
    sources = "; ".join(f"{peer}: {source}" for peer, (_, source, _) in PEERS.items())
    legend = (
        f"RMSE / NLL, mean ± standard error over {len(ours.frame.values('fold'))} splits, as the literature "
        "has it. Last row: the same method, ours less theirs, with the 95 % interval of ours, corrected "
        "for the overlap of the splits (lower is better). No method of ours is an ensemble of networks "
        f"trained apart: that row is for comparison alone. {sources}."
    )
    return [*table(["", *heads(ours)], rows), "", legend]


def _float_cell(found: Sequence[Estimate]) -> str:
    return " / ".join(plus_minus(one.value, one.se_runs, 2) for one in found)


def _peer_cell(numbers: tuple[float, float]) -> str:
    return " / ".join(number(value, 2) for value in numbers)


def _less(found: Sequence[Estimate], theirs: tuple[float, float]) -> str:
    both = zip(found, theirs, strict=True)
    less = [replace(_overlapping(one), value=one.value - value) for one, value in both]
    return " / ".join(interval(one, 2) for one in less)


def _overlapping(one: Estimate) -> Estimate:
    """With the error of splits that overlap (Nadeau and Bengio, 2003): ``s √(1/J + OVERLAP)``."""
    return replace(one, se_runs=one.se_runs * math.sqrt(1 + (one.freedom + 1) * OVERLAP))


def _tables(name: str, make: Callable[[Rows], Lines]) -> dict[str, Callable[[Studies], Lines]]:
    return {f"{name}{end}": made for end, made in of_both(make).items()}


TABLES: Mapping[str, Callable[[Studies], Lines]] = {
    **_tables("origin", origin),
    **_tables("headline", headline),
    **_tables("summary", summary),
    **_tables("float", float_table),
    **_tables("eight bits", eight_bits),
    **_tables("over sets", over_sets),
    **_tables("first layer", first_layer),
    **_tables("scores", scores),
    "grid": partial(when_run, grid, OURS),
    **_tables("few bits", few_bits),
    **_tables("calibrated", calibrated),
    "candidates": partial(when_run, candidates, f"{OURS}{OF_CANDIDATES}"),
    "candidates, 3 × 100": partial(when_run, candidates, f"{LARGE}{OF_CANDIDATES}"),
    "ablation": partial(when_run, ablation, ABLATION),
    "paper": papers,
    "paper collapses": collapses,
}


# ---- words on other pages: a test holds them to these


def of_choosing(ours: Rows) -> str:
    """The rows of how-to-choose on regression."""
    rows = [
        f"| {bits} | {take} | {_words(ours, bits, training)} |"
        for bits, take, training in (
            ("W8A8", "calibration (`--epochs 0`)", "calibrated"),
            ("W8A8", "fine-tuning where the noise is small", "trained"),
            ("W4A4", "fine-tuning", "trained"),
            ("W3A3", "fine-tuning", "trained"),
            ("W2A2", "more bits", "trained"),
        )
    ]
    return "\n".join(rows)


def _words(ours: Rows, bits: str, training: str = "trained") -> str:
    """``+1.5 to +6.5 / +6.7 to +31.8 / +24.8 to +125.3 %``: over the methods."""
    costs = [
        cost_of(pairs, RMSE)
        for method in methods_of(ours)
        if (pairs := by_set(ours, method=method, precision=bits, training=training)) is not None
    ]
    numbers = (
        [one.median for one in costs],
        [one.mean.value for one in costs],
        [one.worst[0] for one in costs],
    )
    return f"{' / '.join(_between(some) for some in numbers)} %"


def _between(values: Sequence[float]) -> str:
    low, high = signed(min(values), 1), signed(max(values), 1)
    return low if low == high else f"{low} to {high}"


WORDS: Mapping[str, Callable[[Rows], str]] = {"docs/how-to-choose.md": of_choosing}
