"""``qbayes demo``: the four methods on the embedded digits, in float and on integers, in two minutes."""

import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbayes.cli.console import note, out, print_json
from qbayes.cli.inputs import check_writable
from qbayes.errors import BadFile, BadInput

if TYPE_CHECKING:
    from qbayes import NetworkPosterior, Scores, Task
    from qbayes.cli.demo_figure import Panel

# Small budgets that train the embedded digits to 2 or 3 % error: method, its options, its training.
RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pointwise": ({}, {"epochs": 30, "learning_rate": 1e-3}),
    "mcd": ({"rate": 0.2}, {"epochs": 40, "learning_rate": 1e-3}),
    "bbb": ({"prior_sigma": 0.1, "kl_weight": 0.1}, {"epochs": 40, "learning_rate": 2e-3}),
    "sghmc": ({"members": 20, "every": 1}, {"epochs": 50, "learning_rate": 1e-2, "schedule": "constant"}),
}
_BATCH = 64
_MARKER = ".qbayes-demo"
_SCORES, _INTEGERS, _FIGURE = "scores.json", "integers.json", "digits.png"
# The test row that the figure turns: a clear 3, picked because the methods then differ in how sure they are.
_EXAMPLE = 393


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for posteriors, scores and figure.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of training and prediction.")] = 0,
    epochs: Annotated[
        int | None, typer.Option(help="Fewer (or more) epochs for every method; by default 30 to 50.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws from each posterior.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Train the four methods on the embedded digits, quantise them; print their scores and draw a figure.

    It takes about two minutes on two cores and needs no data and no network connection, but matplotlib.

    \b
    Example:
      qbayes demo --out runs/demo
    """
    _check_plotting()
    check_demo_folder(folder)
    from qbayes.cli.demo_figure import draw
    from qbayes.cli.demo_integers import print_widths, quantised_rows
    from qbayes.noise import check_seed
    from qbayes.posterior.save import WEIGHTS, save_posterior, write_atomically
    from qbayes.tasks import load_task

    check_seed(seed)
    task = load_task("digits")
    write_atomically(folder / _MARKER, b"made by 'qbayes demo', which replaces its own files here\n")
    panels: list[Panel] = []
    scores: dict[str, Any] = {}
    integers: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    with _one_thread():
        for name in RECIPES:
            posterior, measured, seconds = _run(name, task, seed, draws, epochs)
            save_posterior(posterior, folder / name, overwrite=True)
            panels.append(_panel(name, posterior, measured, task, seconds))
            scores[name] = {**measured.to_json(), "seconds": round(seconds, 2)}
            sizes[name] = (folder / name / WEIGHTS).stat().st_size
            note(f"{name:9} {seconds:5.1f} s")
            integers[name] = quantised_rows(name, posterior, task, folder, draws, seed)
    write_atomically(folder / _INTEGERS, json.dumps(integers, indent=1, allow_nan=False).encode())
    write_atomically(folder / _SCORES, json.dumps(scores, indent=1, allow_nan=False).encode())
    write_atomically(folder / _FIGURE, draw(panels, _turned_images(task), _angles()))
    if as_json:
        found = {"folder": str(folder), "figure": str(folder / _FIGURE), "scores": scores}
        print_json({**found, "integers": integers})
    else:
        _print_table(panels)
        print_widths(scores, integers, sizes)
        _print_files(folder)


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


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from more, and sums come out the same whatever the number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(
    name: str, task: "Task", seed: int, draws: int, epochs: int | None
) -> tuple["NetworkPosterior", "Scores", float]:
    import qbayes as qb

    options, training = RECIPES[name]
    if epochs is not None:
        training = {**training, "epochs": epochs}
        # a member an epoch over the second half, as in the full run.
        options = {**options, "members": min(20, max(1, epochs // 2))} if name == "sghmc" else options
    budget = qb.Budget(batch_size=_BATCH, **training)
    begun = time.monotonic()
    posterior = qb.fit(
        lambda: qb.network("lenet", task, style="relu"), task, qb.method(name, **options), budget, seed=seed
    )
    seconds = time.monotonic() - begun
    return posterior, qb.evaluate(posterior, task, draws, seed), seconds


def _panel(
    name: str, posterior: "NetworkPosterior", scores: "Scores", task: "Task", seconds: float
) -> "Panel":
    """The plain numbers that the table and the figure show of one method."""
    import torch

    from qbayes.cli.demo_figure import Panel

    draws, seed = scores.meta["draws"], scores.meta["seed"]
    test = torch.cat([x for x, _ in task.batches("test", 1024)])
    photographs = torch.cat(list(task.confusion_batches(1024))) if task.confusion_name else test[:0]
    turned = posterior.predict(_turned(task), draws, seed)
    levels = [scores.clean, *(numbers for _, numbers in sorted(scores.shifted["rotation"].items()))]
    return Panel(
        name=name,
        error=[numbers["error"] for numbers in levels],
        ece=[numbers["ece"] for numbers in levels],
        test_entropy=posterior.predict(test, draws, seed).entropy.tolist(),
        other_entropy=posterior.predict(photographs, draws, seed).entropy.tolist()
        if len(photographs)
        else [],
        predicted=[turned.labels[k] for k in turned.mean.argmax(-1).tolist()],
        confidence=turned.mean.amax(-1).tolist(),
        truth=turned.labels[_example_label(task)],
        clean=dict(scores.clean),
        confusion=dict(scores.confusion),
        seconds=seconds,
    )


def _turned(task: "Task") -> Any:
    """The example as it is and under the five rotations, ``(6, 1, 8, 8)``."""
    import torch

    from qbayes.tasks.shifts import shift

    x, _ = next(iter(task.batches("test", _EXAMPLE + 1)))
    example = x[_EXAMPLE:]
    assert task.input_range is not None
    low, high = task.input_range
    return torch.cat(
        [example.float(), *(shift(example, "rotation", level, low, high).float() for level in range(1, 6))]
    )


def _example_label(task: "Task") -> int:
    _, y = next(iter(task.batches("test", _EXAMPLE + 1)))
    return int(y[_EXAMPLE])


def _turned_images(task: "Task") -> list[list[list[float]]]:
    return _turned(task)[:, 0].tolist()


def _angles() -> list[float]:
    from qbayes.tasks.shifts import LEVELS

    return [0.0, *LEVELS["rotation"]]


def _print_table(panels: "list[Panel]") -> None:
    from rich import box
    from rich.table import Table

    from qbayes.metrics import metric

    shown = ("error", "nll", "ece", "entropy", "confusion/entropy", "confusion/auroc")
    table = Table(
        title="digits", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False
    )
    table.add_column("method")
    for name in shown:
        label = {"entropy": "entropy, test", "confusion/entropy": "entropy, photos"}.get(
            name, metric(name).label
        )
        table.add_column(label, justify="right")
    table.add_column("seconds", justify="right")
    for panel in panels:
        numbers = panel.clean | {f"confusion/{key}": value for key, value in panel.confusion.items()}
        cells = [metric(name).show(numbers[name]) if name in numbers else "–" for name in shown]
        table.add_row(panel.name, *cells, f"{panel.seconds:.1f}")
    out().print(table)


def _print_files(folder: Path) -> None:
    console = out()
    console.print(f"figure      {folder / _FIGURE}\nscores      {folder / _SCORES}, {folder / _INTEGERS}")
    console.print(f"posteriors  {folder}/{{{','.join(RECIPES)}}}")
    console.print(f"programs    {folder}/METHOD-{{W8A8,W4A4}}.qbayes")
    console.print(f"next: qbayes inspect {folder / 'bbb-W4A4.qbayes'}")


if __name__ == "__main__":
    from qbayes.cli import main

    sys.exit(main(["demo", *sys.argv[1:]]))
