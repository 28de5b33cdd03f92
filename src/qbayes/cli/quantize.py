"""``qbayes quantize``: from a float posterior to a quantised one."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbayes.cli import options
from qbayes.cli.checkpoints import CHECKPOINT, check_folder, checkpoint_kept_or_removed, remove_checkpoint
from qbayes.cli.console import check_choice, note, out, print_json
from qbayes.cli.inputs import open_float_posterior, parse_settings, task_for
from qbayes.errors import BadInput, unknown_name

if TYPE_CHECKING:
    from qbayes import Budget, NetworkPosterior, Precision, Task

_TOLD = (
    "precision", "budget", "task", "seed", "keep", "freeze", "teacher", "optimiser", "equalise",
    "blend", "match", "sharpness", "seconds", "device",
)  # fmt: skip
_PRECISION = re.compile(r"[Ww](\d+)[Aa](\d+)")


def quantize(
    posterior: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a float posterior.")],
    out: Annotated[Path, typer.Option(help="Folder for the quantised posterior; new or empty.")],
    precision: Annotated[str | None, typer.Option(help="Bits of weights and activations: W4A4.")] = None,
    weight: Annotated[int | None, typer.Option(help="Bits of the weights, 2 to 8.")] = None,
    activation: Annotated[int | None, typer.Option(help="Bits of the activations, 2 to 8.")] = None,
    preset: options.Preset = "default",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Option of the precision: weight_range=mse."),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYERS:KEY=VALUE,…", help="What differs in some layers: 'logits:weight=8'."),
    ] = None,
    mixed: Annotated[
        str | None,
        typer.Option(
            metavar="bytes|bit-operations",
            help="Give each layer bits of its own, by its sensitivity, at the cost of --precision.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training rows; 0 calibrates only.")
    ] = None,
    batch_size: options.BatchSize = None,
    learning_rate: Annotated[float | None, typer.Option(help="Largest learning rate.")] = None,
    schedule: options.Schedule = None,
    warmup: options.Warmup = None,
    clip: options.Clip = None,
    compile_: options.Compile = None,
    channels_last: options.ChannelsLast = None,
    keep: Annotated[
        str, typer.Option(help="The epoch to keep: last, or best on the validation rows.")
    ] = "last",
    freeze: Annotated[
        float, typer.Option(help="Share of the epochs after which ranges stop following the data.")
    ] = 0.5,
    teacher: Annotated[
        float | None, typer.Option(help="Share of the loss in which each draw imitates the float network's.")
    ] = None,
    optimiser: Annotated[str | None, typer.Option(help="sgd or adam.")] = None,
    equalise: Annotated[
        bool | None,
        typer.Option("--equalise/--no-equalise", help="Give channels one range before anything is rounded."),
    ] = None,
    blend: Annotated[
        float | None,
        typer.Option(help="Share of rows blended with others; only where all is learnt from the teacher."),
    ] = None,
    match: Annotated[
        bool | None,
        typer.Option("--match/--no-match", help="Make class scores as sharp as the float network's."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Task to train on; by default the one it was fitted on.")
    ] = None,
    task_set: options.TaskSet = None,
    data_dir: options.DataDir = None,
    network: options.OwnNetwork = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    resume: options.Resume = False,
    overwrite: options.OverwriteFolder = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Quantise a posterior to n-bit weights and activations, and train it on at that precision.

    Every member is calibrated and fine-tuned by itself. Ctrl-C leaves a checkpoint; the same command with
    --resume goes on to the same result, bit for bit. 'qbayes list quantizers' shows the range rules.

    \b
    Examples:
      qbayes quantize runs/mcd --precision W4A4 --out runs/mcd-w4a4
      qbayes quantize runs/mcd --weight 3 --activation 4 --override 'logits:weight=8' --out runs/mcd-w3a4
      qbayes quantize runs/bbb --precision W8A8 --epochs 0 --out runs/bbb-calibrated
      qbayes quantize runs/mcd --precision W3A3 --mixed bytes --out runs/mcd-mixed
    """
    if out.resolve() == posterior.resolve():
        raise BadInput("the float posterior must stay", f"--out {out}, where it is", "choose another folder")
    check_folder(out, resume=resume, overwrite=overwrite)
    wanted = read_precision(preset, precision, weight, activation, set_ or [], override or [])
    source = open_float_posterior(posterior, network)
    chosen = task_for(source, task, data_dir, parse_settings("--task-set", task_set or []))
    budget, how = _recipe(
        preset,
        chosen,
        wanted.fewest_bits,
        options.given(teacher=teacher, optimiser=optimiser, equalise=equalise, blend=blend, match=match),
        options.given(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            schedule=schedule,
            warmup=warmup,
            clip=clip,
            compile=compile_,
            channels_last=channels_last,
        ),
    )
    if not quiet:
        shown = budget.for_rows(chosen.train_rows)
        note(_summary(wanted, shown, source, chosen.name))
    how |= {"keep": keep, "freeze": freeze}
    if mixed is not None:
        wanted = _assigned(source, chosen, wanted, budget, seed, how, device, mixed, quiet=quiet)
    made = _train(source, chosen, wanted, budget, seed, how, device, out, resume=resume, quiet=quiet)
    _print_result(made, posterior, out, as_json=as_json, quiet=quiet)


def read_precision(
    preset: str,
    label: str | None,
    weight: int | None,
    activation: int | None,
    settings: Sequence[str],
    overrides: Sequence[str],
) -> "Precision":
    """The preset's precision, and what the user says instead; nothing may be said twice."""
    from qbayes import Precision

    check_choice("the preset", preset, tuple(Precision.presets))
    parts: dict[str, dict[str, Any]] = {
        "--precision": {} if label is None else _bits(label),
        "--weight": options.given(weight=weight),
        "--activation": options.given(activation=activation),
        "--set": {name: _plain(value) for name, value in _settings("--set", settings).items()},
        "--override": {"overrides": [_override(item) for item in overrides]} if overrides else {},
    }
    known = [field.name for field in fields(Precision)]
    changed: dict[str, Any] = {}
    for part in parts.values():
        for name, value in part.items():
            if name not in known:
                raise unknown_name("option of the precision", name, known)
            if name in changed:
                said = " and ".join(option for option, given in parts.items() if name in given)
                raise BadInput(f"{name} must be given once", f"by {said}", "leave one of them out")
            changed[name] = value
    return Precision(**{**Precision.presets[preset], **changed})


def _assigned(
    source: "NetworkPosterior",
    task: Any,
    precision: "Precision",
    budget: "Budget",
    seed: int,
    how: dict[str, Any],
    device: str,
    kind: str,
    *,
    quiet: bool,
) -> "Precision":
    """The precision with bits by layer, at the cost that it has without."""
    import qbayes as qb
    from qbayes.mixed.costs import KINDS
    from qbayes.quant.quantisation import Quantisation

    check_choice("--mixed", kind, tuple(name.replace("_", "-") for name in KINDS))
    # what the training would refuse is refused now, not after the measurement.
    Quantisation(source, task, precision, budget, seed, **how)
    limit = qb.BitBudget(**{kind.replace("-", "_"): precision})
    found = qb.assign_bits(source, task, limit, seed=seed, device=device)
    if not quiet:
        note(str(found))
    return found.precision


def _settings(option: str, given: Sequence[str]) -> dict[str, Any]:
    return parse_settings(option, given, "weight_range=mse" if option == "--set" else "'logits:weight=8'")


def _bits(label: str) -> dict[str, int]:
    found = _PRECISION.fullmatch(label)
    if found is None:
        raise BadInput(
            "a precision must name the bits of weights and activations", f"'{label}'", "for example W4A4"
        )
    return {"weight": int(found[1]), "activation": int(found[2])}


def _plain(value: Any) -> Any:
    """TOML has no word for "follow the other bits", which is None."""
    return None if value in ("none", "null") else value


def _override(text: str) -> tuple[str, dict[str, Any]]:
    """``"logits:weight=8,activation=8"`` → ``("logits", {"weight": 8, "activation": 8})``."""
    pattern, colon, settings = text.rpartition(":")
    if not colon or not pattern.strip():
        raise BadInput(
            "--override must be given as layers:key=value,key=value",
            f"'{text}'",
            "for example --override 'logits:weight=8,activation=8'",
        )
    given = _settings("--override", settings.split(","))
    return pattern.strip(), {name: _plain(value) for name, value in given.items()}


def _recipe(
    preset: str, task: "Task", bits: int, how: dict[str, Any], budget: dict[str, Any]
) -> tuple["Budget", dict[str, Any]]:
    """The preset's way to train for such tasks and bits, and what the user says instead."""
    from qbayes.quant.recipe import qat_recipe

    recipe = qat_recipe(preset, task.kind, task.name)
    return recipe.settled(bits, **budget), recipe.told(**how)


def _train(
    source: "NetworkPosterior",
    task: Any,
    precision: "Precision",
    budget: "Budget",
    seed: int,
    how: dict[str, Any],
    device: str,
    out: Path,
    *,
    resume: bool,
    quiet: bool,
) -> "NetworkPosterior":
    import qbayes as qb

    if not resume:
        remove_checkpoint(out)
    with checkpoint_kept_or_removed(out):
        made = qb.quantize(
            source,
            task,
            precision,
            budget,
            seed=seed,
            **how,
            device=device,
            checkpoint=out / CHECKPOINT,
            resume=resume,
            progress=False if quiet else None,
        )
        qb.save_posterior(made, out, overwrite=True)
    return made


def _summary(precision: "Precision", budget: "Budget", source: "NetworkPosterior", task: str) -> str:
    members = len(source.members)
    epochs = f"{budget.epochs} epoch{'s' if budget.epochs > 1 else ''}"
    ends = precision.for_likelihood(source.signature.likelihood)
    trained = f"{epochs} of batches of {budget.batch_size}, learning rate {budget.learning_rate:g}"
    return (
        f"{precision.label} on {task}: {members} member{'s' if members > 1 else ''}, "
        f"{trained if budget.epochs else 'calibration only'}\n"
        f"  weights      {precision.weight} bits, {precision.weight_scheme} by {precision.granularity}, "
        f"{precision.weight_range}\n"
        f"  activations  {precision.activation} bits, {precision.activation_scheme}, "
        f"{precision.activation_range}; input {ends.input_bits}, outputs {ends.output_bits} bits"
        f"{_between(precision)}"
    )


def _between(precision: "Precision") -> str:
    bits = precision.between
    return f", {bits} where nothing multiplies" if bits is not None and bits > precision.activation else ""


def _print_result(
    made: "NetworkPosterior", source: Path, folder: Path, *, as_json: bool, quiet: bool
) -> None:
    record = made.provenance["quantised"]
    finals = [losses[-1] for losses in record["losses"] if losses]
    if as_json:
        print_json(
            {
                "posterior": str(folder),
                "source": str(source),
                "members": len(made.members),
                "final_losses": finals,
                **{name: record[name] for name in _TOLD},
            }
        )
    elif not quiet:
        shown = f"final loss {', '.join(f'{loss:.4f}' for loss in finals)}" if finals else "calibrated"
        quoted = shlex.quote(str(folder))
        model = shlex.quote(f"{folder}.qbayes")
        out().print(f"{shown} after {record['seconds']:.1f} s")
        out().print(f"quantised posterior in {folder}\nnext: qbayes lower {quoted} --out {model}")
