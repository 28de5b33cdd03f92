"""``qbayes fit``: train a posterior and save it."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from qbayes.cli import options
from qbayes.cli.checkpoints import check_folder, checkpoint_in
from qbayes.cli.console import check_choice, note, out, plural, print_json
from qbayes.cli.inputs import open_float_posterior, open_task, parse_settings
from qbayes.cli.options import NOTHING, Given, with_options_of
from qbayes.training.budget import Budget

if TYPE_CHECKING:
    from qbayes import Method, NetworkPosterior, Task
    from qbayes.posterior.sites import Attachment

_LARGE_IMAGE = 32  # pixels a side from which colour images get the residual network


@with_options_of(Budget, "budget")
def fit(
    task: Annotated[
        str, Argument(metavar="TASK", help="Task: digits, uci/boston, mnist, …, or a file data.npz.")
    ],
    out: Annotated[Path, Option(help="Folder for the posterior; new or empty.")],
    method: Annotated[str, Option(help="pointwise, mcd, bbb or sghmc.")],
    network: Annotated[
        str | None,
        Option(help="mlp, lenet, resnet8, resnet18 or package.module:factory; by default by the task."),
    ] = None,
    preset: options.Preset = "default",
    budget: Given = NOTHING,
    set_: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="Option of the method: rate=0.2.")
    ] = None,
    network_set: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="Option of the network: style=relu.")
    ] = None,
    task_set: options.TaskSet = None,
    data_dir: options.DataDir = None,
    seed: options.Seed = 0,
    chains: Annotated[int, Option(help="Independent runs that become one ensemble.")] = 1,
    start: Annotated[Path | None, Option(help="Posterior from whose weights to begin.")] = None,
    device: options.Device = "auto",
    resume: options.Resume = False,
    overwrite: options.OverwriteFolder = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
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
    check_folder(out, resume=resume, overwrite=overwrite)
    # what is quick to check comes before the data is read.
    check_names(method, preset, device)
    method_options = parse_settings("--set", set_ or [])
    plan = plan_run(
        open_task(task, data_dir, parse_settings("--task-set", task_set or [])),
        method,
        preset,
        method_options,
        budget,
        network,
        parse_settings("--network-set", network_set or []),
    )
    posterior, attachment = _train(plan, out, seed, chains, start, device, resume, quiet)
    _print_result(plan, posterior, attachment, out, as_json=as_json, quiet=quiet)


def check_names(method: str, preset: str, device: str) -> None:
    from qbayes.device import choose_device
    from qbayes.methods import METHODS
    from qbayes.methods.base import preset_names

    check_choice("the preset", preset, preset_names())
    choose_device(device)
    METHODS[method]


@dataclass(frozen=True)
class Plan:
    """What ``fit`` is called with, resolved and checked."""

    task: "Task"
    method: "Method"
    budget: Budget
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
    budget_options: Given,
    network: str | None,
    network_options: dict[str, Any],
) -> Plan:
    """Preset values first, then what the user said."""
    from qbayes.training.budget import recipe

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


def _train(
    plan: Plan, out: Path, seed: int, chains: int, start: Path | None, device: str, resume: bool, quiet: bool
) -> tuple["NetworkPosterior", "Attachment"]:
    import qbayes as qb
    from qbayes.device import choose_device
    from qbayes.noise import check_seed
    from qbayes.posterior.storage.save import save_posterior
    from qbayes.training.fit import prepare

    place = choose_device(device)
    check_seed(seed)
    begin = None if start is None else open_float_posterior(start)
    _, attachment = prepare(plan.build, plan.task, plan.method, seed=seed, chain=0, start=begin)
    if not quiet:
        note(_summary(plan, attachment))
    with checkpoint_in(out, resume=resume) as checkpoint:
        posterior = qb.fit(
            plan.build,
            plan.task,
            plan.method,
            plan.budget,
            seed=seed,
            chains=chains,
            start=begin,
            device=place,
            checkpoint=checkpoint,
            progress=False if quiet else None,
        )
        save_posterior(posterior, out, overwrite=True)
    return posterior, attachment


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
        members = plural(len(posterior.members), "member")
        out().print(f"final loss {shown} after {record['seconds']:.1f} s; {members}")
        out().print(f"posterior in {folder}\nnext: qbayes evaluate {shlex.quote(str(folder))}")
