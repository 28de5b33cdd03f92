"""``qbayes quantize``: from a float posterior to a quantised one."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from qbayes.cli import options
from qbayes.cli.checkpoints import check_folder, checkpoint_in
from qbayes.cli.console import check_choice, note, out, plural, print_json
from qbayes.cli.inputs import open_float_posterior, parse_settings, task_for
from qbayes.cli.options import NOTHING, Given, with_options_of
from qbayes.errors import BadInput
from qbayes.options import options_of
from qbayes.quant.finetune.fine_tuning import FineTuning

if TYPE_CHECKING:
    from qbayes import NetworkPosterior, Precision
    from qbayes.quant.finetune.job import QuantizeJob

# what the JSON of the result says of the training besides its options.
_RECORDED = ("precision", "budget", "task", "seed", "sharpness", "seconds", "device")


@with_options_of(
    FineTuning,
    "tuning",
    preset="Recipe for the options that are not given.",
    epochs="Passes over the training rows; 0 calibrates only.",
)
def quantize(
    posterior: Annotated[Path, Argument(metavar="DIR", help="Folder of a float posterior.")],
    out: Annotated[Path, Option(help="Folder for the quantised posterior; new or empty.")],
    precision: Annotated[str | None, Option(help="Bits of weights and activations: W4A4.")] = None,
    weight: Annotated[int | None, Option(help="Bits of the weights, 2 to 8.")] = None,
    activation: Annotated[int | None, Option(help="Bits of the activations, 2 to 8.")] = None,
    set_: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Option of the precision: weight_range=mse."),
    ] = None,
    override: Annotated[
        list[str] | None,
        Option(metavar="LAYERS:KEY=VALUE,…", help="What differs in some layers: 'logits:weight=8'."),
    ] = None,
    mixed: Annotated[
        str | None,
        Option(
            metavar="bytes|bit-operations",
            help="Give each layer bits of its own, by its sensitivity, at the cost of --precision.",
        ),
    ] = None,
    tuning: Given = NOTHING,
    task: Annotated[str | None, Option(help="Task to train on; by default the one it was fitted on.")] = None,
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
    from qbayes.quant.finetune.job import QuantizeJob

    if out.resolve() == posterior.resolve():
        raise BadInput("the float posterior must stay", f"--out {out}, where it is", "choose another folder")
    check_folder(out, resume=resume, overwrite=overwrite)
    finetuning = FineTuning.from_options(tuning)
    wanted = read_precision(finetuning.preset, precision, weight, activation, set_ or [], override or [])
    source = open_float_posterior(posterior, network)
    chosen = task_for(source, task, data_dir, parse_settings("--task-set", task_set or []))
    job = QuantizeJob(source, chosen, wanted, finetuning, seed)
    if not quiet:
        note(_summary(job))
    if mixed is not None:
        # the rate of the recipe stays that of the bits that were asked for.
        job = replace(job, precision=_assign(job, device, mixed, quiet=quiet))
    made = _train(job, device, out, resume=resume, quiet=quiet)
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

    parts: dict[str, dict[str, Any]] = {
        "--precision": {} if label is None else _bits(label),
        "--weight": options.given(weight=weight),
        "--activation": options.given(activation=activation),
        "--set": _settings("--set", settings),
        "--override": {"overrides": [_override(item) for item in overrides]} if overrides else {},
    }
    changed: dict[str, Any] = {}
    for part in parts.values():
        for name, value in part.items():
            if name in changed:
                sources = " and ".join(option for option, given in parts.items() if name in given)
                raise BadInput(f"{name} must be given once", f"by {sources}", "leave one of them out")
            changed[name] = value
    return Precision.parse({"preset": preset, **changed})


def _assign(job: "QuantizeJob", device: str, kind: str, *, quiet: bool) -> "Precision":
    """The precision with bits by layer, at the cost that it has without."""
    import qbayes as qb
    from qbayes.quant.mixed.costs import KINDS

    check_choice("--mixed", kind, tuple(name.replace("_", "-") for name in KINDS))
    limit = qb.BitBudget(**{kind.replace("-", "_"): job.precision})
    found = qb.assign_bits(job.posterior, job.task, limit, seed=job.seed, device=device)
    if not quiet:
        note(str(found))
    return found.precision


def _settings(option: str, given: Sequence[str]) -> dict[str, Any]:
    return parse_settings(option, given, "weight_range=mse" if option == "--set" else "'logits:weight=8'")


def _bits(label: str) -> dict[str, int]:
    from qbayes import Precision

    named = Precision.parse(label)
    return {"weight": named.weight, "activation": named.activation}


def _plain(value: Any) -> Any:
    """TOML has no word for "follow the other bits", which is None."""
    from qbayes.quant.precision import FOLLOW

    return None if value in FOLLOW else value


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


def _train(job: "QuantizeJob", device: str, out: Path, *, resume: bool, quiet: bool) -> "NetworkPosterior":
    import qbayes as qb
    from qbayes.quant.finetune.quantize import quantize_members

    with checkpoint_in(out, resume=resume) as checkpoint:
        made = quantize_members(job, device=device, checkpoint=checkpoint, progress=False if quiet else None)
        qb.save_posterior(made, out, overwrite=True)
    return made


def _summary(job: "QuantizeJob") -> str:
    precision, budget, bits = job.precision, job.budget, job.precision.elementwise_bits or 0
    rate = f"batches of {budget.batch_size}, learning rate {budget.learning_rate:g}"
    trained = f"{plural(budget.epochs, 'epoch')} of {rate}" if budget.epochs else "calibration only"
    elementwise = f", {bits} where nothing multiplies" if bits > precision.activation else ""
    return (
        f"{precision.label} on {job.task.name}: {plural(job.members, 'member')}, {trained}\n"
        f"  weights      {precision.weight} bits, {precision.weight_scheme} by {precision.granularity}, "
        f"{precision.weight_range}\n"
        f"  activations  {precision.activation} bits, {precision.activation_scheme}, "
        f"{precision.activation_range}; input {precision.input_bits}, outputs {precision.output_bits} bits"
        f"{elementwise}"
    )


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
                **{name: record[name] for name in (*_RECORDED, *options_of(FineTuning)) if name in record},
            }
        )
    elif not quiet:
        shown = f"final loss {', '.join(f'{loss:.4f}' for loss in finals)}" if finals else "calibrated"
        quoted = shlex.quote(str(folder))
        model = shlex.quote(f"{folder}.qbayes")
        out().print(f"{shown} after {record['seconds']:.1f} s")
        out().print(f"quantised posterior in {folder}\nnext: qbayes lower {quoted} --out {model}")
