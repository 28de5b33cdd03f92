"""``fit``: attach a method's randomness to a network, train it, and give back its posterior."""

import copy
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qbayes import noise
from qbayes.device import choose_device
from qbayes.errors import BadInput, Interrupted, QbayesError, RunFailed
from qbayes.methods.base import Method
from qbayes.networks import Architecture
from qbayes.networks.base import run_example
from qbayes.noise import derive_seed
from qbayes.posterior.likelihood import ConstantNoise, Gaussian, Outputs
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import Attachment, point_state
from qbayes.posterior.storage.save import state_hash
from qbayes.provenance import device_name, versions
from qbayes.tasks import Task, TaskLike, resolve_task
from qbayes.training.budget import Budget, resolve_arithmetic, steps_in_epoch
from qbayes.training.checkpoint import Checkpoint, CheckpointLike
from qbayes.training.loop import Loop, Run
from qbayes.training.named import MethodLike, NetworkLike, resolve_method, resolve_network
from qbayes.training.progress import TrainingProgress
from qbayes.training.small_images import check_small_images

Network = nn.Module | Callable[[], nn.Module]
_NETWORK = "give qb.network('mlp', task), a module of your own, or e.g. lambda: Net(width=50)"


def fit(
    network: NetworkLike,
    task: TaskLike,
    method: MethodLike,
    budget: Budget | None = None,
    *,
    seed: int = 0,
    chains: int = 1,
    start: NetworkPosterior | None = None,
    device: str | torch.device = "auto",
    checkpoint: CheckpointLike = None,
    progress: bool | None = None,
) -> NetworkPosterior:
    """The posterior of ``network`` on ``task`` by ``method``.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1), progress=False)
        >>> len(posterior.members)
        1

    Args:
        network: A name (``"lenet"``), a table with a name and options, a module, or a function that makes a
            module (called under the seed). Training starts at the weights of a module.
        task: The rows, and what is to be predicted.
        method: A name (``"mcd"``), which stands for the method's preset for this task; a table with a name
            and options; or a ``Method``.
        budget: How long it is trained; by default as the method's preset has it for this task.
        seed: The same seed gives the same bits.
        chains: Independent runs that become the members of one ensemble; 1 by default.
        start: A posterior whose point weights training begins at; None by default.
        device: ``auto`` (CUDA where there is one), ``cpu``, ``cuda``, …
        checkpoint: A folder in which an interrupted run leaves its state; ``Checkpoint(folder, resume=True)``
            goes on from it. None by default.
        progress: Whether to show it; by default where a person looks on.

    Returns:
        A posterior with one member for each chain, or more where the method keeps several states.

    Raises:
        BadInput: An argument is of another kind or out of range, or the network does not fit the task.
        RunFailed: The loss diverges, or a number is not finite.
        Interrupted: It was stopped and left a checkpoint.
    """
    task = resolve_task(task)
    if isinstance(task, Task):
        network, method = resolve_network(network, task), resolve_method(method, task)
    check_kinds(network, task, method, budget)
    assert isinstance(method, Method)
    assert not isinstance(network, str | Mapping)
    seed = noise.check_seed(seed)
    if not isinstance(chains, Integral) or chains < 1:
        raise BadInput(
            "chains must be a whole number of at least 1", f"{chains!r}", "leave it at 1 for a single run"
        )
    chains = int(chains)
    place = choose_device(device)
    budget = resolve_budget(budget, method, task)
    if start is None:
        _warn_of_no_start(budget, method, task)
    budget = resolve_arithmetic(budget, place, task.signature.input_shape)
    _check_average(budget, method)
    begun = time.monotonic()
    members: list[dict[str, Tensor]] = []
    losses: list[list[float]] = []
    kept = Checkpoint.of(checkpoint)
    paths = [kept.path(f"chain-{chain:04d}.checkpoint") for chain in range(chains)]
    kept.check_overwriting(paths)
    module, attachment = prepare(network, task, method, seed=seed, chain=0, start=start)
    if budget.small_images:
        check_small_images(module, task)
    # before training: a network may keep activations with their graph, which cannot be copied.
    template = copy.deepcopy(module)
    spec = run_spec(network, task, method, budget, seed, chains, module)
    shaped = template
    for chain, path in enumerate(paths):
        if chain > 0:
            module, _ = prepare(network, task, method, seed=seed, chain=chain, start=start)
        run = _train(module, task, method, budget, spec, seed, chain, place, path, kept.resume, progress)
        shaped, made = method.to_posterior(template, run.members, task)
        members += made
        losses.append(run.losses)
    provenance = {
        **spec,
        "attachment": {"left_alone": [list(item) for item in attachment.left_alone]},
        "losses": losses,
        "seconds": round(time.monotonic() - begun, 3),
        "versions": versions(),
        "device": device_name(place),
    }
    return make_posterior(shaped, members, task, provenance).to(place)


def make_posterior(
    template: nn.Module, members: list[dict[str, Tensor]], task: Task, provenance: Mapping[str, Any]
) -> NetworkPosterior:
    """The posterior of trained members; ``template`` has their structure."""
    architecture = getattr(_plain(template), "architecture", None)
    return NetworkPosterior(
        template,
        members,
        task.signature,
        architecture=None if architecture is None else architecture.to_json(),
        provenance=provenance,
    )


def attach(network: nn.Module, method: Method, example: Tensor | None = None) -> nn.Module:
    """A new module with the method's randomness, for a training loop of one's own.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> module = qb.attach(qb.network("mlp", task), qb.method("mcd"), task.example())
        >>> len(module.attachment.sites)
        3

    Args:
        network: The plain network; it stays as it is.
        method: Where randomness stands.
        example: A batch of network inputs. With it layers are taken in the order they run, and a module with
            sites is run once; by default they are taken as registered.

    Returns:
        The module; its ``attachment`` says what became stochastic and what was left alone.

    Raises:
        BadInput: Nothing can be trained or made stochastic, or the module fails on the example.
    """
    _check_method(method)
    module, attachment = method.attach(network, example)
    module.attachment = attachment  # pyright: ignore[reportArgumentType]
    return module


def prepare(
    network: Network, task: Task, method: Method, *, seed: int, chain: int, start: NetworkPosterior | None
) -> tuple[nn.Module, Attachment]:
    """The module to train: built, started, attached, with a noise where the network has none, checked."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "network", chain))
        if not isinstance(network, nn.Module):
            plain = _build(network)
        else:
            plain = copy.deepcopy(network) if chain == 0 else reinitialise(network)
        plain = plain.cpu()
        if start is not None:
            _start_from(plain, start, chain)
        example = task.example(2)
        module, attachment = method.attach(plain, example)
    outputs = run_example(module.eval(), example)
    likelihood = task.signature.likelihood
    likelihood.check(outputs, len(example))
    if isinstance(likelihood, Gaussian) and isinstance(outputs, Tensor):
        module = ConstantNoise(module, likelihood.shape)
    return module, attachment


def check_kinds(network: object, task: object, method: object, budget: object) -> None:
    """Raise unless each argument of ``fit`` is what its place asks for."""
    if not isinstance(task, Task):
        do = "make one with qb.load_task('digits') or qb.Task.from_arrays(x, y, kind=…)"
        raise BadInput("the task must be a Task, or the name of one", type(task).__name__, do)
    if not isinstance(network, nn.Module) and not callable(network):
        raise BadInput("the network must be a module, or a function that makes one", repr(network), _NETWORK)
    _check_method(method)
    if budget is not None and not isinstance(budget, Budget):
        options = budget if isinstance(budget, Mapping) else {"epochs": budget}
        said = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise BadInput("the budget must be a Budget", repr(budget), f"use qb.Budget({said})")


def _check_method(method: object) -> None:
    if not isinstance(method, Method):
        name = method if isinstance(method, str) else getattr(method, "name", "mcd")
        raise BadInput("the method must be a Method", repr(method), f"use qb.method({name!r})")


def _build(factory: Callable[[], nn.Module]) -> nn.Module:
    """The network that ``factory`` makes; what goes wrong in it is told as such."""
    must = "a function given as the network must make a module, without arguments"
    try:
        made: object = factory()
    except QbayesError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        raise BadInput(must, f"{type(error).__name__}: {error}", _NETWORK) from error
    if not isinstance(made, nn.Module):
        raise BadInput(must, f"it made {made!r}", _NETWORK)
    return made


def reinitialise(network: nn.Module) -> nn.Module:
    """A copy with fresh weights, for the next chain of an ensemble."""
    architecture = getattr(network, "architecture", None)
    if isinstance(architecture, Architecture):
        # built as the first one was: a network may start otherwise than its layers do by themselves.
        return architecture.build(allow_import=True)
    fresh = copy.deepcopy(network)
    for name, layer in fresh.named_modules():
        reset: Any = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()
        elif any(True for _ in layer.parameters(recurse=False)):
            raise BadInput(
                "chains of a module need reset_parameters on every layer with weights",
                f"{type(layer).__name__} at '{name}' has none",
                "give fit a function that builds the network instead of the module",
            )
    return fresh


def resolve_budget(budget: Budget | None, method: Method, task: Task) -> Budget:
    """The budget with the epochs that this task's rows ask for; the method's own where none is given."""
    budget = default_budget(method, task) if budget is None else budget
    budget = budget.for_rows(task.train_rows)
    if budget.epochs < 1:
        raise BadInput(
            "a fit needs at least one epoch", "epochs=0", "give epochs, such as qb.Budget(epochs=20)"
        )
    return budget


def _warn_of_no_start(budget: Budget, method: Method, task: Task) -> None:
    """Some budgets are to go on from a trained network, and are too short without one."""
    preset = method.preset("default", task.name, task.kind)
    if preset.start and budget == resolve_budget(None, method, task):
        warnings.warn(
            f"the default budget of {method.name} for {task.name} must begin at a trained {preset.start} "
            f"network; there is none, and {budget.epochs} epochs are too few. Fit {preset.start} first and "
            "give it as start=, or give a longer budget.",
            stacklevel=3,
        )


def _check_average(budget: Budget, method: Method) -> None:
    """An average is of one descent: states along the way are members of their own."""
    before = range(1, budget.epochs)
    if budget.average and any(method.collect(epoch, budget.epochs) for epoch in before):
        raise BadInput(
            "late weights can be averaged where the last state alone is kept",
            f"average={budget.average:g}, and {method.name} keeps states of several epochs",
            "leave average out",
        )


def default_budget(method: Method, task: Task) -> Budget:
    return Budget.from_options(method.preset("default", task.name, task.kind).budget)


def run_spec(
    network: Network,
    task: Task,
    method: Method,
    budget: Budget,
    seed: int,
    chains: int,
    module: nn.Module,
) -> dict[str, Any]:
    """What determines the result, as JSON."""
    architecture = getattr(_plain(module), "architecture", None)
    return {
        "task": task.provenance,
        "network": architecture.to_json()
        if architecture is not None
        else {"class": type(_plain(module)).__name__},
        "method": method.to_json(),
        "budget": budget.to_json(),
        "seed": seed,
        "chains": chains,
    }


def _plain(module: nn.Module) -> nn.Module:
    return module.network if isinstance(module, ConstantNoise) else module


def _start_from(network: nn.Module, start: NetworkPosterior, chain: int) -> None:
    if not isinstance(start, NetworkPosterior):
        raise BadInput("start must be a posterior", repr(start), "read it with qb.load_posterior(folder)")
    member = start.members[chain % len(start.members)]
    state = point_state(start.network, member)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise BadInput(
            "the posterior to start from must have the same network",
            str(error).splitlines()[-1].strip(),
            "fit it with the same network and options",
        ) from None


def _train(
    module: nn.Module,
    task: Task,
    method: Method,
    budget: Budget,
    spec: dict[str, Any],
    seed: int,
    chain: int,
    device: torch.device,
    checkpoint: Path | None,
    resume: bool,
    progress: bool | None,
) -> Run:
    likelihood, rows = task.signature.likelihood, task.train_rows
    parts = json.dumps([spec, chain, state_hash(module)], sort_keys=True)
    fingerprint = hashlib.sha256(parts.encode()).hexdigest()
    module.to(device)
    if budget.channels_last:
        module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def loss(network: nn.Module, outputs: Outputs, target: Tensor) -> Tensor:
        return method.loss(network, outputs, target, likelihood, rows)

    steps = steps_in_epoch(rows, budget.batch_size)
    optimizer = method.make_optimizer(
        module, budget.learning_rate, rows=rows, steps_per_epoch=steps, epochs=budget.epochs
    )
    title = f"{method.name} on {task.name}" + (f", chain {chain + 1}" if spec["chains"] > 1 else "")
    with TrainingProgress(title, budget.epochs, progress) as bar:
        loop = Loop(
            module,
            task,
            budget,
            loss,
            optimizer,
            method.collect,
            seed=derive_seed(seed, "chain", chain),
            device=device,
            fingerprint=fingerprint,
            checkpoint=checkpoint,
            progress=bar,
            check=likelihood.check,
            replay=_is_ours(_plain(module)) and _is_ours(method),
        )
        try:
            return loop.run(resume=resume)
        except Interrupted:
            raise
        except RunFailed:
            # this chain would only fail again; the checkpoints of the others stay.
            if checkpoint is not None:
                checkpoint.unlink(missing_ok=True)
            raise


def _is_ours(part: object) -> bool:
    """Whether its class is qbayes' own, which keeps nothing but tensors between steps."""
    return type(part).__module__.startswith("qbayes.")
