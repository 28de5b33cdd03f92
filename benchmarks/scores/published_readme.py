"""The table of the README: what bits cost on average, and at worst."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from published_cifar_rows import NETWORKS, Held
from published_images import ECE, ERROR, Score
from published_numbers import METHODS, NONE, Lines, Missing, Rows, Studies, number, signed, table
from published_uci_sets import RMSE, by_set, cost_of, methods_of

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.pairs import Pair, score

BITS = ("W8A8", "W4A4", "W3A3", "W2A2")
SCORES = ((ERROR, "error", 2), (ECE, "ECE", 2))
LEGEND = (
    "Change to float, mean / worst: points of error and of ECE over the methods, per cent of the RMSE "
    "over methods and data sets. UCI has splits in the place of seeds."
)

Three = tuple[float, float, float]


def mnist_floats(studies: Studies) -> dict[str, Three]:
    """Error, NLL and ECE of each method, the mean over the seeds of the study."""
    return {method: _three(studies["mnist"].floats(method=method)) for method in METHODS}


def _three(rows: Sequence[Row]) -> Three:
    error, nll, ece = (mean(float(row[name]) for row in rows) for name in ("error", "nll", "ece"))
    return error, nll, ece


def results(studies: Studies) -> Lines:
    """Change to float by task and score, the mean and the worst of methods, or of methods and data sets."""
    rows = _images("MNIST, LeNet", studies["mnist"]) if "mnist" in studies else []
    for network in NETWORKS:
        try:
            rows += _images(f"CIFAR-10, {network.words}", Held.of(studies, network).best)
        except Missing:
            continue
    rows += [_regression(studies["uci"])] if "uci" in studies else []
    return [*table(["", "methods × seeds", "float", *BITS], rows), "", LEGEND]


def _images(where: str, held: Rows) -> list[list[str]]:
    """A line for each score: the methods' means over the seeds."""
    return [_of_score(where, held, of, name, digits) for of, name, digits in SCORES]


def _of_score(where: str, held: Rows, of: Score, name: str, digits: int) -> list[str]:
    cells, most = [], 0
    for bits in BITS:
        pairs = {method: held.pairs(method=method, precision=bits) for method in METHODS}
        changes = [_change(some, of) for some in pairs.values() if some]
        most = max(most, len(changes))
        cells.append(_both(mean(changes), max(changes), digits) if changes else NONE)
    floats = [_mean(rows, of) for method in METHODS if (rows := held.floats(method=method))]
    seeds = sorted({len(held.floats(method=method)) for method in METHODS} - {0})
    runs = f"{most} × {'–'.join(map(str, seeds))}"
    return [f"{where}: {name}", runs, f"{number(mean(floats), digits)} %", *cells]


def _change(pairs: Sequence[Pair], of: Score) -> float:
    name, _, factor, _ = of
    return factor * mean(score(pair.quantised, name) - score(pair.float, name) for pair in pairs)


def _mean(rows: Sequence[Row], of: Score) -> float:
    name, _, factor, _ = of
    return factor * mean(score(row, name) for row in rows)


def _regression(held: Rows) -> list[str]:
    cells = []
    for bits in BITS:
        pairs = [by_set(held, method=method, precision=bits) for method in methods_of(held)]
        costs = [cost_of(some, RMSE) for some in pairs if some is not None]
        average, worst = [one.mean.value for one in costs], [one.worst[0] for one in costs]
        cells.append(_both(mean(average), max(worst), 1) if costs else NONE)
    splits = len(held.frame.values("fold"))
    runs = f"{len(methods_of(held))} × {splits}"
    return [f"UCI, {len(held.tasks())} tables: RMSE, %", runs, NONE, *cells]


def _both(average: float, worst: float, digits: int) -> str:
    return f"{signed(average, digits)} / {signed(worst, digits)}"


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"results": results}
