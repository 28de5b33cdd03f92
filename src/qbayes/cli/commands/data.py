"""``qbayes data``: which data sets are there, fetching them, checking them."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from qbayes.cli.console import err, note, out, plain_table, print_json
from qbayes.cli.options import AsJson

if TYPE_CHECKING:
    from rich.progress import Progress

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

DataDir = Annotated[Path | None, Option(help="Folder of the data sets (else QBAYES_DATA, else a cache).")]


@data_app.callback()
def data() -> None:
    """List, fetch and verify data sets.

    \b
    Examples:
      qbayes data list
      qbayes data fetch mnist --data-dir data
      qbayes data verify mnist
    """


@data_app.command("list")
def list_data(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Data sets, whether their files are there, and their terms.

    \b
    Example:
      qbayes data list
    """
    from qbayes.tasks import DATASETS, data_folder

    folder = data_folder(data_dir)
    rows: list[dict[str, Any]] = []
    for name in DATASETS:
        member = DATASETS[name]
        there = sum(file.find(member.folder(folder)) is not None for file in member.files)
        described = {"name": name, "kind": member.kind, "summary": member.summary, "terms": member.terms}
        rows.append({**described, "files": len(member.files), "files_there": there})
    if as_json:
        print_json({"data_folder": str(folder), "data_sets": rows})
        return
    cells: list[tuple[str, ...]] = []
    for row in rows:
        there = f"{row['files_there']} of {row['files']}" if row["files"] else "bundled"
        cells.append((row["name"], row["kind"], there, row["terms"], row["summary"]))
    out().print(f"data folder: {folder}")
    columns = ("name", "kind", "files there", "terms", "what")
    out().print(plain_table(columns, cells, whole=("name", "kind")))
    out().print("fetch one with: qbayes data fetch NAME")


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, Argument(help="Data set: mnist, uci, uci/boston, …")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Download what is missing of a data set; checksums are checked, nothing is overwritten.

    A broken download goes on where it stopped when the command is run again.

    \b
    Example:
      qbayes data fetch uci/boston --data-dir data
    """
    from qbayes.tasks import data_folder, fetch

    with _bar() as bar:
        files = fetch(name, data_dir, None if bar is None else _show_on(bar))
    folder = data_folder(data_dir)
    if as_json:
        listed = [{"file": file, "status": status} for file, status in files]
        print_json({"data_folder": str(folder), "data_set": name, "files": listed})
        return
    for file, status in files:
        out().print(f"{status:8} {file}")
    out().print(f"{name} is in {folder}" if files else f"{name} comes with scikit-learn: nothing to fetch")


@data_app.command("verify")
def verify_data(
    name: Annotated[str | None, Argument(help="Data set; by default all of them.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Say of each file whether it is official, other (right form, other bytes), damaged or missing.

    Exit code 1 if a file is damaged, or missing from the data set that was named.

    \b
    Example:
      qbayes data verify mnist
    """
    from qbayes.tasks import DATASETS, data_folder, verify

    names = [name] if name is not None else list(DATASETS)
    found = [(one, file, status) for one in names for file, status in verify(one, data_dir)]
    if as_json:
        files = [{"data_set": one, "file": file, "status": status} for one, file, status in found]
        print_json({"data_folder": str(data_folder(data_dir)), "files": files})
    for one, file, status in [] if as_json else found:
        out().print(f"{status:8} {one}: {file}")
    bad = [
        file for _, file, status in found if status == "damaged" or (status == "missing" and name is not None)
    ]
    if bad:
        note(f"{len(bad)} of {len(found)} files damaged or missing in {data_folder(data_dir)}")
        raise typer.Exit(1)


@contextlib.contextmanager
def _bar() -> "Iterator[Progress | None]":
    """A progress bar on standard error while a terminal looks on, else nothing."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err(), transient=True) as bar:
        yield bar


def _show_on(bar: "Progress") -> Callable[[str, int, int | None], None]:
    tasks: dict[str, Any] = {}

    def show(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(name, total=total)
        bar.update(tasks[name], completed=done, total=total)

    return show
