"""The figures on bits by layer: error over the size of the file, beside equal bits for all layers."""

from pathlib import Path

from published_cifar_rows import MIXED, NETWORKS, Held
from published_numbers import EQUAL, METHODS, PLAIN, Rows, Studies

from qbayes.lab.report.charts.chart import Chart, Series
from qbayes.lab.report.charts.points import Repeats, needs_log
from qbayes.lab.report.charts.static import write_sheet

_SCHEMES = {"equal bits": PLAIN, "bits by layer": (MIXED,)}


def draw_front(studies: Studies, folder: Path) -> list[Path]:
    """One of each network: a panel for each method that has runs of both kinds."""
    drawn: list[Path] = []
    for network in NETWORKS:
        if network.study not in studies:
            continue
        held = Held(network, studies[network.study]).best
        methods = [method for method in held.present("method", METHODS) if _has_both(held, method)]
        charts = [_panel(held, method) for method in methods]
        if charts:
            drawn += write_sheet(charts, [folder / f"{network.study}-front.svg"], "method", same_y=True)
    return drawn


def _has_both(held: Rows, method: str) -> bool:
    return all(held.pairs(method=method, scheme=scheme) for scheme in _SCHEMES.values())


def _panel(held: Rows, method: str) -> Chart:
    series = tuple(_series(held, method, words, scheme) for words, scheme in _SCHEMES.items())
    return Chart(
        name=f"front-{method}",
        title=f"Error over size, {method}",
        x_label="size of the file, kB",
        y_label="error, %",
        kind="lines",
        series=series,
        choices={"method": method},
        log_x=True,
        log_y=needs_log(series),
    )


def _series(held: Rows, method: str, words: str, scheme: tuple[str, ...]) -> Series:
    found: list[tuple[float, float, float, float, str]] = []
    for bits in held.present("precision", EQUAL):
        some = Repeats(pair.quantised for pair in held.pairs(method=method, precision=bits, scheme=scheme))
        size, error = some.point("bytes", 1e-3), some.point("error", 100)
        if size is not None and error is not None:
            found.append((size.mean, error.mean, error.low, error.high, bits))
    x, y, low, high, labels = zip(*sorted(found), strict=True)
    return Series(words, words, x=x, y=y, low=low, high=high, labels=labels, dashed=words == "equal bits")
