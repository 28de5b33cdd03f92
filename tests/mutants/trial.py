"""Tests on trial, in a process with a copy of the project of its own: ``python -m mutants.trial TREE``.

It reads one line of JSON for each mutation, puts the mutated text into its copy, runs the tests until one
fails, and answers with a line. Each run of tests is a fork of the process, which has imported what is large
and not ours: that saves most of the seconds that a mutation takes to be told.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from mutants.tree import ROOT, SOURCE, environment

_LARGE = (
    *("torch", "torch.export", "torch._dynamo", "numpy", "scipy.special", "sklearn.datasets", "pandas"),
    *("hypothesis", "safetensors.torch", "typer", "rich.console"),
)
# seconds of tests that are run together: the first few are likely to tell.
_FIRST, _GROWS = 4.0, 4.0
# the tests are timed under measurement, which is slow, but the machine may be busy; and what another test of
# the file had trained for them they train themselves.
_PATIENCE, _LEAST_PATIENCE = 4.0, 240.0
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-n", "0", "--tb=line")

Timed = tuple[str, float]  # a test, or a file of tests, and its seconds


@dataclass(frozen=True)
class Outcome:
    """``survived``, ``killed`` by a test, ``timeout``, ``crashed``; or ``error``: as without a mutation."""

    state: str
    by: tuple[str, ...] = ()
    tests: int = 0
    seconds: float = 0.0


def main() -> None:
    tree = Path(sys.argv[1])
    _prepare()
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(asdict(judged(tree, **asked))), flush=True)


def _prepare() -> None:
    """Import what is large, so that forks have it; nothing here may start a thread."""
    os.environ.update(OMP_NUM_THREADS="1", MPLBACKEND="Agg")
    for name in _LARGE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
        # as conftest.py has it, before something imports Triton.
        if name == "torch" and not importlib.import_module(name).cuda.is_available():
            os.environ.setdefault("TRITON_INTERPRET", "1")


def judged(
    tree: Path,
    *,
    file: str | None,
    text: str,
    tests: Sequence[Timed],
    without: Sequence[str],
    budget: float,
    to_the_end: bool,
) -> Outcome:
    """What the tests say of ``text`` in place of a file of the source; ``budget`` seconds of them run."""
    begun, stage, ran = time.monotonic(), [], 0
    found, failed = Outcome("survived"), list[str]()
    with _put(tree, file, text):
        for stage in _stages(tests, budget):
            found, ran = run_tests(stage, tree, without, to_the_end=to_the_end), ran + len(stage)
            failed += found.by
            if found.state != "survived" and not to_the_end:
                break
    if file is not None and found.state in ("timeout", "crashed"):
        clean = run_tests(stage, tree, without, to_the_end=False)
        found = found if clean.state == "survived" else Outcome("error", found.by)
    return Outcome(found.state, tuple(failed) if to_the_end else found.by, ran, time.monotonic() - begun)


@contextlib.contextmanager
def _put(tree: Path, file: str | None, text: str) -> Any:
    if file is None:
        yield
        return
    original, place = ROOT / SOURCE / file, tree / SOURCE / file
    place.write_text(text, encoding="utf-8")
    # another time than the original's: what Python compiled of that does not pass for this.
    then = original.stat().st_mtime - 10
    os.utime(place, (then, then))
    try:
        yield
    finally:
        shutil.copy2(original, place)


def _stages(tests: Sequence[Timed], budget: float) -> list[list[Timed]]:
    stages: list[list[Timed]] = [[]]
    limit, spent, total = _FIRST, 0.0, 0.0
    for name, seconds in tests:
        if total + seconds > budget and total > 0:
            break
        if spent > limit:
            stages.append([])
            limit, spent = limit * _GROWS, 0.0
        stages[-1].append((name, seconds))
        spent, total = spent + seconds, total + seconds
    return stages


def run_tests(tests: Sequence[Timed], tree: Path, without: Sequence[str], *, to_the_end: bool) -> Outcome:
    """What these tests say, in a fork; ``to_the_end``: not only until the first fails."""
    answer, now = (tree.parent / f"{tree.name}.{name}" for name in ("answer", "now"))
    for path in (answer, now):
        path.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _run_in_child(Chosen([name for name, _ in tests], without, now), tree, answer, to_the_end)
    seconds = sum(seconds for _, seconds in tests)
    ended = _waited(child, time.monotonic() + max(_LEAST_PATIENCE, _PATIENCE * seconds))
    if answer.exists():
        failed = tuple(json.loads(answer.read_text()))
        return Outcome("killed", failed) if failed else Outcome("survived")
    last = now.read_text() if now.exists() else "what is imported first"
    return Outcome("crashed" if ended else "timeout", (last,))


def _waited(child: int, until: float) -> bool:
    """Whether the child ended by itself; whatever it started is ended with it."""
    while not (ended := bool(os.waitpid(child, os.WNOHANG)[0])) and time.monotonic() < until:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
    return ended


def _run_in_child(chosen: "Chosen", tree: Path, answer: Path, to_the_end: bool) -> None:
    """Never returns."""
    try:
        os.setsid()
        # a shell lets its background processes ignore Ctrl-C, and tests send it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(tree)
        os.environ.update(environment(tree), PYTHONDONTWRITEBYTECODE="1")
        sys.dont_write_bytecode = True
        here = str(ROOT / "tests")
        sys.path[:] = [str(tree / "src"), str(tree / "tests"), *(path for path in sys.path if path != here)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("mutants", "qbayes")]:
            del sys.modules[name]
        log = os.open(f"{tree}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        options = [option for option in _OPTIONS if not (to_the_end and option == "-x")]
        code = int(pytest.main([*options, *chosen.files], plugins=[chosen]))
        if code in (0, 5) or chosen.failed:
            answer.write_text(json.dumps(chosen.failed))
        sys.stdout.flush()
    finally:
        os._exit(0)


class Chosen:
    """A plugin: of what was collected these tests, in their order; the files in the order of their first.

    A file stands for all of its tests, but for those ``without``.
    """

    def __init__(self, tests: Sequence[str], without: Sequence[str], now: Path) -> None:
        self.files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        self.places = {
            test: (self.files.index(test.partition("::")[0]), index) for index, test in enumerate(tests)
        }
        self.without, self.failed, self.now = without, list[str](), now

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        found = [(self._place(item.nodeid), item) for item in items if item.nodeid not in self.without]
        chosen = [(place, item) for place, item in found if place is not None]
        items[:] = [item for _, item in sorted(chosen, key=lambda pair: pair[0])]

    def _place(self, test: str) -> tuple[int, int] | None:
        return self.places.get(test, self.places.get(test.partition("::")[0]))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now.write_text(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} (as it is collected)")


if __name__ == "__main__":
    main()
