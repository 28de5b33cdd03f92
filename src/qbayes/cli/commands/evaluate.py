"""``qbayes evaluate``: scores of a posterior or program, clean, shifted and against confusion data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from qbayes.cli import options
from qbayes.cli.console import note, out, plain_table, print_json
from qbayes.cli.inputs import (
    bits_label,
    check_new_file,
    open_answering,
    parse_settings,
    recorded_task,
    task_for,
)

if TYPE_CHECKING:
    from rich.table import Table

    from qbayes import NetworkPosterior, ProgramPosterior, Scores, Task


def evaluate(
    posterior: options.Model,
    task: Annotated[str | None, Option(help="Task to score on; by default the one it was fitted on.")] = None,
    task_set: options.TaskSet = None,
    draws: options.Draws = 20,
    seed: options.NoiseSeed = 0,
    split: Annotated[str, Option(help="train, validation or test.")] = "test",
    shifts: Annotated[bool, Option(help="Scores under shifted inputs.")] = True,
    confusion: Annotated[bool, Option(help="Scores against confusion data.")] = True,
    shift_rows: Annotated[
        int | None, Option(help="Rows that are shifted, a fixed choice; by default all.")
    ] = None,
    ood_rows: Annotated[int | None, Option(help="Confusion rows, a fixed choice; by default all.")] = None,
    backend: options.BackendName = None,
    data_dir: options.DataDir = None,
    network: options.OwnNetwork = None,
    device: options.Device = "auto",
    out_file: Annotated[Path | None, Option("--out", help="File for the scores: scores.json.")] = None,
    overwrite: options.OverwriteFile = False,
    as_json: options.AsJson = False,
) -> None:
    """Score a posterior or a program on its task: clean, under shifts, and against confusion data.

    \b
    Examples:
      qbayes evaluate runs/mcd
      qbayes evaluate runs/mcd --draws 50 --no-shifts --out scores.json
      qbayes evaluate runs/own --network my_package.nets:small --json
      qbayes evaluate model.qbayes --backend reference
    """
    from qbayes.metrics import evaluate as score
    from qbayes.posterior.storage.save import write_atomically

    if out_file is not None:
        check_new_file(out_file, (".json",), overwrite=overwrite)
    loaded = open_answering(posterior, network, device, backend)
    chosen = task_for(loaded, task, data_dir, parse_settings("--task-set", task_set or []))
    note_other_data(loaded, chosen)
    scores = score(
        loaded,
        chosen,
        draws,
        seed,
        split=split,
        shifts=shifts,
        confusion=confusion,
        shift_rows=shift_rows,
        ood_rows=ood_rows,
        meta={"folder": str(posterior), **how_it_runs(loaded)},
    )
    document = scores.to_json()
    if out_file is not None:
        write_atomically(out_file, json.dumps(document, indent=1, allow_nan=False).encode())
        note(f"scores in {out_file}")
    if as_json:
        print_json(document)
    else:
        _print_scores(scores)


def how_it_runs(posterior: "NetworkPosterior | ProgramPosterior") -> dict[str, str]:
    """Precision and backend, where there are any: scores of the same network in another form differ."""
    from qbayes import ProgramPosterior

    if isinstance(posterior, ProgramPosterior):
        return {"precision": bits_label(posterior.program.precision), "backend": posterior.backend.name}
    if posterior.quantised is not None:
        return {"precision": bits_label(posterior.quantised), "backend": "fake-quantised"}
    return {}


def note_other_data(posterior: "NetworkPosterior | ProgramPosterior", task: "Task") -> None:
    """Other data under the recorded name is worth a word."""
    record = posterior.provenance.get("task", {})
    known = recorded_task(posterior)[0] == task.provenance["task"] and "fingerprint" in record
    if known and record["fingerprint"] != task.fingerprint:
        note(
            f"note: the data or options of '{task.name}' differ from those that this posterior was fitted on"
        )


def _print_scores(scores: "Scores") -> None:
    meta, console = scores.meta, out()
    method = meta["method"]["name"] if isinstance(meta["method"], dict) else "posterior"
    form = f" at {meta['precision']}, {meta['backend']}," if "backend" in meta else ""
    console.print(
        f"{method}{form} on {meta['task']}: {meta['rows']:,} {meta['split']} rows, "
        f"{meta['draws']} draws, seed {meta['seed']}"
    )
    console.print(_column("clean", scores.clean, ""))
    for name in scores.shifted:
        console.print(_levels(name, scores))
    if scores.unshifted:
        console.print(f"shifted were {meta['shift_rows']:,} of the rows: 'none' is what these score")
    if scores.confusion:
        console.print(_column(f"against {meta['confusion']}", scores.confusion, "confusion/"))


def _column(title: str, numbers: dict[str, float], prefix: str) -> "Table":
    from qbayes.metrics import metric

    rows: list[tuple[str, ...]] = []
    for name, value in numbers.items():
        shown = metric(prefix + name)
        rows.append((shown.label, shown.show(value), "" if shown.unit == "share" else shown.unit))
    return _table(title, ["score", "value", "unit"], rows)


def _levels(name: str, scores: "Scores") -> "Table":
    from qbayes.metrics import metric
    from qbayes.tasks.shifts import LEVELS

    rows: list[tuple[str, ...]] = []
    for key, clean in (scores.unshifted or scores.clean).items():
        levels = [numbers[key] for _, numbers in sorted(scores.shifted[name].items())]
        rows.append((metric(key).label, *map(metric(key).show, [clean, *levels])))
    return _table(f"under {name}", ["score", "none", *(f"{amount:g}" for amount in LEVELS[name])], rows)


def _table(title: str, columns: list[str], rows: list[tuple[str, ...]]) -> "Table":
    return plain_table(columns, rows, title=title, right=columns[1:], whole=columns)
