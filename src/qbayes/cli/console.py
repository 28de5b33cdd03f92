"""What the commands share of the terminal: where output goes, and how errors end a command.

Results go to standard output, messages to standard error, so that ``--json`` gives one clean document.
"""

import json
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from typer.main import get_command

from qbayes.errors import BadInput, QbayesError, nearest, unknown_name
from qbayes.options import RENAMED

if TYPE_CHECKING:
    from rich.table import Table

INTERRUPTED = 130
TIME_IS_UP = 3
# typer brings click's errors along, or raises those of click itself, by its version: both have this base.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
# Wide enough for the tables where no terminal says how wide it is.
_WIDTH = 120


def out() -> Console:
    """Standard output, for results."""
    return _console(sys.stdout.isatty())


def err() -> Console:
    """Standard error, for messages."""
    return _console(sys.stderr.isatty(), stderr=True)


def _console(terminal: bool, *, stderr: bool = False) -> Console:
    width = None if terminal or "COLUMNS" in os.environ else _WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


def note(message: str) -> None:
    """A message for people, beside the results."""
    err().print(_printable(message))


def plain_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    right: Collection[str] = (),
    whole: Collection[str] = (),
) -> "Table":
    """A table without frames; ``right`` columns hold numbers, ``whole`` ones are never broken into lines."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name in whole)
    for row in rows:
        table.add_row(*row)
    return table


def plural(count: int, word: str) -> str:
    """``1 member``, ``2 members``."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output; JSON has no NaN, so there is none in it."""
    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def run_guarded(app: typer.Typer, argv: Sequence[str] | None) -> int:
    """Run the command; every way it can end becomes a readable message and an exit code."""
    sys.excepthook = report_bug
    try:
        ended = get_command(app)(args=argv, prog_name="qbayes", standalone_mode=False)
    except QbayesError as error:
        return report(error)
    except _UsageError as error:
        return report(usage_error(error))
    except (typer.Abort, KeyboardInterrupt):
        ended = INTERRUPTED
    if ended == INTERRUPTED:
        note("interrupted")
    # commands return nothing: a number is the exit code of one that left early.
    return ended if isinstance(ended, int) else 0


def report(error: QbayesError) -> int:
    """Print the three parts on standard error; with QBAYES_DEBUG the traceback before them."""
    if _debugging():
        traceback.print_exception(error)
    label = "stopped" if error.exit_code == INTERRUPTED else "error"
    console = err()
    console.print(f"{label}: ", style="bold red", end="")
    console.print(_printable(str(error)))
    return error.exit_code


def _printable(text: str) -> str:
    """Without what a terminal takes for a command: a message may quote a stranger's file."""
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)


def report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python calls for an error that nobody foresaw, before it exits with 1."""
    if _debugging():
        traceback.print_exception(kind, error, trace)
        return
    first = (str(error).splitlines() or [""])[0]
    if _is_memory(kind, first):
        message = (
            f"out of memory: {first}\n  do:  use a smaller --batch-size, fewer --draws, or another --device"
        )
    else:
        message = (
            f"unexpected {kind.__name__}: {first}\n"
            "  this is a bug in qbayes, or in a network of your own\n"
            "  do:  run it again with QBAYES_DEBUG=1 for the traceback, and report it"
        )
    note(f"error: {message}")


def _is_memory(kind: type[BaseException], first: str) -> bool:
    """Whether there was no memory: on a CPU torch has no error of its own for that."""
    named = "OutOfMemory" in kind.__name__ or issubclass(kind, MemoryError)
    return named or "can't allocate memory" in first or "could not create a memory" in first


def _debugging() -> bool:
    return os.environ.get("QBAYES_DEBUG", "") not in ("", "0")


def usage_error(error: Exception) -> BadInput:
    """typer's complaint about the command line in three parts, with the nearest spelling."""
    context: Any = getattr(error, "ctx", None)
    message = str(getattr(error, "format_message", error.__str__)())
    if context is None:
        return BadInput("the command line must be complete and right", message, "see 'qbayes --help'")
    path = context.command_path
    if hasattr(error, "possibilities"):
        known = [name for parameter in context.command.params for name in parameter.opts if name[0] == "-"]
        option = str(getattr(error, "option_name", ""))
        now = RENAMED.get(option.lstrip("-").replace("-", "_"), "").replace("_", "-")
        if f"--{now}" in known:
            must = f"an option of '{path}' must have its present name"
            return BadInput(must, f"'{option}'", f"write '--{now}', its name now; see '{path} --help'")
        wrong = unknown_name(f"option of '{path}'", option, known)
        return BadInput(wrong.must, wrong.got, wrong.do + f"; see '{path} --help'")
    commands = getattr(context.command, "commands", {})
    named = re.search(r"command '([^']*)'", message)
    if commands and named:
        return unknown_name(f"command of '{path}'", named[1], commands)
    if not getattr(error, "message", message).strip() or message.startswith("Missing"):
        return BadInput(f"'{path}' needs all its parts", message, f"see '{path} --help' for an example")
    return BadInput(f"the arguments of '{path}' must be valid", message, f"see '{path} --help'")


def check_choice(what: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise BadInput(f"{what} must be one of {', '.join(known)}", f"'{value}'", nearest(value, known))
    return value
