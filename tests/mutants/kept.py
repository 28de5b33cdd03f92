"""What earlier runs found, in a file: a run that was stopped goes on, and only what changed is tried again.

A mutation stays killed while its text and the file of the test that killed it are what they were. One that
survived is tried by those tests alone that are new since, or whose file changed. Other files of the tests,
such as ``conftest.py``, are not looked at: after a change of those, say ``--fresh``.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mutants.hands import Case, Verdict
from mutants.tree import ROOT, SOURCE


class Kept:
    """The file ``path``, one line for each verdict; ``hashes`` are those of the tests' files."""

    def __init__(self, path: Path, hashes: Mapping[str, str], *, fresh: bool = False) -> None:
        self._path, self._hashes = path, hashes
        if fresh:
            path.unlink(missing_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        self._found: dict[str, dict[str, Any]] = {}
        for line in lines:
            said = json.loads(line)
            self._found[said["mutation"]] = said

    def verdict(self, case: Case) -> Verdict | None:
        """What is known of the mutation, if it still holds."""
        said = self._found.get(_name(case))
        if said is None or not case.tests:
            return None
        found = Verdict(case.mutation, said["state"], said["by"], said["tests"], said["of"], said["seconds"])
        if said["state"] == "killed":
            return found if self._hashes.get(_file(said["by"])) == said["ran"].get(said["by"]) else None
        return found if not self.left(case).tests else None

    def left(self, case: Case) -> Case:
        """The case with those tests that have not run on it."""
        said = self._found.get(_name(case), {"state": "", "ran": {}})
        ran = said["ran"] if said["state"] == "survived" else {}
        left = [test for test in case.tests if ran.get(test.id) != self._hashes[test.file]]
        return replace(case, tests=tuple(left))

    def keep(self, case: Case, verdict: Verdict) -> None:
        """Write down what was found of a case as ``left`` gave it."""
        if verdict.state not in ("killed", "survived"):
            return
        name = _name(case)
        if verdict.state == "killed":
            ran = {verdict.by: self._hashes[_file(verdict.by)]}
        else:
            before = self._found.get(name, {"state": "", "ran": {}})
            ran = dict(before["ran"]) if before["state"] == "survived" else {}
            ran |= {test.id: self._hashes[test.file] for test in case.tests[: verdict.tests]}
        said = {"mutation": name, "id": verdict.mutation.id, "state": verdict.state, "by": verdict.by}
        said |= {"tests": len(ran), "of": verdict.of, "seconds": round(verdict.seconds, 1), "ran": ran}
        self._found[name] = said
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")


def _name(case: Case) -> str:
    """The mutation by all that it says: the file's mutated text."""
    mutation = case.mutation
    mutated = mutation.applied((ROOT / SOURCE / mutation.file).read_text(encoding="utf-8"))
    return hashlib.sha256(f"{mutation.file}\n{mutated}".encode()).hexdigest()


def _file(test: str) -> str:
    return test.partition("::")[0].partition(" ")[0]
