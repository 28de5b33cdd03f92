"""What must hold of a program on a backend: the reference's codes, and one answer to one question.

Memory is dirtied before the kernels run, in two ways, so that what reads memory which it never wrote differs.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from handmade.random_programs import Case
from parity.c_build import SANITIZED, STRICT, compilers, run
from qbayes.export.c.selftest import record, test_data
from qbayes.export.targets.c import CTarget
from qbayes.integer.arithmetic.exact_matmul import dirty_memory
from qbayes.integer.compare import Record, record_ops, replay_on
from qbayes.integer.posterior import ProgramPosterior, load

DIRT = (0x55, 0xAA)
SEED = 5


@dataclass(frozen=True)
class Outcome:
    """What was wrong, and how many codes of kernels that may round otherwise did so."""

    wrong: tuple[str, ...]
    rounded: int = 0
    codes: int = 0


def check(case: Case, target: str) -> Outcome:
    """The case on a backend, or as exported C under sanitizers (``c``)."""
    return check_c(case) if target == "c" else check_backend(case, target)


def check_backend(case: Case, backend: str) -> Outcome:
    program, deployed = case.program, load(case.program, backend)
    record = record_ops(program, "reference", case.x.float(), case.draws, SEED)
    loaded = deployed.interpreter.backend
    exact = {name for name in record if all(member[name].is_exact for member in loaded.kernels)}
    wrong: list[str] = []
    rounded = codes = 0
    for byte in DIRT:
        with dirty_memory(byte):
            made = replay_on(loaded, record)
        for name, apart in _distances(record, made).items():
            most = 0 if name in exact else loaded.tolerance.codes
            far = int((apart > most).sum())
            if far:
                wrong.append(f"{name}: {far} of {apart.numel()} codes, by up to {int(apart.max())}")
            if name not in exact:
                rounded, codes = rounded + int((apart > 0).sum()), codes + apart.numel()
    answers = _answers(case, deployed)
    if any(not torch.equal(answers[0], other) for other in answers[1:]):
        wrong.append("another answer to the same question")
    if exact == set(record) and not torch.equal(answers[0], _reference(case)):
        wrong.append("other answers than the reference, though every op is exact")
    return Outcome(tuple(wrong), rounded, codes)


def check_c(case: Case) -> Outcome:
    """Bit for bit, under two sanitizers: the self-test that is exported, of the rows of the case."""
    target = CTarget()
    network = target.network(case.program)
    truth = record(case.program, len(case.x), case.draws, SEED, case.x.float())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = target.files(network) | {"network_test_data.h": test_data(network, truth)}
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        made = folder / "test"
        sources = [folder / "network.c", folder / "network_test.c"]
        run([compilers()[0], *STRICT, "-O1", *SANITIZED, *sources, "-o", made])
        said = run([made], environment={"MALLOC_PERTURB_": "85"})
    return Outcome(() if "the same bits" in said else (said[:200],))


def _distances(record: Record, made: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    return {
        name: torch.cat(
            [
                (seen.output.int() - codes.int()).abs().flatten()
                for seen, codes in zip(calls, made[name], strict=True)
            ]
        )
        for name, calls in record.items()
    }


def _answers(case: Case, deployed: ProgramPosterior) -> list[Tensor]:
    """One question three times: on memory as it is, on dirty memory, and there with rows in two batches."""
    answers: list[Tensor] = []
    for byte, size in ((0, None), (DIRT[0], None), (DIRT[1], 2)):
        with dirty_memory(byte):
            answers.append(_heads(deployed.outputs(case.x, case.draws, SEED, batch_size=size)))
    return answers


def _reference(case: Case) -> Tensor:
    return _heads(load(case.program, "reference").outputs(case.x.float(), case.draws, SEED))


def _heads(outputs: Tensor | dict[str, Tensor]) -> Tensor:
    tensors: Sequence[Tensor] = (
        [outputs] if isinstance(outputs, Tensor) else [outputs[k] for k in sorted(outputs)]
    )
    return torch.cat([tensor.flatten() for tensor in tensors])
