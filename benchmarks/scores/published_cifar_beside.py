"""CIFAR-10 by our recipe beside calibration, the control and labels; how unsure it is, and under shift."""

from collections.abc import Mapping, Sequence

from published_cifar_ours import calibrated_note, change_of, mark_of
from published_cifar_rows import Change, Held, apart, legend_of, named_once, over_seeds
from published_images import AUROC, ECE, ERROR, NLL, Score
from published_numbers import EQUAL, Lines, Missing, named, number, table

from qbayes.lab.analysis.pairs import Pair, score
from qbayes.tasks.shifts import LEVELS


def beside(held: Held) -> Lines:
    """Calibration alone, our recipe, and the float network with the same fine-tuning."""
    rows, changes = [], list[Change]()
    for method in held.methods:
        for bits in held.ours.present("precision", EQUAL):
            found: dict[str, list[Pair]] = {
                "calibrated": held.ours.pairs(method=method, precision=bits, training="calibrated"),
                "fine-tuned": held.ours.pairs(method=method, precision=bits),
                "control": held.controls(method=method, scheme=f"as {bits}"),
            }
            some = {words: pairs for words, pairs in found.items() if pairs}
            for place, (words, pairs) in enumerate(some.items()):
                cells = [change_of(pairs, one) for one in (ERROR, ECE, NLL)]
                changes += cells
                first = [named(method), bits] if place == 0 else ["", ""]
                rows.append(
                    [
                        *first,
                        words,
                        *(one.text(of[3]) for one, of in zip(cells, (ERROR, ECE, NLL), strict=True)),
                    ]
                )
            if found["fine-tuned"] and found["control"]:
                less = [
                    apart(found["fine-tuned"], found["control"], one[0], one[2]) for one in (ERROR, ECE, NLL)
                ]
                changes += less
                texts = [one.text(of[3]) for one, of in zip(less, (ERROR, ECE, NLL), strict=True)]
                rows.append(["", "", "fine-tuned less control", *texts])
    if not rows:
        raise Missing("no quantised run")
    head = ["", "bits", "", "error, points", "ECE, points", "NLL"]
    legend = (
        "Change to float. The control is the float network with the same fine-tuning (teacher, rate and "
        "epochs) and no quantisers: what is left of *fine-tuned less control* is what bits cost."
    )
    return [*table(head, named_once(rows)), "", legend, legend_of(changes)]


def labels(held: Held) -> Lines:
    """W8A7 fine-tuned with labels and by distillation, and their difference."""
    rows, changes = [], list[Change]()
    for method in held.methods:
        found = {
            words: held.ours.pairs(method=method, precision="W8A7", training=training)
            for words, training in (
                ("calibrated", "calibrated"),
                ("labels", "labels"),
                ("distillation", "trained"),
            )
        }
        for words, pairs in found.items():
            if pairs:
                cells = [change_of(pairs, one) for one in (ERROR, ECE, NLL)]
                changes += cells
                texts = [one.text(of[3]) for one, of in zip(cells, (ERROR, ECE, NLL), strict=True)]
                rows.append([named(method), words, *texts])
        if found["labels"] and found["distillation"]:
            less = [
                apart(found["distillation"], found["labels"], one[0], one[2]) for one in (ERROR, ECE, NLL)
            ]
            changes += less
            texts = [one.text(of[3]) for one, of in zip(less, (ERROR, ECE, NLL), strict=True)]
            rows.append([named(method), "distillation less labels", *texts])
    if not rows:
        raise Missing("no run at W8A7")
    head = ["", "W8A7 by", "error, points", "ECE, points", "NLL"]
    return [*table(head, named_once(rows)), "", f"Change to float. {legend_of(changes)}"]


def uncertainty(held: Held) -> Lines:
    """How unsure the networks are, on test data and on SVHN."""
    columns: tuple[Score, ...] = (
        ("entropy", "entropy", 1, 3),
        ("confusion/entropy", "entropy, SVHN", 1, 3),
        ("mutual_information", "mutual information", 1, 3),
        ("confusion/mutual_information", "mutual information, SVHN", 1, 3),
        AUROC,
    )
    rows, changes = [], list[Change]()
    for method in held.methods:
        for bits in held.best.present("precision", EQUAL):
            pairs = held.best.pairs(method=method, precision=bits)
            if pairs:
                cells = [change_of(pairs, one) for one in columns]
                changes += cells
                texts = [one.text(of[3]) for one, of in zip(cells, columns, strict=True)]
                rows.append([named(method), bits + mark_of(pairs), *texts])
    if not rows:
        raise Missing("no run by our recipe")
    head = ["", "bits", *(label for _, label, _, _ in columns)]
    return [
        *table(head, named_once(rows)),
        "",
        f"Change to float. {legend_of(changes)}",
        *calibrated_note(rows),
    ]


def shifts(held: Held) -> Lines:
    """ECE and error under each shift, mean over its levels, float beside W8A7."""
    rows, changes = [], list[Change]()
    for method in held.methods:
        pairs = held.ours.pairs(method=method, precision="W8A7")
        for shift, levels in LEVELS.items():
            names = [f"{shift}/{level}" for level in range(1, len(levels) + 1)]
            some = [
                pair
                for pair in pairs
                if all(pair.has(f"{name}/{of}") for name in names for of in ("error", "ece"))
            ]
            if not some:
                continue
            cells: list[str] = []
            for metric in ("ece", "error"):
                sides = {
                    side: {pair.unit: 100 * _mean_over(getattr(pair, side), names, metric) for pair in some}
                    for side in ("float", "quantised")
                }
                less = over_seeds(
                    {unit: sides["quantised"][unit] - sides["float"][unit] for unit in sides["float"]}
                )
                changes.append(less)
                cells += [number(over_seeds(side).value, 1) for side in sides.values()] + [less.text(2)]
            rows.append([named(method), shift.replace("_", " "), *cells])
    if not rows:
        raise Missing("no scores under shift")
    head = [
        "",
        "shift",
        "ECE float, %",
        "W8A7, %",
        "change, points",
        "error float, %",
        "W8A7, %",
        "change, points",
    ]
    shifted = sorted({int(row["shift_rows"]) for row in held.frame.rows if row.get("shift_rows")})
    of_rows = (
        f"On {' and '.join(f'{count:,}' for count in shifted)} of the 10,000 test rows. " if shifted else ""
    )
    return [*table(head, named_once(rows)), "", f"Means over the five levels. {of_rows}{legend_of(changes)}"]


def _mean_over(row: Mapping[str, object], names: Sequence[str], metric: str) -> float:
    return sum(score(row, f"{name}/{metric}") for name in names) / len(names)
