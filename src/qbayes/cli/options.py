"""Options that several commands have, written once so that they mean the same everywhere."""

from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="Folder of a float or quantised posterior, or a .qbayes file."),
]
TaskSet = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the task: split=3.")]
Preset = Annotated[str, typer.Option(help="Where options not given come from: default or paper.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data sets (else QBAYES_DATA).")]
OwnNetwork = Annotated[
    str | None, typer.Option(help="package.module:factory of a network of your own; it is imported.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, …")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same bits.")]
NoiseSeed = Annotated[int, typer.Option(help="Key of the noise.")]
Draws = Annotated[int, typer.Option(help="Draws from the posterior.")]
BackendName = Annotated[
    str | None,
    typer.Option(
        help="On integers: auto, reference, onednn, triton, onnxruntime or openvino; quantised folders too."
    ),
]

Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in the folder.")]
OverwriteFolder = Annotated[bool, typer.Option("--overwrite", help="Replace a posterior in the folder.")]
OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace that file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")]


def given(**options: Any) -> dict[str, Any]:
    """Those options that the user gave."""
    return {name: value for name, value in options.items() if value is not None}
