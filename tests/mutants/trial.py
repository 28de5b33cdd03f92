"""One mutation on trial: put into a copy of the project, then the tests that reach it, until one fails.

The tests run in a fork of this process, which has imported what is large and not ours: that saves most of the
seconds that a mutant takes to be told.
"""

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mutants.mutation import Mutation
from mutants.reach import Test
from mutants.tree import ROOT, SOURCE, environment

_LARGE = (
    *("torch", "torch.export", "torch._dynamo", "numpy", "scipy.special", "sklearn.datasets", "pandas"),
    *("hypothesis", "safetensors.torch", "typer", "rich.console", "_pytest.assertion.rewrite"),
)
# seconds of tests that are run together: the first few are likely to tell.
_FIRST, _GROWS = 4.0, 4.0
# the tests are timed under measurement, which is slow, but the machine may be busy.
_PATIENCE, _LEAST_PATIENCE = 4.0, 60.0
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-n", "0", "--tb=line")


@dataclass(frozen=True)
class Verdict:
    """``state``: killed, survived, timeout, unreached, or stale; ``by`` is the test that failed."""

    mutation: Mutation
    state: str
    by: str = ""
    tests: int = 0
    of: int = 0
    seconds: float = 0.0


def prepare() -> None:
    """Import what is large, so that forks have it; before that nothing may use several threads."""
    os.environ.update(OMP_NUM_THREADS="1", MPLBACKEND="Agg")
    for name in _LARGE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def try_mutation(mutation: Mutation, tests: Sequence[Test], tree: Path, budget: float) -> Verdict:
    """Whether one of the tests fails with the mutation in ``tree``; ``budget`` seconds of them are run."""
    begun = time.monotonic()
    if not tests:
        return Verdict(mutation, "unreached")
    original, place = ROOT / SOURCE / mutation.file, tree / SOURCE / mutation.file
    _put(place, mutation.applied(original.read_text(encoding="utf-8")), original)
    try:
        state, by, ran = _judge(tests, tree, budget)
    finally:
        shutil.copy2(original, place)
    return Verdict(mutation, state, by, ran, len(tests), time.monotonic() - begun)


def _put(place: Path, text: str, original: Path) -> None:
    """With another time than the original: what Python compiled of that does not pass for this."""
    place.write_text(text, encoding="utf-8")
    then = original.stat().st_mtime - 10
    os.utime(place, (then, then))


def _judge(tests: Sequence[Test], tree: Path, budget: float) -> tuple[str, str, int]:
    ran = 0
    for stage in _stages(tests, budget):
        found = run_tests([test.id for test in stage], tree, sum(test.seconds for test in stage))
        ran += len(stage)
        if found is not None:
            return ("timeout" if found == "timeout" else "killed"), found, ran
    return "survived", "", ran


def _stages(tests: Sequence[Test], budget: float) -> list[list[Test]]:
    stages: list[list[Test]] = [[]]
    limit, spent, total = _FIRST, 0.0, 0.0
    for test in tests:
        if total + test.seconds > budget and total > 0:
            break
        if spent > limit:
            stages.append([])
            limit, spent = limit * _GROWS, 0.0
        stages[-1].append(test)
        spent, total = spent + test.seconds, total + test.seconds
    return stages


def run_tests(ids: Sequence[str], tree: Path, seconds: float, *, all_of_them: bool = False) -> str | None:
    """The first of these tests that fails in ``tree``, or all that do, by lines; None where all pass."""
    answer = tree.parent / f"{tree.name}.answer"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _run_in_child(ids, tree, answer, all_of_them)
    status = _waited(child, time.monotonic() + max(_LEAST_PATIENCE, _PATIENCE * seconds))
    if status is None:
        return "timeout"
    if not answer.exists():
        return f"the process of the tests ended with {os.waitstatus_to_exitcode(status)}"
    failed, code = json.loads(answer.read_text())
    if failed:
        return "\n".join(failed)
    # 5: nothing was collected, since the file is not imported any more; 1 without a report is a crash.
    return None if code in (0, 5) else f"pytest ended with {code}: the tests cannot be collected"


def _waited(child: int, until: float) -> int | None:
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)


def _run_in_child(ids: Sequence[str], tree: Path, answer: Path, all_of_them: bool) -> None:
    """Never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(tree)
        os.environ.update(environment(tree))
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.path[:] = [str(tree / "src"), str(tree / "tests"), *(p for p in sys.path if not _is_ours(p))]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("mutants", "qbayes")]:
            del sys.modules[name]
        log = os.open(tree.parent / f"{tree.name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        chosen = Chosen(ids)
        files = list(dict.fromkeys(test.partition("::")[0] for test in ids))
        options = [option for option in _OPTIONS if not (all_of_them and option == "-x")]
        code = int(pytest.main([*options, *files], plugins=[chosen]))
        answer.write_text(json.dumps([chosen.failed, code]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _is_ours(path: str) -> bool:
    return (Path(path or ".") / "qbayes").is_dir() or (Path(path or ".") / "mutants").is_dir()


class Chosen:
    """A plugin: of what was collected these tests, in their order; the files in the order of their first."""

    def __init__(self, ids: Sequence[str]) -> None:
        files = list(dict.fromkeys(test.partition("::")[0] for test in ids))
        self.places = {test: (files.index(test.partition("::")[0]), index) for index, test in enumerate(ids)}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self.places]
        items.sort(key=lambda item: self.places[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} (collected)")
