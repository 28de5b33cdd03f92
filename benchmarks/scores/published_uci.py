"""The tables of docs/results/uci.md."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

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
    interval,
    named,
    number,
    plus_minus,
    signed,
    spread_of,
    table,
)
from published_uci_choices import ABLATION, ablation, candidates
from published_uci_paper import papers
from published_uci_sets import (
    MEASURES,
    NLL,
    NOT_RUN,
    RMSE,
    bits_of_weights,
    by_set,
    bytes_of,
    chosen,
    control_of,
    control_text,
    cost_of,
    first_layer_schemes,
    mean_of,
    only,
    short,
    thousands,
)

from qbayes.report.bootstrap import Estimate

OURS, LARGE, CANDIDATES = "uci", "uci-large", "uci-candidates"
# RMSE and NLL over the 20 fixed splits of Hernández-Lobato and Adams, in original units: of one paper each, by
# method. A row stands beside the method of ours that it is, or beside none.
PEERS: Mapping[str, tuple[str | None, str, Mapping[str, tuple[float, float]]]] = {
    "MC dropout, trained to convergence": (
        "mcd",
        "Mukhoti, Stenetorp and Gal, *On the importance of strong baselines in Bayesian deep learning* (2018, "
        "arXiv 1811.09385), its tables of RMSE and of test log-likelihood",
        {
            "boston": (2.90, 2.40), "concrete": (4.82, 2.93), "energy": (0.54, 1.21),
            "power": (4.01, 2.80), "wine": (0.62, 0.93), "yacht": (0.67, 1.25),
        },
    ),
    "deep ensemble of 5": (
        None,
        "Lakshminarayanan, Pritzel and Blundell, *Simple and scalable predictive uncertainty estimation using "
        "deep ensembles* (NeurIPS 2017), Table 1",
        {
            "boston": (3.28, 2.41), "concrete": (6.03, 3.06), "energy": (2.09, 1.38),
            "power": (4.11, 2.79), "wine": (0.64, 0.94), "yacht": (1.58, 1.18),
        },
    ),
}  # fmt: skip
SCORES = ("rmse", "nll")
RMSE_MARGIN, NLL_MARGIN = 1.0, 0.01  # per cent and nat: more is a loss (as for the claims)
HEAD, FEW = ("W8A8", "W4A4", "W3A3", "W2A2"), ("W4A4", "W3A3", "W2A2")
EIGHT = ("W8A8", "W8A7")


def when_run(make: Callable[[Rows], Lines], name: str, studies: Studies) -> Lines:
    """The table of a study, or the sentence that it was not run yet."""
    if name == OURS or name in studies:
        return make(studies[name])
    return [f"Not run yet: `qbayes study run {name}`. The table stands here when its rows are published."]


def of_both(make: Callable[[Rows], Lines]) -> dict[str, Callable[[Studies], Lines]]:
    """A table of each network's study."""
    return {"": partial(when_run, make, OURS), ", 3 × 100": partial(when_run, make, LARGE)}


def heads(ours: Rows) -> list[str]:
    return [short(task) for task in ours.tasks()]


def methods_of(ours: Rows) -> list[str]:
    return ours.present("method", METHODS)


# ---- what the rows are


def origin(ours: Rows) -> Lines:
    """How the hyper-parameters of these rows were chosen: as the rows say."""
    rows = [*ours.floats()]
    networks = "one network for all four methods" if _one_network(rows) else "more than one network"
    count = f"{len(ours.frame.rows):,} runs of {len(ours.frame.values('fold'))} splits"
    if chosen(rows):
        return [
            f"{count}, {networks}: in each split held-out rows chose the hyper-parameters, by the grid below."
        ]
    return [
        f"**These rows are of an older study** ({count}, {networks}): its recipe was repaired after looking at test "
        "rows, and some cells got seeds that others lack. What it says of float against the literature is too good. "
        "What bits cost is a difference between two runs of one network, which this touches less. The study in "
        f"`studies/uci.toml` chooses by held-out rows alone; it has {NOT_RUN}."
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
            controls = [control_text(ours, bits, method, measure) for measure in (RMSE, NLL)]
            rmse, nll = cost_of(pairs, RMSE), cost_of(pairs, NLL)
            cells = [*rmse.cells(1), nll.text(3), " and ".join(dict.fromkeys(controls))]
            rows.append([first, bits, thousands(sum(size.values()) / len(size)), *cells])
    head = [
        "",
        "bits",
        "bytes",
        "RMSE, %: median",
        "mean",
        "worst set",
        "NLL, nat",
        "control: RMSE, % and NLL, nat",
    ]
    legend = (
        f"Change to float over the {len(ours.tasks())} sets, fine-tuned, the same bits in every layer (inputs and "
        "answers have 16). RMSE: of the mean over the splits; its mean over the sets has a 95 % interval over the "
        "splits. NLL, and the control: median / mean / worst set. Control: the float network with the same "
        "fine-tuning and no quantiser. Bytes: the file of the program, mean over the sets."
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
            f"- **{bits}**: {_range(medians)} of RMSE in the median over the sets, {_range(means)} in the mean; "
            f"the worst is {named(method)} on {short(task)}, {signed(worst, 1)} %."
        )
    return parts


def _range(values: Sequence[float]) -> str:
    low, high = signed(min(values), 1), signed(max(values), 1)
    return f"{low} %" if low == high else f"{low} to {high} %"


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
        f"RMSE / NLL, mean ± standard error over {len(ours.frame.values('fold'))} splits. Last row: the same method, "
        "ours less theirs, with the 95 % interval of ours over the splits (lower is better). No method of ours is "
        f"an ensemble of networks trained apart: that row is for comparison alone. {sources}."
    )
    return [*table(["", *heads(ours)], rows), "", legend]


def _float_cell(found: Sequence[Estimate]) -> str:
    return " / ".join(plus_minus(one.value, one.se_runs, 2) for one in found)


def _peer_cell(numbers: tuple[float, float]) -> str:
    return " / ".join(number(value, 2) for value in numbers)


def _less(found: Sequence[Estimate], theirs: tuple[float, float]) -> str:
    less = [replace(one, value=one.value - value) for one, value in zip(found, theirs, strict=True)]
    return " / ".join(interval(one, 2) for one in less)


# ---- eight bits


def eight_bits(ours: Rows) -> Lines:
    """What eight bits cost, set by set, with intervals, and whether they exclude a loss that counts."""
    parts = [*_eight(ours, RMSE, RMSE_MARGIN, 2), "", *_eight(ours, NLL, NLL_MARGIN, 3), ""]
    legend = (
        "Change to float with its 95 % interval over the splits, paired; of the RMSE that of the mean over "
        f"the splits. ✓: the interval excludes a loss of more than {RMSE_MARGIN:g} % or {NLL_MARGIN:g} nat; "
        "✗: it lies beyond that; no mark: too wide to tell."
    )
    return [*parts, legend]


def _eight(ours: Rows, title: str, margin: float, digits: int) -> Lines:
    rows, shown = [], []
    for method in methods_of(ours):
        for bits in ours.present("precision", EIGHT):
            pairs = by_set(ours, method=method, precision=bits)
            if pairs is None:
                continue
            found = list(cost_of(pairs, title).sets.values())
            marks = [judged(one, margin) for one in found]
            shown += marks
            cells = [
                f"{interval(one, digits)} {mark}".rstrip() for one, mark in zip(found, marks, strict=True)
            ]
            rows.append([named(method), bits, *cells])
            control = control_of(ours, bits, method)
            beside = (
                [NOT_RUN] * len(found) if control is None else _plain(cost_of(control, title).sets, digits)
            )
            rows.append(["", "control", *beside])
    counted = f"{shown.count('✓')} of {len(shown)} ✓, {shown.count('✗')} ✗"
    return [*table([title, "bits", *heads(ours)], rows), "", f"{counted}."]


def _plain(sets: Mapping[str, Estimate], digits: int) -> list[str]:
    return [interval(one, digits) for one in sets.values()]


def judged(found: Estimate, margin: float) -> str:
    """Whether an interval excludes a loss beyond the margin (✓), lies beyond it (✗), or neither."""
    low, high = found.bounds()
    if low is None or high is None:
        return "✗" if found.value == math.inf else ""
    return "✓" if high <= margin else "✗" if low > margin else ""


def over_sets(ours: Rows) -> Lines:
    """What eight bits cost a method, over all sets."""
    rows = []
    for method in methods_of(ours):
        for bits in ours.present("precision", EIGHT):
            for training in ("trained", "calibrated"):
                pairs = by_set(ours, method=method, precision=bits, training=training)
                if pairs is None:
                    continue
                cells = []
                for measure, digits, margin in ((RMSE, 2, RMSE_MARGIN), (NLL, 4, NLL_MARGIN)):
                    found = mean_of(list(cost_of(pairs, measure).sets.values()))
                    cells.append(f"{interval(found, digits)} {judged(found, margin)}".rstrip())
                rows.append([named(method), bits, training, *cells])
            control = control_of(ours, bits, method)
            if control is not None:
                means = [
                    interval(cost_of(control, measure).mean, digits)
                    for measure, digits in ((RMSE, 2), (NLL, 4))
                ]
                rows.append([named(method), bits, "control", *means])
    legend = (
        f"Mean over the {len(ours.tasks())} sets of the change to float, with its 95 % interval over the "
        "splits (the sets are those of the table, not a sample). ✓: it excludes a loss of "
        f"{RMSE_MARGIN:g} % or {NLL_MARGIN:g} nat. Control: the float network with the same fine-tuning."
    )
    return [*table(["", "bits", "", RMSE, NLL], rows), "", legend]


# ---- fewer bits


def grid(ours: Rows) -> Lines:
    """Over activation bits and over weight bits: median, mean and worst set."""
    widths = ours.present("precision", (*ACTIVATIONS, *WEIGHTS))
    if not widths:
        raise Missing("no rows over activation or weight bits")
    rows = [
        [
            named(method) if measure == RMSE else "",
            measure,
            *(_grid_cell(ours, method, bits, measure) for bits in widths),
        ]
        for method in methods_of(ours)
        for measure in (RMSE, NLL)
    ]
    return [*table(["", "", *widths], rows), "", "Change to float: median / mean / worst set."]


def _grid_cell(ours: Rows, method: str, bits: str, measure: str) -> str:
    pairs = by_set(ours, method=method, precision=bits)
    digits = 1 if measure == RMSE else 2
    return "–" if pairs is None else cost_of(pairs, measure).text(digits)


def scores(ours: Rows) -> Lines:
    """Every score over equal bits: median, mean and worst set (of coverage: the largest change)."""
    widths = ours.present("precision", EQUAL)
    rows = []
    for method in methods_of(ours):
        for measure, (digits, _) in MEASURES.items():
            pairs = [by_set(ours, method=method, precision=bits) for bits in widths]
            cells = ["–" if some is None else cost_of(some, measure).text(digits) for some in pairs]
            rows.append([named(method) if measure == RMSE else "", measure, *cells])
        for measure in (RMSE, NLL):
            rows.append(
                ["", f"control: {measure}", *(control_text(ours, bits, method, measure) for bits in widths)]
            )
    legend = (
        "Change to float: median / mean / worst set; RMSE and CRPS in per cent of the mean over the splits, coverage "
        "of the 90 % interval in points (there the third is the largest). Control: the float network with the same "
        "fine-tuning."
    )
    return [*table(["", "", *widths], rows), "", legend]


def few_bits(ours: Rows) -> Lines:
    """The change of the RMSE, set by set, below five bits."""
    rows = []
    for method in methods_of(ours):
        for bits in ours.present("precision", FEW):
            pairs = by_set(ours, method=method, precision=bits)
            if pairs is None:
                continue
            rows.append(
                [named(method) if bits == FEW[0] else "", bits, *_plain(cost_of(pairs, RMSE).sets, 1)]
            )
            control = control_of(ours, bits, method)
            beside = [NOT_RUN] * len(pairs) if control is None else _plain(cost_of(control, RMSE).sets, 1)
            rows.append(["", "control", *beside])
    legend = "Change of the mean RMSE to float in per cent, with its 95 % interval over the splits."
    return [*table(["", "bits", *heads(ours)], rows), "", legend]


def calibrated(ours: Rows) -> Lines:
    """Calibration alone beside fine-tuning and the control."""
    widths = [bits for bits in EQUAL if ours.pairs(training="calibrated", precision=bits)]
    if not widths:
        return ["No run of this table was calibrated only."]
    rows = []
    for method in methods_of(ours):
        for measure in (RMSE, NLL):
            for training in ("calibrated", "trained"):
                pairs = [by_set(ours, method=method, precision=bits, training=training) for bits in widths]
                digits = MEASURES[measure][0]
                cells = ["–" if some is None else cost_of(some, measure).text(digits) for some in pairs]
                first = named(method) if (measure, training) == (RMSE, "calibrated") else ""
                rows.append([first, measure, training, *cells])
            rows.append(
                ["", measure, "control", *(control_text(ours, bits, method, measure) for bits in widths)]
            )
    legend = "Change to float: median / mean / worst set. Control: the float network with the fine-tuning of the width."
    return [*table(["", "", "", *widths], rows), "", legend]


def first_layer(ours: Rows) -> Lines:
    """Few bits everywhere, and everywhere but in the weights of the first layer, which have eight."""
    schemes = first_layer_schemes(ours)
    if not schemes:
        raise Missing("no run has other weights in its first layer")
    rows = []
    for method in methods_of(ours):
        for bits in ours.present("precision", FEW):
            for words, scheme in ((bits, PLAIN), (f"{bits}, first layer W8", schemes)):
                pairs = by_set(ours, method=method, precision=bits, scheme=scheme)
                if pairs is None:
                    continue
                size, mean_bits = bytes_of(pairs), bits_of_weights(ours, method, bits)
                held = bits[1] if words == bits or mean_bits is None else number(mean_bits, 1)
                whole = thousands(sum(size.values()) / len(size))
                first = named(method) if words == FEW[0] else ""
                rows.append(
                    [first, words, held, whole, cost_of(pairs, RMSE).text(1), cost_of(pairs, NLL).text(3)]
                )
            controls = [control_text(ours, bits, method, measure) for measure in (RMSE, NLL)]
            rows.append(["", f"control of {bits}", "32", "–", *controls])
    head = ["", "numbers", "bits of a weight", "bytes", RMSE, NLL]
    legend = (
        "Change to float: median / mean / worst set. Bits of a weight: the mean over all weights, as the bytes say. "
        "Bytes: the program, mean over the sets. In a study the override is "
        '`precision = {weight = 4, activation = 4, overrides = {"hidden.0" = {weight = 8}}}`, on the command line '
        "`--override hidden.0:weight=8`."
    )
    return [*table(head, rows), "", legend]


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
    "candidates": partial(when_run, candidates, CANDIDATES),
    "candidates, 3 × 100": partial(when_run, candidates, f"{LARGE}-candidates"),
    "ablation": partial(when_run, ablation, ABLATION),
    "paper": papers,
}
