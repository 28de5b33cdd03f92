"""``qbayes demo``: two studies on embedded data, float to integers, with their pages and a verdict."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbayes.cli.console import note, out, print_json
from qbayes.cli.inputs import check_writable
from qbayes.errors import BadFile, BadInput

if TYPE_CHECKING:
    from qbayes.lab.analysis.frame import Frame
    from qbayes.lab.study.run import Outcome
    from qbayes.lab.study.spec.study import Study

STUDIES = ("digits", "diabetes")
_MARKER = ".qbayes-demo"
_FIGURE = "digits.png"


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the stores, pages and figure.")] = Path(
        "runs/demo"
    ),
    study: Annotated[
        list[str] | None, typer.Option(help="Studies to run instead of digits and diabetes.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes at once.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run the studies 'digits' and 'diabetes': four methods, float and 8 to 2 bits, and their reports.

    It takes a few minutes on two cores and needs no data and no network connection, but matplotlib. Stopped,
    it goes on when it is called again.

    \b
    Example:
      qbayes demo --out runs/demo
    """
    _check_plotting()
    check_demo_folder(folder)
    from qbayes.cli.commands.study_progress import watching
    from qbayes.lab.analysis.frame import Frame
    from qbayes.lab.paper.section import register_claims
    from qbayes.lab.report.page.page import write_report
    from qbayes.lab.study.run import run_study
    from qbayes.lab.study.spec.study import Study, study_file
    from qbayes.posterior.storage.save import write_atomically

    register_claims()
    studies = [Study.read(study_file(name)) for name in study or STUDIES]
    write_atomically(folder / _MARKER, b"made by 'qbayes demo', which replaces its own files here\n")
    found: list[tuple[Study, Outcome, Frame, Path]] = []
    for one in studies:
        store = folder / one.name
        with watching(one.name, enabled=not as_json) as watch:
            outcome = run_study(one, store, device="cpu", workers=workers, watch=watch)
        frame = Frame.read(store)
        found.append((one, outcome, frame, write_report(frame, store / "report", static=False)))
    figure = _figure(folder, [frame for _, _, frame, _ in found])
    if as_json:
        print_json({"folder": str(folder), "figure": figure, "studies": [_document(*each) for each in found]})
        return
    for each in found:
        _print_verdict(*each)
    if figure is not None:
        out().print(f"figure      {figure}")
    for _, _, _, page in found:
        out().print(f"the report  {page}")


def check_demo_folder(folder: Path) -> None:
    """New, empty, or made by an earlier demo; anything else is somebody's."""
    if folder.exists() and not folder.is_dir():
        raise BadFile("the output must be a folder", f"the file {folder}", "choose another path")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARKER).exists():
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:4])
        raise BadFile(
            "the demo's folder must be new, empty, or that of an earlier demo",
            f"{folder} holds {held}",
            "choose another folder with --out; nothing in it was touched",
        )
    check_writable(folder)


def _check_plotting() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput(
            "the demo draws with matplotlib", "it is not installed", "pip install 'qbayes[report]'"
        )


def _figure(folder: Path, frames: "Sequence[Frame]") -> str | None:
    """The turned digit, where the digits are among the studies."""
    from qbayes.cli.demo_figure import draw, examples, panels
    from qbayes.posterior.storage.save import write_atomically

    for frame in frames:
        made = panels(frame)
        if made:
            path = folder / _FIGURE
            write_atomically(path, draw(made, *examples()))
            return str(path)
    return None


def _document(study: "Study", outcome: "Outcome", frame: "Frame", page: Path) -> dict[str, Any]:
    from qbayes.lab.analysis.checks import check_all
    from qbayes.lab.paper.claims import judge_all

    return {
        "study": study.name,
        "runs": outcome.planned,
        "done": outcome.done,
        "failed": dict(outcome.reasons),
        "seconds": round(outcome.seconds, 1),
        "report": str(page),
        "claims": {verdict.id: verdict.verdict for verdict in judge_all(frame)},
        "checks_failed": [check.id for check in check_all(frame) if not check.passed],
    }


def _print_verdict(study: "Study", outcome: "Outcome", frame: "Frame", page: Path) -> None:
    from qbayes.lab.analysis.checks import check_all
    from qbayes.lab.paper.claims import judge_all

    out().print(_table(study, frame))
    out().print(losses(frame))
    verdicts = judge_all(frame)
    held = [verdict.id for verdict in verdicts if verdict.verdict == "holds"]
    fallen = [verdict.id for verdict in verdicts if verdict.verdict == "does not hold"]
    equal = [verdict.id for verdict in verdicts if verdict.verdict == "no difference that matters"]
    failed = [check for check in check_all(frame) if not check.passed]
    out().print(
        f"of the paper's claims {', '.join(held) or 'none'} hold here, {', '.join(fallen) or 'none'} do not, "
        f"{', '.join(equal) or 'none'} show no difference that matters, "
        "and there is not enough data for the others"
    )
    for check in failed:
        note(f"{check.id}  {check.title}: {check.found}")


def losses(frame: "Frame") -> str:
    """In words: the most that any method loses of the main score, at each precision."""
    score = main_score(frame)
    parts = []
    for width in _widths(frame):
        lost = {
            method: _mean(frame, score, method, width) - _mean(frame, score, method, "float")
            for method in frame.values("method")
            if frame.where(method=method, precision=width).rows
        }
        if width == "float" or not lost:
            continue
        worst = max(lost, key=lambda method: lost[method])
        parts.append(f"{width} {_shown_loss(frame, score, worst, lost[worst])}")
    what = "points of error" if score == "error" else "% of its RMSE in float"
    return f"the most that a method loses, in {what}: {', '.join(parts)}" if parts else "float alone was run"


def _shown_loss(frame: "Frame", score: str, method: str, lost: float) -> str:
    if lost <= 0:
        return "nothing"
    if score == "error":
        return f"{100 * lost:.2f} ({method})"
    return f"{100 * lost / _mean(frame, score, method, 'float'):.1f} ({method})"


def main_score(frame: "Frame") -> str:
    return "error" if "error" in frame.metrics() else "rmse"


def _mean(frame: "Frame", score: str, method: str, width: str) -> float:
    from statistics import mean

    return mean(float(row[score]) for row in frame.where(method=method, precision=width).rows)


def _widths(frame: "Frame") -> list[str]:
    """Float first, then from many bits to few."""
    return sorted(
        frame.values("precision"), key=lambda name: (name != "float", [-int(n) for n in name if n.isdigit()])
    )


def _table(study: "Study", frame: "Frame") -> Any:
    """The mean over seeds of the main score, by method and precision."""
    from rich import box
    from rich.table import Table

    from qbayes.metrics import metric

    score, widths = main_score(frame), _widths(frame)
    table = Table(
        title=f"{study.name}: {metric(score).label} by precision, mean of seeds",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    table.add_column("method")
    for width in widths:
        table.add_column(width, justify="right")
    for method in frame.values("method"):
        there = [bool(frame.where(method=method, precision=width).rows) for width in widths]
        cells = [
            metric(score).show(_mean(frame, score, method, width)) if known else "–"
            for width, known in zip(widths, there, strict=True)
        ]
        table.add_row(str(method), *cells)
    return table


if __name__ == "__main__":
    from qbayes.cli import main

    sys.exit(main(["demo", *sys.argv[1:]]))
