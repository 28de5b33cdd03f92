"""``qbayes predict``: answers of a saved posterior, or of a program, for rows of raw inputs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from qbayes.cli import options
from qbayes.cli.console import note, out, plain_table, print_json
from qbayes.cli.inputs import check_new_file, open_answering, parse_pixels
from qbayes.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from qbayes import NetworkPosterior, Predictive, ProgramPosterior
    from qbayes.cli.rows import Rows
    from qbayes.posterior.predictive import GaussianPredictive

Columns = dict[str, list[Any]]
_QUANTILES = "0.05,0.5,0.95"
# Rows predicted together: draws of a large table would not fit memory.
_CHUNK = 4096
_SHOWN = 20


def predict(
    posterior: options.Model,
    inputs: Annotated[
        str,
        Argument(metavar="INPUT", help="x.npy, data.npz (array x), x.csv, photo.png or task:NAME[:ROWS]."),
    ],
    draws: options.Draws = 20,
    seed: options.NoiseSeed = 0,
    quantiles: Annotated[
        str | None, Option(help=f"Quantiles of a regression; by default {_QUANTILES}.")
    ] = None,
    backend: options.BackendName = None,
    frozen_draws: Annotated[
        int, Option(help="Draws of Gaussian weights to keep packed: memory for speed, on a backend.")
    ] = 0,
    pixels: Annotated[
        str, Option(metavar="LOW,HIGH", help="Raw inputs that stand for black and white in a picture.")
    ] = "0,255",
    data_dir: options.DataDir = None,
    network: options.OwnNetwork = None,
    device: options.Device = "auto",
    out_file: Annotated[
        Path | None, Option("--out", help="File for the answers: .csv, .npz or .json.")
    ] = None,
    overwrite: options.OverwriteFile = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict rows of raw inputs, with uncertainty.

    Classification: the class, its probability, entropy and mutual information (nats), all probabilities.
    Regression: mean, standard deviation and quantiles, in the units of the target. INPUT is a file (a
    picture is one row, cut to its middle and scaled), or rows of a task's test split: task:digits (all),
    task:digits:5 (the first five), task:digits:5-9 (rows 5 to 9).

    \b
    Examples:
      qbayes predict runs/mcd task:digits:5
      qbayes predict runs/boston houses.csv --quantiles 0.1,0.9 --out answers.csv
      qbayes predict examples/cifar10/resnet8-mcd-w4a4.qbayes examples/cifar10/cat.png
      qbayes predict model.qbayes x.npy --backend onednn --frozen-draws 20
    """
    from qbayes.cli.rows import as_records, read_rows, write_columns

    if out_file is not None:
        check_new_file(out_file, (".csv", ".npz", ".json"), overwrite=overwrite)
    span = parse_pixels(pixels)
    levels = None if quantiles is None else _levels(quantiles)
    loaded = open_answering(posterior, network, device, backend, frozen_draws)
    rows = read_rows(inputs, loaded, data_dir, span)
    columns = predict_columns(loaded, rows, draws, seed, levels)
    described = {"posterior": str(posterior), "input": inputs, "draws": draws, "seed": seed}
    if out_file is not None:
        write_columns(out_file, columns, described)
        note(f"{len(rows.x):,} answers in {out_file}")
    if as_json:
        print_json({**described, "answers": as_records(columns)})
    elif out_file is None:
        _print_columns(columns)


def predict_columns(
    posterior: "NetworkPosterior | ProgramPosterior",
    rows: "Rows",
    draws: int,
    seed: int,
    quantiles: list[float] | None,
) -> Columns:
    """One list a column, in the order of the rows; the noise of a row is keyed by its number."""
    from qbayes.posterior.base import check_inputs

    x: Tensor = check_inputs(rows.x, posterior.signature)
    columns: Columns = {"row": list(range(rows.first_row, rows.first_row + len(x)))} | rows.targets
    for start in range(0, len(x), _CHUNK):
        part = posterior.predict(x[start : start + _CHUNK], draws, seed, first_row=rows.first_row + start)
        for name, values in _answers(part, quantiles).items():
            columns.setdefault(name, []).extend(values)
    return columns


def _answers(prediction: "Predictive", quantiles: list[float] | None) -> Columns:
    from qbayes.posterior.predictive import GaussianPredictive

    columns: Columns = dict(prediction.as_dict())
    if isinstance(prediction, GaussianPredictive):
        return _with_quantiles(prediction, columns, quantiles or _levels(_QUANTILES))
    if quantiles is not None:
        raise BadInput(
            "quantiles are answers of a regression", "a posterior over classes", "leave --quantiles out"
        )
    return columns


def _with_quantiles(prediction: "GaussianPredictive", columns: Columns, quantiles: list[float]) -> Columns:
    """Mean, deviation and the quantiles asked for, of each target in turn."""
    endings = [name.removeprefix("mean") for name in columns if name.startswith("mean")]
    answers: Columns = {}
    for index, end in enumerate(endings):
        answers |= {f"mean{end}": columns[f"mean{end}"], f"std{end}": columns[f"std{end}"]}
        for level in quantiles:
            answers[f"quantile_{level:g}{end}"] = prediction.quantile(level).flatten(1)[:, index].tolist()
    return answers


def _levels(text: str) -> list[float]:
    try:
        levels = [float(part) for part in text.split(",")]
    except ValueError:
        levels = []
    if not levels or not all(0 < level < 1 for level in levels) or len(set(levels)) < len(levels):
        raise BadInput(
            "quantiles must be different numbers between 0 and 1, separated by commas",
            f"'{text}'",
            f"for example --quantiles {_QUANTILES}",
        )
    return levels


def _print_columns(columns: Columns) -> None:
    names = [name for name in columns if not name.startswith("probability_")]
    heads = [name.replace("_", " ") for name in names]
    rows = [
        [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
        for values in zip(*(columns[name][:_SHOWN] for name in names), strict=True)
    ]
    console = out()
    console.print(plain_table(heads, rows, right=heads))
    total = len(columns["row"])
    if total > _SHOWN or len(names) < len(columns):
        more = f"{total:,} rows; " if total > _SHOWN else ""
        console.print(f"{more}all of it with --out answers.csv or --json")
