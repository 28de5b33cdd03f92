"""``qbayes study export``: the results of a study as one small CSV, to publish."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qbayes.cli.commands.study import StoreArgument
from qbayes.cli.console import out

_DIGITS = 6  # as in qbayes.lab.report.export_csv, which --help does not import


def export(
    store: StoreArgument,
    file: Annotated[Path, Argument(metavar="FILE", help="The CSV to write; one that is there goes.")],
    digits: Annotated[int, Option(min=3, max=17, help="Significant digits of scores.")] = _DIGITS,
    leave_out: Annotated[
        list[str] | None, Option("--leave-out", help="A score or cost that nobody needs; repeatable.")
    ] = None,
    candidates: Annotated[
        bool, Option("--candidates", help="Instead: the held-out scores of the candidates of a choice.")
    ] = False,
) -> None:
    """Write the results as one small CSV, from which the report can be made again.

    What is the same in every row, or follows from the precision or the split, is said once, in the lines
    behind # at the top. Nothing of single test rows is in it.

    \b
    Examples:
      qbayes study export runs/uci uci.csv
      qbayes study report uci.csv --out report
      qbayes study export runs/uci uci-candidates.csv --candidates
    """
    from qbayes.lab.analysis.frame import Frame
    from qbayes.lab.report.export_csv import publish

    frame = Frame.read(store)
    if candidates:
        frame = frame.of_candidates()
    publish(frame, file, digits=digits, leave_out=leave_out or ())
    runs = len(frame.rows) + len(frame.failed)
    out().print(f"{runs:,} runs in {file}, {file.stat().st_size / 1000:,.0f} kB")
