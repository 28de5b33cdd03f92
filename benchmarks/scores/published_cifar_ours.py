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
    change,
    legend_of,
    named_once,
)
from published_images import AUROC, ECE, ERROR, NLL, SCORES, Score, spread
from published_numbers import EQUAL, NONE, Lines, Missing, mean_and_deviation, named, number, table

from qbayes.lab.analysis.pairs import Pair, score

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
            error, ece, nll, auroc = (change_of(pairs, one) for one in (ERROR, ECE, NLL, AUROC))
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
            rows.append([named(method), bits + mark_of(pairs), *cells])
    if not rows:
        raise Missing("no run by our recipe")
    head = ["", "bits", "error, points", "ECE, points", "NLL", "AUROC"]
    return [
        *table(head, named_once(rows)),
        "",
        *_said_of_aims(found),
        "",
        legend_of(changes),
        *calibrated_note(rows),
    ]


def change_of(pairs: Sequence[Pair], of: Score) -> Change:
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


def mark_of(pairs: Sequence[Pair]) -> str:
    return " *" if any(pair.quantised.get(ONLY_CALIBRATED) for pair in pairs) else ""


def calibrated_note(rows: Sequence[Sequence[str]]) -> Lines:
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


def _seeds(count: int) -> str:
    if count == 1:
        return "one seed"
    return f"mean and deviation over {count} seeds"
