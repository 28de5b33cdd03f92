"""The demo's figure: how sure each method of the digits study is where it cannot know."""

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qbayes.lab.report.charts.chart import STYLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qbayes import Task
    from qbayes.lab.analysis.frame import Frame

COLOURS = {name: style.light for name, style in STYLES.items()}
NAMES = {name: style.label for name, style in STYLES.items()}
_INK, _QUIET, _FAINT = "#222222", "#6b6b6b", "#9a9a9a"
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
_TITLE: dict[str, Any] = {"fontsize": 12, "fontweight": "bold"}
# The test row that the figure turns: a clear 3, picked because the methods then differ in how sure they are.
_EXAMPLE = 393


@dataclass(frozen=True)
class Panel:
    """One method: scores by rotation (from 0° on), entropies in nats, and its answers for the example."""

    name: str
    error: list[float]
    ece: list[float]
    test_entropy: list[float]
    other_entropy: list[float]
    predicted: list[str]
    confidence: list[float]
    truth: str
    auroc: float | None = None


def draw(panels: Sequence[Panel], images: Sequence[Any], angles: Sequence[float]) -> bytes:
    """The figure as a PNG. ``images`` are the example under each of ``angles`` (degrees)."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(12, 7.4), dpi=160, facecolor="white")
        edges = {"left": 0.14, "right": 0.98, "top": 0.905, "bottom": 0.08}
        grid = figure.add_gridspec(2, 2, height_ratios=(1, 1.2), hspace=0.26, wspace=0.42, **edges)
        _draw_example(figure, grid[0, :], panels, images, angles)
        _draw_calibration(figure.add_subplot(grid[1, 0]), panels, angles)
        _draw_entropies(figure, grid[1, 1], panels)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": "qbayes"})
    return buffer.getvalue()


def _draw_example(
    figure: Any, place: Any, panels: Sequence[Panel], images: Sequence[Any], angles: Sequence[float]
) -> None:
    """The turned digit, and below it what each method reads and how sure it is; bars are confidences."""
    rows = place.subgridspec(2, 1, height_ratios=(1, 1.75), hspace=0.05)
    pictures = rows[0].subgridspec(1, len(images), wspace=0.12)
    for index, (image, angle) in enumerate(zip(images, angles, strict=True)):
        axes = figure.add_subplot(pictures[index])
        axes.imshow(image, cmap="Greys", interpolation="nearest")
        axes.set_axis_off()
        axes.set_title("as written" if angle == 0 else f"turned by {angle:g}°", fontsize=9.5, pad=4)
    axes = figure.add_subplot(rows[1])
    axes.set_xlim(0, len(images))
    axes.set_ylim(len(panels), -0.1)
    axes.set_axis_off()
    for row, panel in enumerate(panels):
        colour = COLOURS[panel.name]
        pen = {"color": colour, "fontweight": "bold", "ha": "right", "va": "center"}
        axes.text(-0.06, row + 0.5, NAMES[panel.name], **pen)
        for column, (label, sure) in enumerate(zip(panel.predicted, panel.confidence, strict=True)):
            _draw_answer(axes, column, row, label, sure, colour, right=label == panel.truth)
    question = f"What is this {panels[0].truth}, as it turns?"
    figure.text(0.14, 0.965, question, va="center", **_TITLE)
    key = (
        "each method's answer and confidence; filled: right, hatched: wrong. A test digit picked for contrast"
    )
    figure.text(0.98, 0.965, key, fontsize=9.5, color=_QUIET, ha="right", va="center")


def _draw_answer(
    axes: Any, column: int, row: int, label: str, sure: float, colour: str, *, right: bool
) -> None:
    left, width, height = column + 0.04, 0.92, 0.56
    low = row + 0.22
    axes.barh(low, width, height, left, align="edge", color="#f1f1f1", linewidth=0)
    fill = {"color": colour} if right else {"facecolor": "white", "edgecolor": colour, "hatch": "/////"}
    axes.barh(low, width * sure, height, left, align="edge", linewidth=0.8, alpha=0.9, **fill)
    box = {"facecolor": "white", "edgecolor": "none", "boxstyle": "round,pad=0.18", "alpha": 0.92}
    answer = f"{label}   {sure:.0%}".replace("%", " %")
    axes.text(left + 0.05, low + height / 2, answer, va="center", fontsize=9.5, bbox=box)


def _draw_calibration(axes: Any, panels: Sequence[Panel], angles: Sequence[float]) -> None:
    """Calibration error by rotation, each line named at its end."""
    for panel in panels:
        share = [100 * value for value in panel.ece]
        axes.plot(angles, share, color=COLOURS[panel.name], linewidth=2.2, marker="o", markersize=4.5)
    ends = _spread([100 * panel.ece[-1] for panel in panels], 6.5)
    for panel, height in zip(panels, ends, strict=True):
        name = NAMES[panel.name]
        axes.text(angles[-1] + 2, height, name, color=COLOURS[panel.name], va="center", fontweight="bold")
    axes.set_xlim(-2, angles[-1] + 1)
    axes.set_ylim(0, max(100 * value for panel in panels for value in panel.ece) * 1.08)
    axes.set_xticks(list(angles), [f"{angle:g}°" for angle in angles])
    axes.set_xlabel("rotation of the test digits")
    axes.set_ylabel("calibration error (ECE), %")
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title("Turned digits: who still knows how sure to be?", loc="left", pad=10, **_TITLE)


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """``heights``, moved apart so that labels at them do not overlap, in the same order."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = list(heights)
    for before, here in itertools.pairwise(order):
        placed[here] = max(placed[here], placed[before] + gap)
    # half the way back, so that the block of labels stays centred on its lines.
    moved = max(after - height for after, height in zip(placed, heights, strict=True))
    return [height - moved / 2 for height in placed]


def _draw_entropies(figure: Any, place: Any, panels: Sequence[Panel]) -> None:
    """How the entropies of digits and of photographs are spread, one strip a method."""
    strips = place.subgridspec(len(panels), 1, hspace=0.22)
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(strips[index])
        _draw_strip(axes, panel)
        last = index == len(panels) - 1
        axes.tick_params(labelbottom=last, bottom=last)
        if last:
            axes.set_xlabel("predictive entropy, nat (log 10 = 2.30: no idea)")
        if index == 0:
            axes.set_title("Photographs among the digits: who notices?", loc="left", pad=10, **_TITLE)
            pen = {"transform": axes.transAxes, "va": "top"}
            axes.text(0.045, 0.93, "test digits", color=_QUIET, **pen)
            axes.text(0.995, 0.93, "photographs", ha="right", color=COLOURS[panel.name], **pen)


def _draw_strip(axes: Any, panel: Panel) -> None:
    """Histograms of the two sets; heights go by the square root of the share."""
    import numpy as np

    top = float(np.log(10))
    edges = np.linspace(0, top, 31)
    sets = ((panel.test_entropy, "#b9b9b9", 1.0), (panel.other_entropy, COLOURS[panel.name], 0.78))
    for values, colour, alpha in sets:
        if values:
            heights, _ = np.histogram(np.clip(values, 0, top), edges)
            # the root keeps the long, low tails in sight beside the peak at 0.
            shares = np.sqrt(heights / len(values))
            axes.stairs(shares, edges, fill=True, color=colour, alpha=alpha, linewidth=0)
    axes.set_xlim(0, top)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    place = {"transform": axes.transAxes, "va": "top"}
    axes.text(0.5, 0.93, NAMES[panel.name], color=COLOURS[panel.name], fontweight="bold", ha="right", **place)
    if panel.auroc is not None:
        axes.text(0.52, 0.93, f"AUROC {panel.auroc:.3f}", color=_INK, ha="left", **place)


def panels(frame: "Frame") -> list[Panel]:
    """One a method, of the first seed; none where the study is not of digits under rotation."""
    rows = frame.where(task="digits", precision="float")
    if not rows.rows or "rotation/1/ece" not in rows.rows[0] or frame.folder is None:
        return []
    first = rows.where(seed=rows.values("seed")[0]).rows
    of_method = {str(row["method"]): row for row in first}
    return [_panel(frame, of_method[name]) for name in NAMES if name in of_method]


def _panel(frame: "Frame", row: "Mapping[str, Any]") -> Panel:
    import qbayes as qb

    assert frame.folder is not None
    posterior = qb.load_posterior(frame.folder / "float" / str(row["float"]))
    task = qb.load_task("digits")
    turned = posterior.predict(_turn(task), int(row["draws"]), 0)
    details = frame.details(str(row["run"])) or {}
    return Panel(
        name=str(row["method"]),
        error=[row["error"], *(row[f"rotation/{level}/error"] for level in range(1, 6))],
        ece=[row["ece"], *(row[f"rotation/{level}/ece"] for level in range(1, 6))],
        test_entropy=[float(value) for value in details.get("entropy", ())],
        other_entropy=[float(value) for value in details.get("confusion_entropy", ())],
        predicted=[turned.labels[k] for k in turned.mean.argmax(-1).tolist()],
        confidence=turned.mean.amax(-1).tolist(),
        truth=turned.labels[_label(task)],
        auroc=row.get("confusion/auroc"),
    )


def examples() -> tuple[list[list[list[float]]], list[float]]:
    """The example as it is and under the five rotations, and the angles in degrees."""
    import qbayes as qb
    from qbayes.tasks.shifts import LEVELS

    images = _turn(qb.load_task("digits"))[:, 0].tolist()
    return images, [0.0, *LEVELS["rotation"]]


def _turn(task: "Task") -> Any:
    import torch

    from qbayes.tasks.shifts import shift

    x, _ = next(iter(task.batches("test", _EXAMPLE + 1)))
    example = x[_EXAMPLE:]
    assert task.input_range is not None
    low, high = task.input_range
    return torch.cat(
        [example.float(), *(shift(example, "rotation", level, low, high).float() for level in range(1, 6))]
    )


def _label(task: "Task") -> int:
    _, y = next(iter(task.batches("test", _EXAMPLE + 1)))
    return int(y[_EXAMPLE])
