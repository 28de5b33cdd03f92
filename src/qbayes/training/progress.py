"""A progress bar for people at a terminal; silence elsewhere."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TrainingProgress:
    """Shows epoch, loss and time left on standard error while a terminal looks on."""

    def __init__(self, title: str, epochs: int, enabled: bool | None = None) -> None:
        shown = sys.stderr.isatty() if enabled is None else enabled
        self._progress: Progress | None = None
        if shown:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}"),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(title, total=epochs, loss="–")

    def __enter__(self) -> "TrainingProgress":
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, epochs_done: float, loss: float | None) -> None:
        if self._progress is not None:
            shown = "–" if loss is None else f"{loss:.4f}"
            self._progress.update(self._task, completed=epochs_done, loss=shown)
