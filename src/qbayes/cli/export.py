"""``qbayes export``: a program in another form, for a machine that has no qbayes."""

from pathlib import Path
from typing import Annotated

import typer

from qbayes.cli import options
from qbayes.cli.console import out, print_json
from qbayes.cli.inputs import open_program


def export(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM", help="A .qbayes file, or the folder of 'qbayes quantize'.")
    ],
    place: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go: a new or empty folder.")],
    target: Annotated[str, typer.Option(help="What to make: c.")],
    name: Annotated[str | None, typer.Option(help="c: prefix of every function and file.")] = None,
    flash: Annotated[str | None, typer.Option(help="c: most flash that it may take, such as 256k.")] = None,
    ram: Annotated[str | None, typer.Option(help="c: most RAM that it may take, such as 64k.")] = None,
    network: options.OwnNetwork = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files in the folder.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Turn a program into files that run without qbayes.

    \b
    Examples:
      qbayes export mcd.qbayes firmware/network --target c
      qbayes export mcd.qbayes firmware/network --target c --flash 256k --ram 64k --name gesture
    """
    from qbayes.export import make_target

    chosen = make_target(target, **options.given(name=name, flash=flash, ram=ram))
    written = chosen.write(open_program(program, network), place, overwrite=force)
    if as_json:
        print_json(written.facts)
    else:
        out().print("\n".join(written.lines))
