"""``qbayes export``: a program in another form, for runtimes and machines that have no qbayes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from qbayes.cli import options
from qbayes.cli.console import out, print_json
from qbayes.cli.inputs import open_float_posterior, open_program, open_task, parse_pixels, recorded_task
from qbayes.errors import BadInput

if TYPE_CHECKING:
    from qbayes import NetworkPosterior, Program, Task


@options.with_flags_of_targets("given")
def export(
    program: Annotated[
        Path, Argument(metavar="PROGRAM", help="A .qbayes file, or the folder of 'qbayes quantize'.")
    ],
    place: Annotated[
        Path, Argument(metavar="PLACE", help="onnx: the file to write. c, web: a new or empty folder.")
    ],
    target: Annotated[str, Option(help="What to export to: see 'qbayes list targets'.")],
    given: options.Given = options.NOTHING,
    data_dir: options.DataDir = None,
    network: options.OwnNetwork = None,
    force: Annotated[bool, Option("--force", help="Replace files that are there.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Turn a program into files that run without qbayes, with its randomness intact.

    \b
    Examples:
      qbayes export mcd.qbayes mcd.onnx --target onnx --draws 50 --outputs mean,entropy
      qbayes export mcd.qbayes mcd.onnx --target onnx --dialect qdq --noise inputs
      qbayes export mcd.qbayes firmware/network --target c --flash 256k --ram 64k --name gesture
      qbayes export mcd-w8a8.qbayes page --target web --beside mcd-w4a4.qbayes --float-posterior runs/mcd
    """
    from qbayes.export import TARGETS, check_options, make_target

    check_options(target, given)
    opened = open_program(program, network)
    reader = _Reader(opened, network, data_dir)
    chosen = make_target(target, **TARGETS[target].read(given, reader))
    written = chosen.write(opened, place, overwrite=force)
    if as_json:
        print_json(written.facts)
    else:
        out().print("\n".join(written.lines))


@dataclass(frozen=True)
class _Reader:
    """Opens what options of targets name; a network of the user's is imported where they name it."""

    exported: "Program"
    network: str | None
    data_dir: Path | None

    def program(self, path: Path) -> "Program":
        return open_program(path, None)

    def float_posterior(self, folder: Path) -> "NetworkPosterior":
        return open_float_posterior(folder, self.network)

    def task(self) -> "Task":
        name, task_options = recorded_task(self.exported)
        if not name:
            raise BadInput(
                "examples need the task that the program was made on",
                "none is recorded",
                "leave --examples out",
            )
        return open_task(name, self.data_dir, task_options)

    def span(self, text: str) -> tuple[float, float]:
        return parse_pixels(text)
