"""What methods and their options do on the embedded digits, by held-out rows: for docs/how-to-choose.md."""

from collections.abc import Callable, Mapping, Sequence

from published_images import AUROC, ECE, ERROR, NLL, Score, spread
from published_numbers import METHODS, NONE, Lines, Studies, named, table

from qbayes.lab.analysis.frame import Row

NAME = "digits-choices"
# the option of a method that its rows vary, and how it is written.
OPTIONS: Mapping[str, Sequence[tuple[str, str]]] = {
    "mcd": (("rate", "rate"),),
    "bbb": (("prior_sigma", "prior σ"), ("kl_weight", "KL weight")),
    "sghmc": (("members", "members"),),
}
TURNED: Score = ("rotation/3/ece", "ECE at 45°, %", 100, 0)
BY_INFORMATION: Score = (
    "confusion/auroc_mutual_information",
    "AUROC, mutual information",
    1,
    3,
)
COLUMNS: Sequence[Score] = (ERROR, (*NLL[:3], 3), ECE, TURNED, (*AUROC[:3], 3), BY_INFORMATION)


def digits(studies: Studies) -> Lines:
    """Each method with each of its options, mean and deviation over the seeds."""
    held = studies[NAME]
    found: dict[tuple[str, str], list[Row]] = {}
    for method in held.present("method", METHODS):
        ordered = sorted(held.done(method=method), key=_values)
        for row in ordered:
            found.setdefault((method, _written(row)), []).append(row)
    rows = []
    before = ""
    for (method, options), some in found.items():
        cells = (_cell(some, one) for one in COLUMNS)
        rows.append([named(method) if method != before else "", options, *cells])
        before = method
    seeds = len(held.frame.values("seed"))
    left = held.frame.planned - len(held.frame.rows)
    waiting = f" {left} runs are left." if left else ""
    legend = (
        f"A quarter of the training rows held out, {seeds} seeds, 20 draws, mean and deviation; AUROC: "
        f"telling digits from photographs, by entropy and by mutual information.{waiting}"
    )
    head = ["", "options", *(label for _, label, _, _ in COLUMNS)]
    return [*table(head, rows), "", legend]


def _values(row: Row) -> tuple[float, ...]:
    names = (f"axis:method.{name}" for name, _ in OPTIONS.get(str(row["method"]), ()))
    return tuple(float(row[name]) for name in names if row.get(name) is not None)


def _written(row: Row) -> str:
    said = zip(OPTIONS.get(str(row["method"]), ()), _values(row), strict=False)
    return ", ".join(f"{words} {value:g}" for (_, words), value in said)


def _cell(rows: Sequence[Row], one: Score) -> str:
    if one is BY_INFORMATION and rows[0]["method"] == "pointwise":
        return NONE
    return spread(rows, one)


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"digits": digits}
