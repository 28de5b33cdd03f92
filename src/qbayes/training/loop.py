"""One training loop for every method, and for quantisation-aware training.

Order and noise come from generators seeded here, so that the same seed gives the same bits on the same
machine, and a resumed run continues with the same bits: a checkpoint holds the parameters, the optimiser, the
members, the generators, and how far into its epoch the run was.
"""

import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qbayes.errors import Interrupted
from qbayes.noise import derive_seed
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.storage.save import state_to
from qbayes.posterior.storage.stored import members_of
from qbayes.tasks import Task
from qbayes.tasks.source import Batch
from qbayes.training.budget import Budget, rows_in_epoch, steps_in_epoch
from qbayes.training.checkpoint import (
    BadCheckpoint,
    optimizer_tensors,
    read_checkpoint,
    restore_optimizer,
    write_checkpoint,
)
from qbayes.training.guard import check_losses, check_state, clip_gradients
from qbayes.training.late_average import LateAverage
from qbayes.training.progress import TrainingProgress
from qbayes.training.replayed import ReplayedSteps, can_be_replayed
from qbayes.training.small_images import shrink

LossFunction = Callable[[nn.Module, Outputs, Tensor], Tensor]
_CHECKPOINT_SECONDS = 60.0
# rows on which the batch statistics of averaged weights are measured.
_ROWS_OF_STATISTICS = 5000


class Order(Protocol):
    """Where the order of the rows comes from: a generator, or one for each network of a stack."""

    def get_state(self) -> Tensor: ...

    def set_state(self, new_state: Tensor, /) -> Any: ...


@dataclass
class Run:
    """A training in progress: what a checkpoint holds."""

    epoch: int = 0
    step: int = 0
    loss_sum: Tensor | None = None
    losses: list[float] = field(default_factory=list[float])
    members: list[dict[str, Tensor]] = field(default_factory=list[dict[str, Tensor]])


class Loop:
    """Trains ``module`` on ``task`` within ``budget``; ``run`` returns the collected members.

    With ``replay`` its steps are recorded on a GPU and replayed: only what tensors hold may change between
    them, and ``before_epoch``'s phase.
    """

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        budget: Budget,
        loss: LossFunction,
        optimizer: torch.optim.Optimizer,
        collect: Callable[[int, int], bool],
        *,
        seed: int,
        device: torch.device,
        fingerprint: str,
        checkpoint: Path | None = None,
        progress: TrainingProgress | None = None,
        check: Callable[[Outputs, int], None] | None = None,
        before_epoch: Callable[[int], Hashable] | None = None,
        may_rise: bool = False,
        replay: bool = False,
    ) -> None:
        self.module, self.task, self.budget = module, task, budget
        self.loss, self.optimizer, self.collect = loss, optimizer, collect
        self.device, self.fingerprint = device, fingerprint
        self.checkpoint, self.progress, self.check = checkpoint, progress, check
        # what it gives is the phase: all that a step depends on besides tensors.
        self.before_epoch = before_epoch
        self.phase: Hashable = None
        # from a trained network a finite loss, however high, is an outcome; from a new one it is a mistake.
        self.may_rise = may_rise
        self.order: Order = torch.Generator().manual_seed(derive_seed(seed, "order"))
        self.noise_seed = derive_seed(seed, "noise")
        self.state = Run()
        self.steps_per_epoch = steps_in_epoch(task.train_rows, budget.batch_size)
        steps = budget.epochs * self.steps_per_epoch
        self._average = LateAverage(module, steps - round(budget.average * steps)) if budget.average else None
        self._stop = False
        # our networks are tensors and nothing else; a user's may count its calls, which a graph would not.
        self._replayed: ReplayedSteps | None = None
        if replay and can_be_replayed(device):
            self._replayed = ReplayedSteps(self._gradient, optimizer, device)
        self._forward = self._compile() if budget.compile and device.type == "cuda" else module

    def run(self, *, resume: bool = False) -> Run:
        cuda = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda), _deterministic_cudnn(), self._stop_on_interrupt():
            torch.manual_seed(self.noise_seed)
            if resume and self.checkpoint is not None and self.checkpoint.exists():
                self._restore()
            self.module.train()
            self._saved_at = time.monotonic()
            while self._goes_on():
                self._epoch()
            self.module.eval()
        if self.checkpoint is not None:
            self._save(order=self.order.get_state())
        return self.state

    def _goes_on(self) -> bool:
        return self.state.epoch < self.budget.epochs

    def _batches(self) -> Iterator[Batch]:
        assert isinstance(self.order, torch.Generator)
        return self.task.training_batches(self.budget.batch_size, self.order, self.device, self.state.epoch)

    def _epoch(self) -> None:
        state = self.state
        if self.before_epoch is not None:
            self.phase = self.before_epoch(state.epoch)
        order_before = self.order.get_state()
        skip = state.step
        for index, (x, y) in enumerate(self._batches()):
            if index < skip:
                # resumed inside this epoch: these batches are done, the generators are already behind them.
                if index == skip - 1:
                    self._restore_generators()
                continue
            self._step(x, y)
            if self._stop or self._checkpoint_due():
                self._save(order=order_before)
            if self._stop:
                raise Interrupted(
                    "a run must be left to finish to give a posterior",
                    f"stopped in epoch {state.epoch + 1} of {self.budget.epochs}",
                    f"resume it: the checkpoint is {self.checkpoint}",
                )
        self._end_epoch()

    def _step(self, x: Tensor, y: Tensor) -> None:
        state, budget = self.state, self.budget
        total = budget.epochs * self.steps_per_epoch
        number = min(state.epoch * self.steps_per_epoch + state.step, total - 1)
        if state.epoch < round(budget.small_images * budget.epochs):
            x = shrink(x)
        loss = self._descend(x, y, budget.rate_at(number, total))
        if self._average is not None:
            self._average.add(number)
        # the rows lie behind the axis of a stack, which the loss has too.
        seen = loss.detach() * y.shape[loss.ndim]
        state.loss_sum = seen if state.loss_sum is None else state.loss_sum + seen
        state.step += 1

    def _descend(self, x: Tensor, y: Tensor, rate: float) -> Tensor:
        """The loss, after a step against its gradient."""
        if self._replayed is not None:
            self._replayed.set_rate(rate)
            return self._replayed(x, y, self.phase)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self._gradient(x, y)
        self.optimizer.step()
        return loss

    def _gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss, and its gradient in the parameters, clipped."""
        loss = self._loss_of(x, y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        if self.budget.clip is not None:
            clip_gradients(self.module.parameters(), self.budget.clip, stacked=loss.ndim > 0)
        return loss

    def _loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        state = self.state
        outputs = self._in_arithmetic(self._forward, x)
        if self.check is not None and state.epoch == state.step == 0:
            # the dry run has two rows: some networks change their batch only beyond those.
            self.check(outputs, len(x))
        return self.loss(self.module, in_float32(outputs), y)

    def _in_arithmetic(self, network: Callable[[Tensor], Any], x: Tensor) -> Any:
        """What ``network`` answers to ``x`` in the layout and the arithmetic of the budget."""
        if self.budget.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.budget.bf16 is True):
            return network(x)

    def _end_epoch(self) -> None:
        state = self.state
        assert state.loss_sum is not None
        mean = (state.loss_sum / rows_in_epoch(self.task.train_rows, self.budget.batch_size)).cpu()
        state.epoch, state.step, state.loss_sum = state.epoch + 1, 0, None
        state.losses.append(self._judge(mean))
        if self.collect(state.epoch, self.budget.epochs):
            if self._average is not None and not self._average.is_empty:
                # not what is compiled: the norms' momentum is another.
                run = functools.partial(self._in_arithmetic, self.module)
                self._average.give(self._rows_of_statistics(), run)
            self._judge_member()
            state.members.append(state_to(self.module.state_dict(), "cpu"))
        if self.progress is not None:
            self.progress.update(state.epoch, state.losses[-1])

    def _rows_of_statistics(self) -> Iterator[Tensor]:
        """Training inputs, augmented, in an order of their own."""
        order, rows = torch.Generator().manual_seed(derive_seed(self.noise_seed, "statistics")), 0
        for x, _ in self.task.training_batches(self.budget.batch_size, order, self.device, self.state.epoch):
            yield x
            rows += len(x)
            if rows >= _ROWS_OF_STATISTICS:
                return

    def _judge(self, mean: Tensor) -> float:
        """The epoch's loss, when it is sound."""
        check_losses([*self.state.losses, float(mean)], may_rise=self.may_rise)
        return float(mean)

    def _judge_member(self) -> None:
        check_losses(self.state.losses, kept=True, may_rise=self.may_rise)
        check_state(self.module.state_dict(), self.state.epoch)

    def _compile(self) -> Any:
        # small networks are bound by launches: torch's own CUDA graphs, where the step is in none of ours.
        mode = "reduce-overhead" if self._replayed is None else "default"
        return torch.compile(self.module, mode=mode, dynamic=False)

    @contextlib.contextmanager
    def _stop_on_interrupt(self) -> Iterator[None]:
        """The first Ctrl-C lets the step finish and writes a checkpoint; a second one interrupts at once."""
        if self.checkpoint is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        before = signal.signal(signal.SIGINT, ask_to_stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _checkpoint_due(self) -> bool:
        return self.checkpoint is not None and time.monotonic() - self._saved_at > _CHECKPOINT_SECONDS

    def _save(self, order: Tensor) -> None:
        if self.checkpoint is None:
            return
        state = self.state
        tensors, numbers = optimizer_tensors(self.optimizer)
        tensors |= {f"module/{name}": value for name, value in self.module.state_dict().items()}
        for index, member in enumerate(state.members):
            tensors |= {f"member/{index}/{name}": value for name, value in member.items()}
        tensors |= {"order": order, "order_now": self.order.get_state(), **self._noise_states()}
        if state.loss_sum is not None:
            tensors["loss_sum"] = state.loss_sum
        if self._average is not None:
            tensors |= self._average.tensors()
        values = {
            "fingerprint": self.fingerprint,
            "epoch": state.epoch,
            "step": state.step,
            "losses": state.losses,
            "members": len(state.members),
            "numbers": numbers,
            **self._more_values(),
        }
        write_checkpoint(self.checkpoint, tensors, values)
        self._saved_at = time.monotonic()

    def _restore(self) -> None:
        assert self.checkpoint is not None
        tensors, values = read_checkpoint(self.checkpoint)
        if values.get("fingerprint") != self.fingerprint:
            raise BadCheckpoint(
                "a run can be resumed only with the settings and data it was started with",
                f"{self.checkpoint} belongs to another run",
                "give the same task, network, method, budget and seed, or start again without resume",
            )
        try:
            self._take_up(tensors, values)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BadCheckpoint(
                "a checkpoint must hold what the run needs",
                f"{self.checkpoint}: {type(error).__name__}: {error}",
                "delete it and start again without resume",
            ) from None

    def _take_up(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        _load(
            self.module, {n.removeprefix("module/"): t for n, t in tensors.items() if n.startswith("module/")}
        )
        restore_optimizer(self.optimizer, tensors, values["numbers"])
        if self._average is not None:
            self._average.restore(tensors)
        held = {n.removeprefix("member/"): t for n, t in tensors.items() if n.startswith("member/")}
        members = members_of(held, values["members"]) if held or values["members"] else []
        loss_sum = tensors["loss_sum"].to(self.device) if "loss_sum" in tensors else None
        epoch, step = values["epoch"], values["step"]
        if not (0 <= epoch <= self.budget.epochs and 0 <= step <= self.steps_per_epoch):
            raise ValueError(f"step {step} of epoch {epoch}")
        self.state = Run(int(epoch), int(step), loss_sum, values["losses"], members)
        self._restore_more(values)
        self.order.set_state(tensors["order"])
        self._kept = tensors
        if step == 0:
            self._restore_generators()

    def _restore_generators(self) -> None:
        self.order.set_state(self._kept["order_now"])
        self._restore_noise(self._kept)

    def _noise_states(self) -> dict[str, Tensor]:
        states = {"rng": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["rng_cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def _restore_noise(self, kept: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(kept["rng"])
        if "rng_cuda" in kept:
            torch.cuda.set_rng_state(kept["rng_cuda"], self.device)

    def _more_values(self) -> dict[str, Any]:
        """What a checkpoint of this kind of loop holds besides, as JSON."""
        return {}

    def _restore_more(self, values: Mapping[str, Any]) -> None:
        """Take up what ``_more_values`` gave."""


def _load(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        # only so are other names and shapes told: what else torch may raise is the device's.
        if "loading state_dict" not in str(error):
            raise
        raise ValueError(str(error).splitlines()[-1].strip()) from None


@contextlib.contextmanager
def _deterministic_cudnn() -> Iterator[None]:
    """cuDNN's own choice of kernels adds in another order from run to run: the same seed, other bits."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def in_float32(outputs: Outputs) -> Outputs:
    """Losses are computed in float32 whatever the network ran in."""
    if isinstance(outputs, Tensor):
        return outputs.float()
    return {name: head.float() for name, head in outputs.items()}
