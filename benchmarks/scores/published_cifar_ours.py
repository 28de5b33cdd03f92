"""CIFAR-10 by our recipe: float beside the paper's, the aims, and what calibration and the control reach."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from published_cifar_hours import hours_of
from published_cifar_rows import (
    ONLY_CALIBRATED,
    SLIM,
    TINY,
    Change,
    Held,
    apart,
    change,
    legend_of,
    named_once,
    over_seeds,
)
from published_images import AUROC, ECE, ERROR, NLL, SCORES, Score, spread
from published_numbers import EQUAL, NONE, Lines, Missing, mean_and_deviation, named, number, table

from qbayes.report.pairs import Pair, score
from qbayes.tasks.shifts import LEVELS

PAPERS_FLOAT = {"pointwise": 8.13, "mcd": 7.22, "bbb": 8.27, "sghmc": 7.70}
# per cent of error in float, at most; a Bayesian ResNet-8 at most so many points above its point network.
SLIM_FLOAT = {"pointwise": 8.6, "mcd": 8.0, "bbb": 8.8, "sghmc": 8.3}
TINY_FLOAT, TINY_MORE = 14.0, 0.5
# points that our recipe may lose.
ERROR_AIMS: Mapping[str, Mapping[str, float]] = {
    SLIM.study: {"W8A8": 0.2, "W4A4": 0.7, "W3A3": 1.5},
    TINY.study: {"W8A8": 0.2, "W4A4": 1.0, "W3A3": 2.5},
}
ECE_AIMS = {"W8A8": 0.3, "W4A4": 0.7, "W3A3": 1.0}
AUROC_AIMS = {"W4A4": 0.01}
MET, MISSED, OPEN = "✓", "✗", "?"


@dataclass(frozen=True)
class Aim:
    """A loss that must not be larger; improvements always pass."""

    subject: str
    loss: Change
    most: float

    @property
    def mark(self) -> str:
        if self.loss.low is None or self.loss.high is None:
            return OPEN
        return MET if self.loss.high <= self.most else MISSED if self.loss.low > self.most else OPEN


def float_table(held: Held) -> Lines:
    """Float scores with what they took, beside the paper's error."""
    rows = []
    errors: dict[str, float] = {}
    for method in held.methods:
        some = held.all.floats(method=method)
        if not some:
            continue
        errors[method] = 100 * mean_and_deviation([score(row, "error") for row in some])[0]
        most = float_aim(held, method, errors)
        aim = NONE if most is None else f"≤ {number(most, 2)} {MET if errors[method] <= most else MISSED}"
        cells = [spread(some, one) for one in SCORES]
        cost = [epochs_of(held, method), hours_of(held, "float", method)]
        papers = number(PAPERS_FLOAT[method], 2) if held.network == SLIM else NONE
        rows.append([named(method), cells[0], aim, papers, *cells[1:], *cost])
    if not rows:
        raise Missing("no float run")
    head = ["", "error, %", "aim", "the paper's error, %", *(label for _, label, _, _ in SCORES[1:])]
    seeds = held.seeds(precision="float")
    legend = (
        f"{held.network.words}; {_seeds(seeds)}. AUROC: telling CIFAR-10 from SVHN by entropy. Epochs behind "
        "a plus are those of the method itself, which goes on from the point network of its seed; core-hours "
        "are those of the method's own training."
    )
    return [*table([*head, "epochs", "core-hours"], rows), "", legend]


def float_aim(held: Held, method: str, errors: Mapping[str, float]) -> float | None:
    """The most that a float network may err; of a Bayesian ResNet-8 it hangs on its point network."""
    if held.network == SLIM:
        return SLIM_FLOAT[method]
    if method == "pointwise":
        return TINY_FLOAT
    return errors["pointwise"] + TINY_MORE if "pointwise" in errors else None


def epochs_of(held: Held, method: str) -> str:
    """``24``, or ``24 + 16`` where it goes on from a point network."""
    training = held.section(method, "training")
    before = training.get("start_training", {}).get("epochs")
    own = str(training["epochs"])
    return own if before is None else f"{before} + {own}"


def aims(held: Held) -> Lines:
    """Our recipe less float with both ends, beside the aims; and how many of them are met."""
    rows, found = [], list[Aim]()
    changes: list[Change] = []
    for method in held.methods:
        for bits in held.best.present("precision", EQUAL):
            pairs = held.best.pairs(method=method, precision=bits)
            if not pairs:
                continue
            error, ece, nll, auroc = (_change(pairs, one) for one in (ERROR, ECE, NLL, AUROC))
            changes += [error, ece, nll, auroc]
            name = f"{named(method)} {bits}"
            judged = {
                ERROR: _aim(f"{name}: error", error, ERROR_AIMS[held.network.study].get(bits)),
                ECE: _aim(f"{name}: ECE", ece, ECE_AIMS.get(bits)),
                AUROC: _aim(f"{name}: AUROC", fall(auroc), AUROC_AIMS.get(bits)),
            }
            found += [aim for aim in judged.values() if aim is not None]
            cells = [_with_mark(one, judged.get(of), of) for one, of in ((error, ERROR), (ece, ECE))]
            cells += [nll.text(4), _with_mark(auroc, judged[AUROC], AUROC)]
            rows.append([named(method), bits + _mark_of(pairs), *cells])
    if not rows:
        raise Missing("no run by our recipe")
    head = ["", "bits", "error, points", "ECE, points", "NLL", "AUROC"]
    return [
        *table(head, named_once(rows)),
        "",
        *_said_of_aims(found),
        "",
        legend_of(changes),
        *_calibrated_note(rows),
    ]


def _change(pairs: Sequence[Pair], of: Score) -> Change:
    name, _, factor, _ = of
    return change(pairs, name, factor)


def _aim(subject: str, loss: Change, most: float | None) -> Aim | None:
    return None if most is None else Aim(subject, loss, most)


def fall(of: Change) -> Change:
    """What was lost of a score where more is better."""
    if of.low is None or of.high is None:
        return Change(-of.value, None, None, of.over)
    return Change(-of.value, -of.high, -of.low, of.over)


def _with_mark(one: Change, aim: Aim | None, of: Score) -> str:
    text = one.text(of[3])
    return text if aim is None else f"{text} (aim {'−' if of is AUROC else '+'}{aim.most:g}) {aim.mark}"


def _mark_of(pairs: Sequence[Pair]) -> str:
    return " *" if any(pair.quantised.get(ONLY_CALIBRATED) for pair in pairs) else ""


def _calibrated_note(rows: Sequence[Sequence[str]]) -> Lines:
    marked = any(row[1].endswith("*") for row in rows)
    return ["", "\\* calibrated only: the study trains nothing there."] if marked else []


def _said_of_aims(found: Sequence[Aim]) -> Lines:
    """How many aims are met, which are not, and which cannot be told."""
    by_mark = {mark: [aim for aim in found if aim.mark == mark] for mark in (MET, MISSED, OPEN)}
    lines = [
        f"Of {len(found)} aims {len(by_mark[MET])} are met ({MET}: the whole interval), "
        f"{len(by_mark[MISSED])} missed ({MISSED}: none of it), and {len(by_mark[OPEN])} cannot be told "
        f"({OPEN}: the aim lies inside, or there is no interval)."
    ]
    for mark, words in ((MISSED, "Missed"), (OPEN, "Cannot be told")):
        if by_mark[mark]:
            lines[0] += f" {words}: {'; '.join(aim.subject for aim in by_mark[mark])}."
    return lines


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
                cells = [_change(pairs, one) for one in (ERROR, ECE, NLL)]
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
                cells = [_change(pairs, one) for one in (ERROR, ECE, NLL)]
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
                cells = [_change(pairs, one) for one in columns]
                changes += cells
                texts = [one.text(of[3]) for one, of in zip(cells, columns, strict=True)]
                rows.append([named(method), bits + _mark_of(pairs), *texts])
    if not rows:
        raise Missing("no run by our recipe")
    head = ["", "bits", *(label for _, label, _, _ in columns)]
    return [
        *table(head, named_once(rows)),
        "",
        f"Change to float. {legend_of(changes)}",
        *_calibrated_note(rows),
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


def _seeds(count: int) -> str:
    if count == 1:
        return "one seed"
    return f"mean and deviation over {count} seeds"
