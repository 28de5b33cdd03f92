"""What W8A7 does under shift: changes of the mean over a shift's levels, by what was done to the network."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean

from published_controls import WAYS, Controlled
from published_numbers import METHODS, Lines, Missing, Studies, interval, named, signed, table

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.intervals import Estimate, Unit, estimate
from qbayes.lab.analysis.pairs import Pair, score
from qbayes.tasks.shifts import LEVELS

BITS = "W8A7"
# name, label, factor, digits; and which way is worse.
SCORES = (
    ("error", "error, points", 100, 2, +1),
    ("nll", "NLL", 1, 3, +1),
    ("ece", "ECE, points", 100, 2, +1),
    ("entropy", "entropy", 1, 3, -1),
    ("mutual_information", "mutual information", 1, 3, -1),
)
Done = tuple[str, str, str, Sequence[Pair]]  # method, what was done, its short name, runs


def shift(studies: Studies, study: str = "mnist") -> Lines:
    """Means over all shifts and levels, then each shift alone, with what is worse in every seed in words."""
    found = Controlled(studies[study])
    networks = [one for one in _networks(found) if _was_shifted(one[3])]
    if not networks:
        raise Missing(f"no {BITS} network of {study} was looked at under shift")
    rows = []
    before = ""
    for method, words, _, pairs in networks:
        for where in ("all three", *LEVELS):
            shifts = tuple(LEVELS) if where == "all three" else (where,)
            cells = [_cell(pairs, shifts, *one[:1], *one[2:4]) for one in SCORES]
            first = where == "all three"
            shown = named(method) if first and method != before else ""
            rows.append([shown, words if first else "", where.replace("_", " "), *cells])
            before = method
    head = ["", "what was done", "shift", *(one[1] for one in SCORES)]
    legend = (
        f"{BITS} less float, the mean over five levels of a shift, paired, with its 95 % interval over the "
        "seeds."
    )
    return [*table(head, rows), "", legend, "", *said(networks)]


def said(networks: Sequence[Done]) -> Lines:
    """What is worse than float in every seed and beyond its interval, under all shifts together."""
    lines: Lines = []
    for short in dict.fromkeys(short for _, _, short, _ in networks):
        here = {method: pairs for method, _, done, pairs in networks if done == short}
        seeds = min(map(len, here.values()))
        worse = {name: _worse(here, name, unit, sign) for name, _, unit, _, sign in SCORES if name in _WORDS}
        parts = [f"{_WORDS[name]} in {', '.join(found)}" for name, found in worse.items() if found]
        told = "; ".join(parts) if parts else "no method is worse than float by NLL, ECE or entropy"
        lines.append(f"- {BITS}, {short}: in each of {seeds} seeds and beyond the interval, {told}.")
    return lines


_WORDS = {"nll": "NLL rises", "ece": "ECE rises", "entropy": "entropy falls"}
_UNITS = {"nll": ("nat", 3), "ece": ("points", 2), "entropy": ("nat", 3)}


def _networks(found: Controlled) -> Iterable[Done]:
    for method in found.held.present("method", METHODS):
        for training, words in WAYS.items():
            pairs = found.bits(method, BITS, training)
            if pairs:
                yield method, f"{BITS}, {words}", words, pairs
            control = found.control(method, BITS, training)
            if control:
                yield method, f"float, {words} alike", f"{words}, without bits (the control)", control


def _was_shifted(pairs: Sequence[Pair]) -> bool:
    return all(pair.has(f"{shift}/1/nll") for pair in pairs for shift in LEVELS)


def _worse(here: Mapping[str, Sequence[Pair]], name: str, factor: float, sign: int) -> list[str]:
    """The methods that a score is worse of, with their mean change."""
    found: list[str] = []
    for method, pairs in here.items():
        changes = {unit: factor * change for unit, change in _means(pairs, tuple(LEVELS), name).items()}
        made = estimate(changes)
        ends = [sign * end for end in made.bounds() if end is not None]
        if ends and min(ends) > 0 and all(sign * change > 0 for change in changes.values()):
            unit, digits = _UNITS[name]
            found.append(f"{named(method)} ({signed(made.value, digits)} {unit})")
    return found


def _means(pairs: Sequence[Pair], shifts: Sequence[str], name: str) -> dict[Unit, float]:
    """Of each run, the change of the mean over levels (and shifts)."""
    return {
        pair.unit: _level_mean(pair.quantised, shifts, name) - _level_mean(pair.float, shifts, name)
        for pair in pairs
    }


def _level_mean(row: Row, shifts: Sequence[str], name: str) -> float:
    levels = (f"{shift}/{level}/{name}" for shift in shifts for level in range(1, len(LEVELS[shift]) + 1))
    return mean(score(row, column) for column in levels)


def _cell(pairs: Sequence[Pair], shifts: Sequence[str], name: str, factor: float, digits: int) -> str:
    found: Estimate = estimate(_means(pairs, shifts, name))
    return interval(found.scaled(factor), digits)


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"shift": shift}
