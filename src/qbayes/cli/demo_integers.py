"""The demo's second half: the four posteriors on integers of 8 and of 4 bits, scored as programs."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbayes.cli.console import note, out

if TYPE_CHECKING:
    from qbayes import NetworkPosterior, Task

# label, bits of weights and activations, epochs of quantisation-aware training (0: calibration alone).
WIDTHS: tuple[tuple[str, int, int], ...] = (("W8A8", 8, 0), ("W4A4", 4, 3))
_BATCH = 64
_SHOWN = ("error", "nll", "ece", "confusion/auroc")


def quantised_rows(
    name: str, posterior: "NetworkPosterior", task: "Task", folder: Path, draws: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Scores of each width, with the program's file and its bytes."""
    import qbayes as qb

    rows: dict[str, dict[str, Any]] = {}
    for label, bits, epochs in WIDTHS:
        begun = time.monotonic()
        budget = qb.qat_budget(epochs=epochs, batch_size=_BATCH)
        precision = qb.Precision(weight=bits, activation=bits)
        quantized = qb.quantize(posterior, task, precision, budget, seed=seed, progress=False)
        program = qb.lower(quantized)
        path = program.save(folder / f"{name}-{label}.qbayes")
        scores = qb.evaluate(qb.load(program), task, draws, seed, shifts=False)
        rows[label] = {
            **scores.to_json(),
            "file": path.name,
            "bytes": path.stat().st_size,
            "seconds": round(time.monotonic() - begun, 2),
        }
        note(f"{name:9} {label} {rows[label]['seconds']:5.1f} s")
    return rows


def print_widths(
    floats: Mapping[str, Mapping[str, Any]],
    quantised: Mapping[str, Mapping[str, Mapping[str, Any]]],
    float_bytes: Mapping[str, int],
) -> None:
    """A table with float, 8 and 4 bits of each method below each other."""
    from rich import box
    from rich.table import Table

    from qbayes.metrics import metric

    table = Table(
        title="the same on integers",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    table.add_column("method")
    table.add_column("numbers")
    for name in _SHOWN:
        table.add_column(metric(name).label, justify="right")
    table.add_column("kB", justify="right")
    for method, widths in quantised.items():
        lines = {"float32": (floats[method], float_bytes[method])}
        lines |= {label: (row, int(row["bytes"])) for label, row in widths.items()}
        for label, (row, size) in lines.items():
            numbers = {**row["clean"], **{f"confusion/{k}": v for k, v in row["confusion"].items()}}
            cells = [metric(name).show(numbers[name]) if name in numbers else "–" for name in _SHOWN]
            table.add_row(method if label == "float32" else "", label, *cells, f"{size / 1000:.0f}")
    out().print(table)
