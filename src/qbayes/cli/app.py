"""The commands under one roof. Commands import torch only when they run: ``--help`` answers at once."""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from qbayes.cli.bench import bench
from qbayes.cli.data import data_app
from qbayes.cli.demo import demo
from qbayes.cli.evaluate import evaluate
from qbayes.cli.export import export
from qbayes.cli.fit import fit
from qbayes.cli.inspect import inspect
from qbayes.cli.list import list_shelves
from qbayes.cli.lower import lower
from qbayes.cli.predict import predict
from qbayes.cli.quantize import quantize
from qbayes.cli.study import study_app
from qbayes.cli.study_export import export as export_study

app = typer.Typer(
    name="qbayes",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("fit")(fit)
app.command("quantize")(quantize)
app.command("lower")(lower)
app.command("inspect")(inspect)
app.command("export")(export)
app.command("evaluate")(evaluate)
app.command("predict")(predict)
app.command("bench")(bench)
study_app.command("export")(export_study)
app.add_typer(study_app, name="study")
app.add_typer(data_app, name="data")
app.command("list")(list_shelves)
app.command("demo")(demo)


def _show_version(asked: bool) -> None:
    if asked:
        try:
            print(version("qbayes"))
        except PackageNotFoundError:
            print("not installed: run from its sources")
        raise typer.Exit


@app.callback()
def qbayes(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Bayesian neural networks in PyTorch: train, quantise, run on integers, measure the uncertainty.

    \b
    Four commands to begin with:
      qbayes fit digits --method mcd --network lenet --out runs/mcd
      qbayes quantize runs/mcd --precision W4A4 --out runs/mcd-w4a4
      qbayes lower runs/mcd-w4a4 --out mcd.qbayes
      qbayes evaluate mcd.qbayes
    """
