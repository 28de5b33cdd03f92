"""The folder of a run that trains: free at the start, a checkpoint in it while it lasts, clean at the end."""

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qbayes.cli.console import note
from qbayes.cli.inputs import check_writable
from qbayes.errors import BadFile, Interrupted, RunFailed

if TYPE_CHECKING:
    from qbayes.training.checkpoint import Checkpoint

CHECKPOINT = "checkpoint"


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """The folder must be free, or hold what the user asked to continue or replace."""
    from qbayes.posterior.storage.save import HEADER, check_output_folder

    waiting = (folder / CHECKPOINT).is_dir()
    if waiting and not (folder / HEADER).exists():
        if not (resume or overwrite):
            raise BadFile(
                "the output folder must be new or empty",
                f"{folder} holds the checkpoint of an interrupted run",
                "go on with --resume, or start again with --overwrite",
            )
        check_output_folder(folder, overwrite=True)
    else:
        check_output_folder(folder, overwrite=overwrite)
        if resume and not waiting:
            note(f"nothing to resume in {folder}: starting from the beginning")
    check_writable(folder)


@contextlib.contextmanager
def checkpoint_in(out: Path, *, resume: bool) -> Iterator["Checkpoint"]:
    """Where a run leaves its checkpoint, or goes on from it.

    An interrupted run says how to go on; one that failed leaves nothing empty, one that ended no file.
    """
    from qbayes.training.checkpoint import Checkpoint

    if not resume:
        remove_checkpoint(out)
    try:
        yield Checkpoint(out / CHECKPOINT, resume)
    except Interrupted as stopped:
        command = shlex.join(["qbayes", *(part for part in sys.argv[1:] if part != "--resume"), "--resume"])
        raise Interrupted(stopped.must, stopped.got, f"go on with: {command}") from stopped
    except RunFailed:
        for folder in (out / CHECKPOINT, out):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        raise
    remove_checkpoint(out)


def remove_checkpoint(out: Path) -> None:
    """Take away our files, and the folder if nothing else is in it."""
    folder = out / CHECKPOINT
    for kind in ("chain", "member"):
        for file in folder.glob(f"{kind}-*.checkpoint"):
            file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
