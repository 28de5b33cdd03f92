"""The processes that put tests on trial: started here, given mutations, and asked what became of them."""

import json
import queue
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mutants.mutation import Mutation
from mutants.timed import Test
from mutants.tree import ROOT, SOURCE, copy_project, environment


@dataclass(frozen=True)
class Case:
    """A mutation and the tests that may notice it, the likeliest first; those ``without`` may not."""

    mutation: Mutation
    tests: tuple[Test, ...]
    without: frozenset[str] = frozenset()

    def but(self, without: set[str]) -> "Case":
        return replace(self, without=self.without | without)


@dataclass(frozen=True)
class Verdict:
    """``state`` as in ``trial``, or ``unreached``, ``stale``, ``equivalent``; ``by`` is the failed test."""

    mutation: Mutation
    state: str
    by: str = ""
    tests: int = 0
    of: int = 0
    seconds: float = 0.0


class Hands:
    """So many processes, each with a copy of the project under ``folder``."""

    def __init__(self, folder: Path, count: int) -> None:
        first = copy_project(folder / "tree-0")
        _compile(first)
        trees = [first, *(shutil.copytree(first, folder / f"tree-{n}") for n in range(1, count))]
        self._all = [_start(tree) for tree in trees]
        self._free: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        for process in self._all:
            self._free.put(process)

    def judge(self, cases: Sequence[Case], budget: float) -> Iterator[Verdict]:
        with ThreadPoolExecutor(len(self._all)) as pool:
            for done in as_completed([pool.submit(self._judged, case, budget) for case in cases]):
                yield done.result()

    def failing(self, tests: Iterable[Test]) -> set[str]:
        """Which of the tests fail without a mutation."""
        case = Case(Mutation("none", "", "", ""), tuple(tests))
        return set(self._ask(None, "", case, budget=1e9, to_the_end=True)["by"]) if case.tests else set()

    def _judged(self, case: Case, budget: float) -> Verdict:
        mutation = case.mutation
        if not case.tests:
            return Verdict(mutation, "unreached")
        text = (ROOT / SOURCE / mutation.file).read_text(encoding="utf-8")
        said = self._ask(mutation.file, mutation.applied(text), case, budget=budget, to_the_end=False)
        by = next(iter(said["by"]), "")
        return Verdict(mutation, said["state"], by, said["tests"], len(case.tests), said["seconds"])

    def _ask(
        self, file: str | None, text: str, case: Case, *, budget: float, to_the_end: bool
    ) -> dict[str, Any]:
        timed = [(test.id, test.seconds) for test in case.tests]
        asked = {"file": file, "text": text, "tests": timed, "without": sorted(case.without)}
        asked |= {"budget": budget, "to_the_end": to_the_end}
        process = self._free.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())
        finally:
            self._free.put(process)

    def __enter__(self) -> "Hands":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.terminate()
            process.wait()


def _start(tree: Path) -> "subprocess.Popen[str]":
    told = {**environment(tree), "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "mutants.trial", str(tree)]
    return subprocess.Popen(command, env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _compile(tree: Path) -> None:
    """So that Python and pytest have compiled all files once."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the tests cannot be collected:\n{done.stdout[-2000:]}")
