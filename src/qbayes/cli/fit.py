"""``qbayes fit``: train a posterior and save it."""

import contextlib
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbayes.cli.console import check_choice, note, out, print_json
from qbayes.cli.inputs import check_writable, open_posterior, open_task, parse_settings
from qbayes.errors import BadFile, Interrupted, RunFailed

if TYPE_CHECKING:
    from qbayes import Budget, Method, NetworkPosterior, Task
    from qbayes.posterior.sites import Attachment

PRESETS = ("default", "paper")
_CHECKPOINT = "checkpoint"
_LARGE_IMAGE = 32  # pixels a side from which colour images get the residual network


def fit(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="Task: digits, uci/boston, mnist, …, or a file data.npz.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the posterior; new or empty.")],
    method: Annotated[str, typer.Option(help="pointwise, mcd, bbb or sghmc.")],
    network: Annotated[
        str | None,
        typer.Option(help="mlp, lenet, resnet18 or package.module:factory; by default by the task."),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="Where options not given come from: default or paper.")
    ] = "default",
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows in a step.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Largest learning rate, or SGHMC's step.")
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="cosine or constant.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of the steps in which the rate rises.")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest norm of the gradient.")] = None,
    bf16: Annotated[bool | None, typer.Option(help="bfloat16 on CUDA.")] = None,
    compile_: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile on CUDA.")
    ] = None,
    channels_last: Annotated[bool | None, typer.Option(help="Images with channels last.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Option of the method: rate=0.2.")
    ] = None,
    network_set: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the network: style=relu.")
    ] = None,
    task_set: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the task: split=3.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data sets (else QBAYES_DATA).")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bits.")] = 0,
    chains: Annotated[int, typer.Option(help="Independent runs that become one ensemble.")] = 1,
    start: Annotated[Path | None, typer.Option(help="Posterior from whose weights to begin.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in the folder.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a posterior in the folder.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")] = False,
) -> None:
    """Train a network on a task and save its posterior.

    What is not given comes from the method's preset for the task ('qbayes list methods' shows them all).
    Ctrl-C leaves a checkpoint; the same command with --resume goes on to the same result, bit for bit.

    \b
    Examples:
      qbayes fit digits --method mcd --network lenet --out runs/mcd
      qbayes fit uci/boston --method bbb --task-set split=3 --set prior_sigma=0.5 --out runs/boston
      qbayes fit data.npz --method pointwise --chains 5 --network my_package.nets:small --out runs/ensemble
    """
    budget = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "warmup": warmup,
        "clip": clip,
        "bf16": bf16,
        "compile": compile_,
        "channels_last": channels_last,
    }
    check_folder(out, resume=resume, overwrite=overwrite)
    # what is quick to check comes before the data is read.
    check_names(method, preset, device)
    method_options = parse_settings("--set", set_ or [])
    plan = plan_run(
        open_task(task, data_dir, parse_settings("--task-set", task_set or [])),
        method,
        preset,
        method_options,
        {name: value for name, value in budget.items() if value is not None},
        network,
        parse_settings("--network-set", network_set or []),
    )
    posterior, attachment = _train(plan, out, seed, chains, start, device, resume, quiet)
    _print_result(plan, posterior, attachment, out, as_json=as_json, quiet=quiet)


def check_names(method: str, preset: str, device: str) -> None:
    from qbayes.methods import METHODS
    from qbayes.training.fit import choose_device

    check_choice("the preset", preset, PRESETS)
    choose_device(device)
    METHODS[method]


@dataclass(frozen=True)
class Plan:
    """What ``fit`` is called with, resolved and checked."""

    task: "Task"
    method: "Method"
    budget: "Budget"
    network: str
    network_options: dict[str, Any]

    def build(self) -> Any:
        import qbayes as qb

        return qb.network(self.network, self.task, **self.network_options)


def plan_run(
    task: "Task",
    method: str,
    preset: str,
    method_options: dict[str, Any],
    budget_options: dict[str, Any],
    network: str | None,
    network_options: dict[str, Any],
) -> Plan:
    """Preset values first, then what the user said."""
    from qbayes.training import recipe

    return Plan(
        task,
        *recipe(method, task, preset, budget=budget_options, **method_options),
        network or default_network(task.signature.input_shape),
        network_options,
    )


def default_network(input_shape: tuple[int, ...]) -> str:
    """``mlp`` for vectors, ``lenet`` for small images, ``resnet18`` for colour images from 32 pixels on."""
    images = len(input_shape) == 3 and min(input_shape[1:]) >= 4
    if not images:
        return "mlp"
    return "resnet18" if input_shape[0] == 3 and min(input_shape[1:]) >= _LARGE_IMAGE else "lenet"


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """The folder must be free, or hold what the user asked to continue or replace."""
    from qbayes.posterior.save import HEADER, check_output_folder

    waiting = (folder / _CHECKPOINT).is_dir()
    if waiting and not (folder / HEADER).exists():
        if not (resume or overwrite):
            raise BadFile(
                "the output folder must be new or empty",
                f"{folder} holds the checkpoint of an interrupted run",
                "go on with --resume, or start again with --overwrite",
            )
        check_output_folder(folder, overwrite=True)
    else:
        check_output_folder(folder, overwrite=overwrite)
        if resume and not waiting:
            note(f"nothing to resume in {folder}: starting from the beginning")
    check_writable(folder)


def _train(
    plan: Plan, out: Path, seed: int, chains: int, start: Path | None, device: str, resume: bool, quiet: bool
) -> tuple["NetworkPosterior", "Attachment"]:
    import qbayes as qb
    from qbayes.noise import check_seed
    from qbayes.posterior.save import save_posterior
    from qbayes.training.fit import choose_device, prepare

    place = choose_device(device)
    check_seed(seed)
    begin = None if start is None else open_posterior(start)
    _, attachment = prepare(plan.build, plan.task, plan.method, seed=seed, chain=0, start=begin)
    if not quiet:
        note(_summary(plan, attachment))
    if not resume:
        remove_checkpoint(out)
    with _checkpoint_kept_or_removed(out):
        posterior = qb.fit(
            plan.build,
            plan.task,
            plan.method,
            plan.budget,
            seed=seed,
            chains=chains,
            start=begin,
            device=place,
            checkpoint=out / _CHECKPOINT,
            resume=resume,
            progress=False if quiet else None,
        )
        save_posterior(posterior, out, overwrite=True)
    remove_checkpoint(out)
    return posterior, attachment


@contextlib.contextmanager
def _checkpoint_kept_or_removed(out: Path) -> Iterator[None]:
    """An interrupted run says how to go on; one that failed leaves no empty folders."""
    try:
        yield
    except Interrupted as stopped:
        command = shlex.join(["qbayes", *(part for part in sys.argv[1:] if part != "--resume"), "--resume"])
        raise Interrupted(stopped.must, stopped.got, f"go on with: {command}") from stopped
    except RunFailed:
        for folder in (out / _CHECKPOINT, out):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        raise


def remove_checkpoint(out: Path) -> None:
    """Take away our files, and the folder if nothing else is in it."""
    folder = out / _CHECKPOINT
    for file in folder.glob("chain-*.checkpoint"):
        file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _summary(plan: Plan, attachment: "Attachment") -> str:
    lines = "\n".join(f"  {line}" for line in attachment.summary().splitlines())
    task, budget = plan.task, plan.budget
    return (
        f"{plan.method.name} on {task.name}: {plan.network}, {task.train_rows:,} rows, "
        f"{budget.epochs} epochs of batches of {budget.batch_size}, "
        f"learning rate {budget.learning_rate:g} ({budget.schedule})\n{lines}"
    )


def _print_result(
    plan: Plan,
    posterior: "NetworkPosterior",
    attachment: "Attachment",
    folder: Path,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    record = posterior.provenance
    finals = [losses[-1] for losses in record["losses"]]
    if as_json:
        result = {
            key: record[key] for key in ("task", "network", "method", "budget", "seed", "chains", "seconds")
        }
        stochastic = [site.to_json() for site in attachment.sites]
        left = [{"module": name, "reason": why} for name, why in attachment.left_alone]
        members = {"members": len(posterior.members), "final_losses": finals, "device": record["device"]}
        print_json(
            {"posterior": str(folder), **members, **result, "stochastic": stochastic, "left_alone": left}
        )
    elif not quiet:
        shown = ", ".join(f"{loss:.4f}" for loss in finals)
        members = len(posterior.members)
        plural = "s" if members > 1 else ""
        out().print(f"final loss {shown} after {record['seconds']:.1f} s; {members} member{plural}")
        out().print(f"posterior in {folder}\nnext: qbayes evaluate {shlex.quote(str(folder))}")
