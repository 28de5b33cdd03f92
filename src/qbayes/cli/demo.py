"""``qbayes demo``: two studies on embedded data, float to integers, with their pages and a verdict."""

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from qbayes.cli.console import note, out, plain_table, print_json
from qbayes.cli.inputs import check_writable
from qbayes.cli.options import AsJson
from qbayes.errors import BadFile, BadInput

if TYPE_CHECKING:
    from rich.table import Table

    from qbayes.lab.analysis.checks import Check
    from qbayes.lab.analysis.frame import Frame
    from qbayes.lab.paper.claims import Verdict
    from qbayes.lab.study.run import Outcome

STUDIES = ("digits", "diabetes")
_MARKER = ".qbayes-demo"
_FIGURE = "digits.png"


def demo(
    folder: Annotated[Path, Option("--out", help="Folder for the stores, pages and figure.")] = Path(
        "runs/demo"
    ),
    study: Annotated[list[str] | None, Option(help="Studies to run instead of digits and diabetes.")] = None,
    workers: Annotated[int | None, Option(min=1, help="Processes at once.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run the studies 'digits' and 'diabetes': four methods, float and 8 to 2 bits, and their reports.

    It takes a few minutes on two cores and needs no data and no network connection, but matplotlib. Stopped,
    it goes on when it is called again.

    \b
    Example:
      qbayes demo --out runs/demo
    """
    if importlib.util.find_spec("matplotlib") is None:
        do = "pip install 'qbayes[report]'"
        raise BadInput("the demo draws with matplotlib", "it is not installed", do)
    check_demo_folder(folder)
    from qbayes.cli.commands.study_progress import watching
    from qbayes.lab.analysis.checks import check_all
    from qbayes.lab.analysis.frame import Frame
    from qbayes.lab.paper.claims import judge_all
    from qbayes.lab.paper.section import register_claims
    from qbayes.lab.report.page.page import write_report
    from qbayes.lab.study.run import run_study
    from qbayes.lab.study.spec.study import Study, study_file
    from qbayes.posterior.storage.save import write_atomically

    register_claims()
    studies = [Study.read(study_file(name)) for name in study or STUDIES]
    write_atomically(folder / _MARKER, b"made by 'qbayes demo', which replaces its own files here\n")
    shown: list[_Shown] = []
    for one in studies:
        store = folder / one.name
        with watching(one.name, enabled=not as_json) as watch:
            outcome = run_study(one, store, device="cpu", workers=workers, watch=watch)
        frame = Frame.read(store)
        page = write_report(frame, store / "report", static=False)
        shown.append(_Shown(one.name, outcome, frame, page, judge_all(frame), check_all(frame)))
    figure = _figure(folder, [each.frame for each in shown])
    if as_json:
        print_json({"folder": str(folder), "figure": figure, "studies": [each.to_json() for each in shown]})
        return
    for each in shown:
        each.print_verdict()
    if figure is not None:
        out().print(f"figure      {figure}")
    for each in shown:
        out().print(f"the report  {each.page}")


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


@dataclass(frozen=True)
class _Shown:
    """A study that ran, with what its numbers say."""

    name: str
    outcome: "Outcome"
    frame: "Frame"
    page: Path
    verdicts: "Sequence[Verdict]"
    checks: "Sequence[Check]"

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.name,
            "runs": self.outcome.planned,
            "done": self.outcome.done,
            "failed": dict(self.outcome.reasons),
            "seconds": round(self.outcome.seconds, 1),
            "report": str(self.page),
            "claims": {verdict.id: verdict.verdict for verdict in self.verdicts},
            "checks_failed": [check.id for check in self.checks if not check.passed],
        }

    def print_verdict(self) -> None:
        out().print(_table(self.name, self.frame))
        out().print(losses(self.frame))
        out().print(
            f"of the paper's claims {self._ids('holds')} hold here, {self._ids('does not hold')} do not, "
            f"{self._ids('no difference that matters')} show no difference that matters, "
            "and there is not enough data for the others"
        )
        for check in self.checks:
            if not check.passed:
                note(f"{check.id}  {check.title}: {check.found}")

    def _ids(self, verdict: str) -> str:
        return ", ".join(one.id for one in self.verdicts if one.verdict == verdict) or "none"


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
        parts.append(f"{width} {_loss_text(frame, score, worst, lost[worst])}")
    what = "points of error" if score == "error" else "% of its RMSE in float"
    return f"the most that a method loses, in {what}: {', '.join(parts)}" if parts else "float alone was run"


def _loss_text(frame: "Frame", score: str, method: str, lost: float) -> str:
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


def _table(study: str, frame: "Frame") -> "Table":
    """The mean over seeds of the main score, by method and precision."""
    from qbayes.metrics import metric

    score, widths = main_score(frame), _widths(frame)
    rows: list[list[str]] = []
    for method in frame.values("method"):
        there = [bool(frame.where(method=method, precision=width).rows) for width in widths]
        cells = [
            metric(score).show(_mean(frame, score, method, width)) if known else "–"
            for width, known in zip(widths, there, strict=True)
        ]
        rows.append([str(method), *cells])
    title = f"{study}: {metric(score).label} by precision, mean of seeds"
    return plain_table(["method", *widths], rows, title=title, right=widths)


if __name__ == "__main__":
    from qbayes.cli import main

    sys.exit(main(["demo", *sys.argv[1:]]))
