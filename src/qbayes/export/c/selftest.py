"""Recorded inputs, noise (a seed) and answers of the reference: what the exported self-test compares with."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qbayes.export.c.data import number
from qbayes.export.c.source import Network, input_grids
from qbayes.integer.backends.base import choose
from qbayes.integer.interpreter import Interpreter
from qbayes.integer.program import Program
from qbayes.integer.statistics.summary import Answer, answer

SEED = 2026


@dataclass(frozen=True, eq=False)
class Recorded:
    """Codes of inputs ``(rows, grids · inputs)`` and outputs ``(rows, draws, codes)``, and the statistics."""

    raw: Tensor
    inputs: Tensor
    outputs: Tensor
    answer: Answer
    seed: int


def record(program: Program, rows: int, draws: int, seed: int = SEED, raw: Tensor | None = None) -> Recorded:
    """What the reference answers to random inputs, or to ``raw`` ones."""
    interpreter = Interpreter(program, choose("reference", program, torch.device("cpu")))
    x = _inputs(program, rows) if raw is None else raw
    members, grids = program.members, input_grids(program)[0]
    codes = [interpreter.input_codes(x, members[member]).flatten(1) for member in grids]
    heads = {head: _draws(interpreter, head, x, draws, seed) for head in program.outputs}
    order = sorted(heads, key=lambda head: head == "log_variance")
    outputs = torch.cat([heads[head].flatten(2) for head in order], dim=2)
    return Recorded(
        x.flatten(1), torch.cat(codes, dim=1).long(), outputs.transpose(0, 1), answer(program, heads), seed
    )


def _inputs(program: Program, rows: int) -> Tensor:
    """Around the mean of the training data, and beyond the ends of the grid."""
    shape = program.values[program.input].shape
    spread = torch.randn((rows, *shape), generator=torch.Generator().manual_seed(SEED)) * 2
    return program.signature.transform.invert(spread)


def _draws(interpreter: Interpreter, head: str, x: Tensor, draws: int, seed: int) -> Tensor:
    """The codes of one head, ``(draws, rows, …)``."""
    program = interpreter.program
    name, count = program.outputs[head], len(program.members)
    found = torch.empty((draws, len(x), *program.values[name].shape), dtype=torch.int64)
    for index, member in enumerate(program.members[:draws]):
        ids = list(range(index, draws, count))
        codes, weights = interpreter.input_codes(x, member), interpreter.weights(index, ids, seed)
        made = interpreter.run(index, codes, ids, seed, 0, weights)[name].long()
        found[ids] = made.view(-1, len(x), *made.shape[1:])
    return found


def test_data(network: Network, recorded: Recorded) -> str:
    """``network_test_data.h``."""
    rows, draws, _ = recorded.outputs.shape
    parts = [
        f"#define QB_RECORDED_SEED UINT64_C({recorded.seed})",
        f"#define QB_RECORDED_ROWS {rows}u",
        f"#define QB_RECORDED_DRAWS {draws}u",
        _table("network_input recorded_inputs[{0}][{1}]", recorded.inputs, network.input_type),
        _table("network_output recorded_outputs[{0}][{1}][{2}]", recorded.outputs, network.output_type),
        _table("int32_t recorded_mean[{0}][{1}]", recorded.answer.mean, "int32_t"),
        _table("int64_t recorded_variance[{0}][{1}]", recorded.answer.variance, "int64_t"),
        _table("int64_t recorded_entropy[{0}]", recorded.answer.entropy, "int64_t"),
        "#ifdef NETWORK_FLOAT",
        _table("float recorded_raw[{0}][{1}]", recorded.raw, "float"),
        "#endif",
    ]
    return "\n".join(parts) + "\n"


def _table(declared: str, values: Tensor, kind: str) -> str:
    return f"static const {declared.format(*values.shape)} = {_braces(values.tolist(), kind)};"


def _braces(values: Any, kind: str) -> str:
    if not isinstance(values, list):
        return number(values, kind)
    inside = ", ".join(_braces(value, kind) for value in values)
    return "{" + inside + "}"
