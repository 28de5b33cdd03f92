"""``qbayes study``: plan, run, follow and report a study that is written as TOML."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from qbayes.cli.console import TIME_IS_UP, check_choice, note, out, plain_table, print_json
from qbayes.cli.options import AsJson, DataDir, Device, Quiet
from qbayes.errors import BadInput

if TYPE_CHECKING:
    from qbayes.lab.analysis.compare import Comparison
    from qbayes.lab.study.plan.plan import Plan
    from qbayes.lab.study.run import Outcome
    from qbayes.lab.study.spec.study import Study

study_app = typer.Typer(
    no_args_is_help=True, help="Studies: one run, the axes that vary, and a page that answers the question."
)
File = Annotated[Path, Argument(metavar="FILE", help="A TOML file, or the name of a shipped study.")]
StoreOption = Annotated[Path | None, Option("--store", help="Folder of the results; by default runs/NAME.")]
StoreArgument = Annotated[
    Path, Argument(metavar="STORE", help="Folder of a study's results, or a CSV of them.")
]


@study_app.command("run")
def run(
    file: File,
    store: StoreOption = None,
    executor: Annotated[str, Option(help="local, or ray.")] = "local",
    address: Annotated[str | None, Option(help="Of a Ray cluster, for --executor ray.")] = None,
    workers: Annotated[int | None, Option(min=1, help="Processes at once.")] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    retry: Annotated[bool, Option("--retry", help="Try failed runs again.")] = False,
    stack: Annotated[bool, Option(help="Train small networks of one shape together.")] = True,
    lenders: Annotated[
        list[Path] | None,
        Option("--from", help="Another study's results: what it has is not done again; repeatable."),
    ] = None,
    minutes: Annotated[
        float | None, Option(help="Stop after so long; the same command goes on, to the same bits.")
    ] = None,
    report: Annotated[bool, Option(help="Write the page at the end.")] = True,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run what is left of a study; the same command again goes on where it stopped.

    A run that fails is recorded with its reason and does not stop the others. Ctrl-C and --minutes stop
    behind a step; a kill or a power cut cost at most the minute since the last checkpoint. The exit code is 3
    where time was up and something is left.

    \b
    Examples:
      qbayes study run studies/digits.toml
      qbayes study run studies/mnist.toml --store runs/mnist --data-dir ~/data --device cuda --workers 4
      qbayes study run studies/uci.toml --executor ray --address auto
      qbayes study run studies/cifar10-gpu-ablation.toml --device cuda --from runs/cifar10-gpu
      qbayes study run studies/cifar10-gpu.toml --device cuda --minutes 30
    """
    from qbayes.cli.commands.study_progress import watching
    from qbayes.lab.study.executors.base import EXECUTORS
    from qbayes.lab.study.run import run_study

    study = _read(file)
    check_choice("the executor", executor, tuple(EXECUTORS))
    if address is not None and executor != "ray":
        raise BadInput("an address belongs to Ray", f"--executor {executor}", "add --executor ray")
    folder = store or Path("runs") / study.name
    with watching(study.name, enabled=not quiet and not as_json) as watch:
        outcome = run_study(
            study,
            folder,
            data_dir=data_dir,
            device=device,
            workers=workers,
            executor=executor,
            options={} if address is None else {"address": address},
            retry=retry,
            stack=stack,
            lenders=lenders or (),
            minutes=minutes,
            watch=watch,
        )
    page = _report(folder, static=False) if report else None
    _print_outcome(outcome, folder, page, as_json=as_json, quiet=quiet)
    if outcome.left:
        raise typer.Exit(TIME_IS_UP)
    if outcome.failed:
        raise typer.Exit(1)


@study_app.command("plan")
def plan(file: File, store: StoreOption = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """What would run, what is there already, and how long it may take; nothing is started.

    \b
    Example:
      qbayes study plan studies/digits.toml
    """
    study = _read(file)
    folder = store or Path("runs") / study.name
    _print_plan(study, _plan(study, folder, data_dir), folder, as_json=as_json)


@study_app.command("status")
def status(store: StoreArgument, as_json: AsJson = False) -> None:
    """How far a study is, and what failed.

    \b
    Example:
      qbayes study status runs/digits
    """
    from qbayes.lab.analysis.frame import Frame

    frame = Frame.read(store)
    found = {
        "store": str(store),
        "study": frame.name,
        "runs": frame.planned,
        "done": len(frame.rows),
        "failed": {str(row["run"]): str(row.get("reason", "")) for row in frame.failed},
        "candidates": len(frame.candidates),
    }
    if as_json:
        print_json(found)
        return
    left = frame.planned - len(frame.rows) - len(frame.failed)
    out().print(f"{frame.name}: {len(frame.rows)} of {frame.planned} runs done, {left} left")
    if frame.candidates:
        out().print(f"{len(frame.candidates)} candidates were scored on held-out rows")
    for row in frame.failed:
        out().print(f"failed  {_run_name(row)}: {row.get('reason', '')}")
    if frame.failed:
        out().print("next: qbayes study run FILE --retry tries them again")


@study_app.command("report")
def report(
    store: StoreArgument,
    folder: Annotated[
        Path | None, Option("--out", help="Folder for the page; by default STORE/report. A CSV needs it.")
    ] = None,
    static: Annotated[bool, Option(help="Figures as SVG and PDF too.")] = False,
) -> None:
    """Write the page of a study, finished or not: figures, claims, checks and the table.

    \b
    Examples:
      qbayes study report runs/digits --static
      qbayes study report docs/results/uci.csv --out runs/uci-report
    """
    out().print(f"the report is {_report(store, static=static, folder=folder)}")


@study_app.command("compare")
def compare(
    before: StoreArgument,
    after: Annotated[Path, Argument(metavar="STORE", help="The other one.")],
    as_json: AsJson = False,
) -> None:
    """What moved between two stores (or published tables), run by run, with intervals.

    \b
    Example:
      qbayes study compare runs/digits runs/digits-new
    """
    from qbayes.lab.analysis.compare import compare as compare_frames
    from qbayes.lab.analysis.frame import Frame

    found = compare_frames(Frame.read(before), Frame.read(after))
    if as_json:
        print_json(found.to_json())
    else:
        _print_comparison(found)


def _print_comparison(found: "Comparison") -> None:
    """What moved, first; then how much did not, and what has no partner."""
    rows: list[tuple[str, ...]] = []
    for one in found.moved:
        interval = "–" if one.low is None or one.high is None else f"{one.low:+.4g} … {one.high:+.4g}"
        verdict = {True: "better", False: "worse", None: ""}[one.better]
        numbers = (f"{one.before:.4g}", f"{one.after:.4g}", f"{one.difference:+.4g}", interval, str(one.runs))
        rows.append((one.subject, one.metric, *numbers, verdict))
    out().print(f"{found.paired:,} runs are in both; {len(found.moved)} of {len(found.changes)} scores moved")
    if found.moved:
        numbers = ("before", "after", "difference", "95 % interval", "runs")
        out().print(plain_table(("condition", "score", *numbers, ""), rows, right=numbers))
    for name, runs in (("before", found.only_before), ("after", found.only_after)):
        if runs:
            shown = "; ".join(runs[:3]) + (f"; … {len(runs)} in all" if len(runs) > 3 else "")
            out().print(f"only {name}: {shown}")


def _read(file: Path) -> "Study":
    from qbayes.lab.study.spec.study import Study, study_file

    return Study.read(study_file(file))


def _plan(study: "Study", folder: Path, data_dir: Path | None) -> "Plan":
    from qbayes.lab.study.plan.plan import make_plan
    from qbayes.lab.study.plan.tasks import Tasks
    from qbayes.lab.study.store.store import Store

    store = Store(folder)
    if store.header() is not None:
        store.check_study(study)
    return make_plan(study, Tasks(data_dir, "auto"), store)


def _print_plan(study: "Study", found: "Plan", folder: Path, *, as_json: bool) -> None:
    from qbayes.lab.study.plan.plan import Estimate
    from qbayes.lab.study.store.keys import STAGES
    from qbayes.lab.study.store.store import Store

    seconds, unknown = Estimate(Store(folder)).left(found)
    stages = {stage: {"stages": len(found.keys(stage)), "left": len(found.left(stage))} for stage in STAGES}
    if as_json:
        print_json(
            {
                "study": study.name,
                "store": str(folder),
                "runs": len(found.runs) + found.waiting,
                "runs_that_wait_for_a_choice": found.waiting,
                "stages": stages,
                "seconds_left_on_one_worker": round(seconds, 1),
                "stages_never_measured": unknown,
            }
        )
        return
    out().print(f"{study.name}: {study.question}\n{len(found.runs) + found.waiting:,} runs in {folder}")
    if found.waiting:
        out().print(f"{found.waiting:,} of them wait until held-out rows have chosen their hyper-parameters")
    for stage, numbers in stages.items():
        out().print(f"  {stage:10} {numbers['stages']:7,} stages, {numbers['left']:7,} left")
    out().print(_time_left(seconds, unknown))


def _time_left(seconds: float, unknown: int) -> str:
    measured = f"about {time_text(seconds)} on one worker, by the stages measured so far" if seconds else ""
    never = f"{unknown:,} stages of kinds that were never measured here" if unknown else ""
    return "; ".join(filter(None, (measured, never))) or "nothing is left to do"


def time_text(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _report(store: Path, *, static: bool, folder: Path | None = None) -> Path:
    from qbayes.lab.analysis.frame import Frame
    from qbayes.lab.paper.section import register_claims
    from qbayes.lab.report.page.page import write_report

    register_claims()
    frame = Frame.read(store)
    if folder is None and frame.table is not None:
        raise BadInput(
            "the report of a table needs a folder", f"{store} is a file", "add --out FOLDER for the page"
        )
    return write_report(frame, folder or store / "report", static=static)


def _print_outcome(
    outcome: "Outcome", folder: Path, page: Path | None, *, as_json: bool, quiet: bool
) -> None:
    if as_json:
        print_json(
            {
                "store": str(folder),
                "report": None if page is None else str(page),
                "runs": outcome.planned,
                "done": outcome.done,
                "left": outcome.left,
                "failed": dict(outcome.reasons),
                "notes": list(outcome.notes),
                "seconds": round(outcome.seconds, 1),
            }
        )
        return
    for damage in outcome.notes:
        note(f"damaged  {damage}")
    if quiet:
        return
    out().print(
        f"{outcome.done:,} of {outcome.planned:,} runs done in {time_text(outcome.seconds)}; "
        f"the table is {folder / 'results.csv'}"
    )
    if outcome.left:
        note(f"time was up: {outcome.left:,} runs are left, and the same command goes on with them")
    for key, reason in list(outcome.reasons.items())[:5]:
        note(f"failed  {key}: {reason}")
    if len(outcome.reasons) > 5:
        note(f"… and {len(outcome.reasons) - 5} more: qbayes study status {folder}")
    if page is not None:
        out().print(f"the report is {page}")


def _run_name(row: Mapping[str, Any]) -> str:
    fold = "" if row.get("fold") is None else f" fold {row['fold']}"
    return f"{row['method']} on {row['task']}{fold}, {row['precision']}, seed {row['seed']}"
