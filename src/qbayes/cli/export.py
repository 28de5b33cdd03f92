"""``qbayes export``: a program as files that other runtimes read."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qbayes.cli import options
from qbayes.cli.console import out, print_json
from qbayes.cli.inputs import check_writable, open_program
from qbayes.errors import BadInput


def export(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM", help="A .qbayes file, or the folder of 'qbayes quantize'.")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write: model.onnx.")],
    target: Annotated[str, typer.Option(help="What to export to: see 'qbayes list targets'.")],
    dialect: Annotated[
        str | None, typer.Option(help="onnx: qoperator (ONNX Runtime, by default) or qdq (OpenVINO).")
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(help="onnx: inside (the graph draws, by default) or inputs (masks and ε are inputs)."),
    ] = None,
    draws: Annotated[int | None, typer.Option(help="onnx: draws in the graph, 20 by default.")] = None,
    outputs: Annotated[
        str | None,
        typer.Option(help="onnx: of mean, variance, entropy, mutual_information, draws, codes; by commas."),
    ] = None,
    members: Annotated[
        str | None, typer.Option(help="onnx: batch (all in one file, by default) or files (one file each).")
    ] = None,
    network: options.OwnNetwork = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a program for another runtime, with its randomness intact.

    \b
    Examples:
      qbayes export --target onnx mcd.qbayes mcd.onnx
      qbayes export --target onnx mcd.qbayes mcd.onnx --draws 50 --outputs mean,entropy
      qbayes export --target onnx mcd.qbayes mcd.onnx --dialect qdq --noise inputs
    """
    from qbayes.export.base import TARGETS

    kind = TARGETS[target]()
    named = None if outputs is None else tuple(name.strip() for name in outputs.split(","))
    given = options.given(dialect=dialect, noise=noise, draws=draws, outputs=named, members=members)
    for name in given:
        if name not in kind.options:
            raise BadInput(
                f"--{name} must be an option of the target '{target}'", "it is not", "leave it out"
            )
    check_writable(file.parent)
    written = kind.export(open_program(program, network), file, given, force=force)
    sizes = {str(path): path.stat().st_size for path in written.files}
    if as_json:
        document: dict[str, Any] = {"target": target, "bytes": sizes, "notes": list(written.notes)}
        print_json(document)
        return
    for path, size in sizes.items():
        out().print(f"{path}: {size:,} bytes")
    for line in written.notes:
        out().print(line)
