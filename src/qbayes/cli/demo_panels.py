"""What the demo's figure shows, from the float posteriors of the digits study."""

from typing import TYPE_CHECKING, Any

from qbayes.cli.demo_figure import NAMES, Panel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qbayes import Task
    from qbayes.lab.analysis.frame import Frame

# The test row that the figure turns: a clear 3, picked because the methods then differ in how sure they are.
_EXAMPLE = 393


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
    turned = posterior.predict(_turned(task), int(row["draws"]), 0)
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

    images = _turned(qb.load_task("digits"))[:, 0].tolist()
    return images, [0.0, *LEVELS["rotation"]]


def _turned(task: "Task") -> Any:
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
