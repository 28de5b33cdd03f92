"""Figures of the published pages: chosen sheets of the report's own, as SVG on white.

Those of single test rows (reliability, entropy histograms) need a study's store; all others its CSV alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from published_cifar_rows import NETWORKS, Held
from published_numbers import PLAIN, Rows, Studies

from qbayes.errors import BadInput
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import Chart
from qbayes.lab.report.charts.static import write_sheet
from qbayes.lab.report.figures import FIGURES


@dataclass(frozen=True)
class Picture:
    """The charts of a figure with these choices, side by side over ``beside`` (else as the page lays them).

    ``name`` is added to the file's where one figure gives several.
    """

    figure: str
    name: str = ""
    where: Mapping[str, str] = field(default_factory=dict[str, str])
    beside: str = ""

    def file(self, study: str) -> str:
        return "-".join(filter(None, (study, self.figure, self.name))) + ".svg"


def _by_set(figure: str, metric: str, name: str = "") -> Picture:
    return Picture(figure, name, {"metric": metric}, beside="task")


SPREAD_BY_SET = Picture("weight_spread", where={"measure": "spread"}, beside="task")
# what a picture shows where its study varies this and it does not say.
_USUAL: Mapping[str, Sequence[str]] = {"training": ("trained",), "scheme": PLAIN}
SHIFTS = ("rotation", "brightness", "horizontal shift")
ECE_UNDER_SHIFT = tuple(
    Picture("shifts", shift.replace(" ", "_"), {"shift": shift, "metric": "ECE"}) for shift in SHIFTS
)
# with these, the paper's Figures 10 b, 13 and 14 a, b, d: float beside W8A7.
OTHERS_UNDER_SHIFT = tuple(
    Picture("shifts", f"{shift.replace(' ', '_')}-{metric}", {"shift": shift, "metric": label})
    for shift in SHIFTS
    for metric, label in (("error", "error"), ("nll", "NLL"), ("entropy", "entropy"))
)


def _of_rows(*precisions: str) -> tuple[Picture, ...]:
    """What looks at single test rows: only a store has them."""
    histograms = (Picture("entropy_histograms", bits.lower(), {"precision": bits}) for bits in precisions)
    return Picture("reliability"), *histograms


# of CIFAR-10, whose studies hold both schemes: ours, and the paper's (its Figures 8, 9 and 15 to 17).
_OURS = (
    Picture("equal_bits"),
    Picture("detection", where={"over": "equal bits"}),
    *ECE_UNDER_SHIFT,
    Picture("weight_spread"),
    *_of_rows("float", "W4A4"),
)
_PAPERS = (Picture("activation_bits"), Picture("weight_bits"), *_of_rows("W8A4"))
PICTURES: Mapping[str, Sequence[Picture]] = {
    "uci": (
        Picture("regression_boxes", where={"over": "equal bits"}),
        _by_set("equal_bits", "RMSE"),
        _by_set("equal_bits", "90 % coverage", "coverage"),
        Picture("regression_boxes", "activation", {"over": "activation bits"}),
        Picture("regression_boxes", "weight", {"over": "weight bits"}),
        SPREAD_BY_SET,
    ),
    "uci-paper": (
        Picture("regression_boxes", "activation", {"over": "activation bits"}),
        Picture("regression_boxes", "weight", {"over": "weight bits"}),
        _by_set("activation_bits", "RMSE"),
        _by_set("weight_bits", "RMSE"),
        SPREAD_BY_SET,
    ),
    "mnist": (
        Picture("equal_bits"),
        Picture("activation_bits"),
        Picture("weight_bits"),
        Picture("detection", where={"over": "equal bits"}),
        *ECE_UNDER_SHIFT,
        *OTHERS_UNDER_SHIFT,
        Picture("weight_spread"),
    ),
    "mnist-paper": (
        Picture("activation_bits"),
        Picture("weight_bits"),
        *ECE_UNDER_SHIFT,
        *OTHERS_UNDER_SHIFT,
        Picture("weight_spread"),
        *_of_rows("float", "W8A4"),
    ),
    **{network.study: _OURS for network in NETWORKS},
    **{network.papers: _PAPERS for network in NETWORKS},
}


def draw(studies: Studies, stores: Sequence[Path], folder: Path) -> list[Path]:
    """Every picture that the rows at hand can give; a store is read in place of its study's CSV."""
    frames = {study: studies[study].frame for study in PICTURES if study in studies}
    frames |= {frame.name: frame for frame in map(Frame.read, stores)}
    frames |= _by_scheme(frames)
    return [
        path
        for study, frame in frames.items()
        for picture in PICTURES.get(study, ())
        for path in _drawn(frame, picture, folder / picture.file(study))
    ]


def _by_scheme(frames: Mapping[str, Frame]) -> dict[str, Frame]:
    """The frames of studies that hold the paper's scheme beside ours, apart."""
    found: dict[str, Frame] = {}
    for network in NETWORKS:
        if network.study in frames:
            held = Held(network, Rows(frames[network.study]))
            found |= {network.study: held.best.frame, network.papers: held.papers.frame}
    return found


def _drawn(frame: Frame, picture: Picture, path: Path) -> Iterator[Path]:
    figure = FIGURES[picture.figure]()
    charts = [_headed(chart, picture) for chart in figure.draw(frame) if _fits(chart, picture)]
    beside = picture.beside or figure.beside
    if len({chart.choices[beside] for chart in charts}) < len(charts):
        got = f"several charts with one {beside} in {path.name}"
        raise BadInput("panels of a picture must differ", got, "choose its charts more narrowly")
    if charts:
        same_y = figure.same_y and not picture.beside
        write_sheet(charts, [path], beside, same_y=same_y)
        path.write_text(compact(path.read_text(encoding="utf-8")), encoding="utf-8")
        yield path


def compact(drawn: str) -> str:
    """The drawing with places to a hundredth of a point, and without the indents; its words stay."""
    places = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), drawn)
    return re.sub(r"\n +", "\n", places)


def _headed(chart: Chart, picture: Picture) -> Chart:
    """Sets side by side are headed by their names and the metric alone: units are the page's to tell."""
    if picture.beside != "task":
        return chart
    named = {**chart.choices, "task": chart.choices["task"].partition("/")[2].capitalize()}
    short = chart.choices.get("metric", chart.choices.get("measure", chart.y_label))
    return replace(chart, choices=named, y_label=short)


def _fits(chart: Chart, picture: Picture) -> bool:
    """A picture that names a metric gets it, main or not; and trained networks of the plain scheme."""
    chosen = all(chart.choices.get(key) == value for key, value in picture.where.items())
    chosen = chosen and all(
        chart.choices[key] in values
        for key, values in _USUAL.items()
        if key in chart.choices and key not in picture.where
    )
    return chosen and (chart.main or "metric" in picture.where)
