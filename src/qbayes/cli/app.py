"""The commands under one roof. Commands import torch only when they run: ``--help`` answers at once."""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from typer import Option

from qbayes.cli.commands.bench import bench
from qbayes.cli.commands.data import data_app
from qbayes.cli.commands.evaluate import evaluate
from qbayes.cli.commands.export import export
from qbayes.cli.commands.fit import fit
from qbayes.cli.commands.inspect import inspect
from qbayes.cli.commands.list import list_registries
from qbayes.cli.commands.lower import lower
from qbayes.cli.commands.predict import predict
from qbayes.cli.commands.quantize import quantize
from qbayes.cli.commands.study import study_app
from qbayes.cli.commands.study_export import export as export_study
from qbayes.cli.demo import demo

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
app.command("list")(list_registries)
app.command("demo")(demo)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        try:
            print(version("qbayes"))
        except PackageNotFoundError:
            print("not installed: run from its sources")
        raise typer.Exit


@app.callback()
def qbayes(
    show_version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
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
