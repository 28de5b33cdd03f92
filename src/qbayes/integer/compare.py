"""How far two ways of running a program lie apart, op by op, each op fed the same codes.

``record_ops`` keeps what every op of a backend read and wrote; ``replay`` feeds those inputs to another
backend; ``distances`` compares. A record from elsewhere (hooks in a fake-quantised network) serves as well:
it only has to hold, by op name, the input and output codes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.integer.backends.base import Backend, choose
from qbayes.integer.interpreter import Interpreter
from qbayes.integer.ops.base import Noise, Op
from qbayes.integer.program import Program


@dataclass(frozen=True, eq=False)
class Seen:
    """One call of an op: its input and output codes, the noise it drew, and the member it belongs to."""

    inputs: tuple[Tensor, ...]
    output: Tensor
    noise: Noise
    member: int = 0


Record = Mapping[str, Sequence[Seen]]


@dataclass(frozen=True)
class OpDistance:
    """The codes of one op against another way of running it."""

    op: str
    kind: str
    largest: int
    share_equal: float
    codes: int


def record_ops(
    program: Program,
    backend: str,
    x: Tensor,
    draws: int,
    seed: int,
    first_row: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, list[Seen]]:
    """What every op of ``backend`` read and wrote, by op name; all rows of ``x`` (raw units) at once."""
    interpreter = Interpreter(program, choose(backend, program, torch.device(device)))
    found: dict[str, list[Seen]] = {}

    def watch(op: Op, member: int, inputs: Sequence[Tensor], noise: Noise, output: Tensor) -> None:
        batch = output.shape[0]
        wide = [_for_each_draw(one, batch) for one in inputs]
        found.setdefault(op.name, []).append(Seen(tuple(wide), output, noise, member))

    for index, member in enumerate(program.members[:draws]):
        mine = list(range(index, draws, len(program.members)))
        codes = interpreter.input_codes(x, member)
        weights = interpreter.weights(index, mine, seed)
        interpreter.run(index, codes, mine, seed, first_row, weights, watch)
    return found


def replay(
    program: Program, backend: str, record: Record, device: torch.device | str = "cpu"
) -> dict[str, list[Tensor]]:
    """What ``backend`` makes of the inputs in ``record``, in its order."""
    return replay_on(choose(backend, program, torch.device(device)), record)


def replay_on(chosen: Backend, record: Record) -> dict[str, list[Tensor]]:
    """What a backend that is loaded already makes of the inputs in ``record``, in its order."""
    found: dict[str, list[Tensor]] = {}
    for name, calls in record.items():
        for seen in calls:
            kernel = chosen.kernels[seen.member][name]
            ids = seen.noise.draws.tolist() if kernel.draws_weights else []
            drawn = [kernel.draw(seen.noise.seed, draw) for draw in ids]
            inputs = [codes.to(chosen.device) for codes in seen.inputs]
            noise = Noise(
                seen.noise.seed, seen.noise.draws.to(chosen.device), seen.noise.first_row, seen.noise.rows
            )
            found.setdefault(name, []).append(kernel(inputs, noise, drawn))
    return found


def distances(program: Program, record: Record, other: Mapping[str, Sequence[Tensor]]) -> list[OpDistance]:
    """The largest distance and the share of equal codes for every op of the program that is in both."""
    rows: list[OpDistance] = []
    for op in program.ops:
        if op.name not in record or op.name not in other:
            continue
        pairs = zip(record[op.name], other[op.name], strict=True)
        apart = torch.cat(
            [(seen.output.cpu().int() - codes.cpu().int()).abs().flatten() for seen, codes in pairs]
        )
        equal = float((apart == 0).double().mean())
        rows.append(OpDistance(op.name, op.kind, int(apart.max()), equal, apart.numel()))
    return rows


def compare_ops(
    program: Program, backend_a: str, backend_b: str, x: Tensor, draws: int = 2, seed: int = 0
) -> list[OpDistance]:
    """Every op of ``backend_b`` against ``backend_a`` on the codes that the latter computes from ``x``."""
    record = record_ops(program, backend_a, x, draws, seed)
    return distances(program, record, replay(program, backend_b, record))


def _for_each_draw(codes: Tensor, batch: int) -> Tensor:
    return codes if codes.shape[0] == batch else torch.cat([codes] * (batch // codes.shape[0]))
