"""The tables of docs/results/uci.md on what bits cost."""

import math
from collections.abc import Mapping

from published_numbers import (
    ACTIVATIONS,
    EQUAL,
    NONE,
    PLAIN,
    WEIGHTS,
    Lines,
    Missing,
    Rows,
    interval,
    named,
    number,
    table,
)
from published_uci_sets import (
    MEASURES,
    NLL,
    RMSE,
    bits_of_weights,
    by_set,
    bytes_of,
    control_of,
    control_text,
    cost_of,
    first_layer_schemes,
    has_controls,
    heads,
    mean_of,
    methods_of,
    of_control,
    thousands,
)

from qbayes.lab.analysis.intervals import Estimate

RMSE_MARGIN, NLL_MARGIN = 1.0, 0.01  # per cent and nat: more is a loss (as for the claims)
FEW = ("W4A4", "W3A3", "W2A2")
EIGHT = ("W8A8", "W8A7")


# ---- eight bits


def eight_bits(ours: Rows) -> Lines:
    """What eight bits cost, set by set, with intervals, and whether they exclude a loss that counts."""
    parts = [*_eight(ours, RMSE, RMSE_MARGIN, 2), "", *_eight(ours, NLL, NLL_MARGIN, 3), ""]
    legend = (
        "Change to float with its 95 % interval over the splits, paired; of the RMSE that of the mean over "
        f"the splits. ✓: the interval excludes a loss of more than {RMSE_MARGIN:g} % or {NLL_MARGIN:g} nat; "
        f"✗: it lies beyond that; no mark: too wide to tell. {of_control(ours)}"
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
            if control is not None:
                rows.append(["", "control", *_plain(cost_of(control, title).sets, digits)])
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
        f"splits (the sets are those of the table, not a sample). ✓: it excludes a loss of {RMSE_MARGIN:g} "
        f"% or {NLL_MARGIN:g} nat. {of_control(ours)}"
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
    return NONE if pairs is None else cost_of(pairs, measure).text(digits)


def scores(ours: Rows) -> Lines:
    """Every score over equal bits: median, mean and worst set (of coverage: the largest change)."""
    widths = ours.present("precision", EQUAL)
    rows = []
    for method in methods_of(ours):
        for measure, (digits, _) in MEASURES.items():
            pairs = [by_set(ours, method=method, precision=bits) for bits in widths]
            cells = [NONE if some is None else cost_of(some, measure).text(digits) for some in pairs]
            rows.append([named(method) if measure == RMSE else "", measure, *cells])
        for measure in (RMSE, NLL) if has_controls(ours) else ():
            texts = [control_text(ours, bits, method, measure) for bits in widths]
            rows.append(["", f"control: {measure}", *texts])
    legend = (
        "Change to float: median / mean / worst set; RMSE and CRPS in per cent of the mean over the "
        "splits, coverage of the 90 % interval in points (its third number is the largest change, up or "
        f"down). {of_control(ours)}"
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
            if control is not None:
                rows.append(["", "control", *_plain(cost_of(control, RMSE).sets, 1)])
    legend = (
        "Change of the mean RMSE to float in per cent, with its 95 % interval over the splits. "
        f"{of_control(ours)}"
    )
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
                cells = [NONE if some is None else cost_of(some, measure).text(digits) for some in pairs]
                first = named(method) if (measure, training) == (RMSE, "calibrated") else ""
                rows.append([first, measure, training, *cells])
            if has_controls(ours):
                texts = [control_text(ours, bits, method, measure) for bits in widths]
                rows.append(["", measure, "control", *texts])
    legend = f"Change to float: median / mean / worst set. {of_control(ours)}"
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
                beside = NONE if mean_bits is None else number(mean_bits, 1)
                held = bits[1] if words == bits else beside
                whole = thousands(sum(size.values()) / len(size))
                first = named(method) if words == FEW[0] else ""
                rows.append(
                    [first, words, held, whole, cost_of(pairs, RMSE).text(1), cost_of(pairs, NLL).text(3)]
                )
            if has_controls(ours):
                texts = [control_text(ours, bits, method, measure) for measure in (RMSE, NLL)]
                rows.append(["", f"control of {bits}", "32", NONE, *texts])
    head = ["", "numbers", "bits of a weight", "bytes", RMSE, NLL]
    legend = (
        "Change to float: median / mean / worst set. Bits of a weight: the mean over all weights, as the "
        f"bytes say. Bytes: the program, mean over the sets. {of_control(ours)} In a study the override is "
        '`precision = {weight = 4, activation = 4, overrides = {"hidden.0" = {weight = 8}}}`, on the '
        "command line `--override hidden.0:weight=8`."
    )
    return [*table(head, rows), "", legend]
