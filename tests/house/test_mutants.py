"""``make mutants`` goes on where it was stopped, and asks first the tests that are about what was mutated."""

from pathlib import Path

import pytest

from mutants import timed
from mutants.hands import Case, Verdict
from mutants.kept import Kept
from mutants.likely import Likely
from mutants.mutation import Mutation
from mutants.tree import ROOT, SOURCE

MUTATION = Mutation("reach", "integer/ops/base.py", "def reach(", "def reaches(")
FILES = {"tests/a.py": "1", "tests/b.py": "1"}
LIKELY = Likely()
CASE = Case(MUTATION, tuple(timed.Test(file, 1.0, 0) for file in FILES))


@pytest.mark.parametrize(
    ("file", "old", "about_it"),
    [
        ("integer/ops/base.py", "def reach(", "tests/unit/test_bounds.py"),
        ("integer/structure/op_record.py", "def bytes_packed(", "tests/unit/test_bitpack.py"),
        ("metrics/detection.py", "def fpr95(", "tests/unit/test_metrics_detection.py"),
    ],
)
def test_the_tests_of_a_module_come_first(file: str, old: str, about_it: str) -> None:
    found = LIKELY.tests(Mutation("one", file, old, ""), (ROOT / SOURCE / file).read_text(encoding="utf-8"))
    assert found[0].id == about_it
    assert len({test.id for test in found}) == len(found)


def test_what_imports_nothing_of_the_mutated_module_is_left_out() -> None:
    text = (ROOT / SOURCE / "lab" / "analysis" / "intervals.py").read_text(encoding="utf-8")
    found = LIKELY.tests(Mutation("one", "lab/analysis/intervals.py", "import math", ""), text)
    assert "tests/unit/test_bitpack.py" not in {test.id for test in found}


def test_a_killed_mutation_stays_killed_until_the_test_changes(tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    Kept(found, FILES).keep(CASE, Verdict(MUTATION, "killed", "tests/a.py::test_reach[1]", 1, 2))
    again = Kept(found, FILES).verdict(CASE)
    assert again is not None
    assert (again.state, again.by) == ("killed", "tests/a.py::test_reach[1]")
    assert Kept(found, {**FILES, "tests/a.py": "2"}).verdict(CASE) is None
    assert Kept(found, FILES, fresh=True).verdict(CASE) is None


def test_a_survivor_is_tried_by_what_is_new_and_by_nothing_else(tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    Kept(found, FILES).keep(CASE, Verdict(MUTATION, "survived", "", 2, 2))
    again = Kept(found, FILES).verdict(CASE)
    assert again is not None
    assert again.state == "survived"
    changed = Kept(found, {**FILES, "tests/b.py": "2"})
    assert changed.verdict(CASE) is None
    assert [test.id for test in changed.left(CASE).tests] == ["tests/b.py"]


def test_what_the_budget_left_out_is_tried_next(tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    Kept(found, FILES).keep(CASE, Verdict(MUTATION, "survived", "", 1, 2))
    kept = Kept(found, FILES)
    assert [test.id for test in kept.left(CASE).tests] == ["tests/b.py"]
    kept.keep(kept.left(CASE), Verdict(MUTATION, "survived", "", 1, 1))
    assert kept.verdict(CASE) is not None
    assert Kept(found, FILES).verdict(CASE) is not None


def test_another_mutation_of_the_same_line_is_another(tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    Kept(found, FILES).keep(CASE, Verdict(MUTATION, "killed", "tests/a.py::test_reach", 1, 2))
    other = Case(Mutation("reach", "integer/ops/base.py", "def reach(", "def reached("), CASE.tests)
    assert Kept(found, FILES).verdict(other) is None


@pytest.mark.parametrize("state", ["timeout", "crashed", "error"])
def test_what_is_no_verdict_is_not_kept(tmp_path: Path, state: str) -> None:
    Kept(tmp_path / "found.jsonl", FILES).keep(CASE, Verdict(MUTATION, state, "tests/a.py", 1, 2))
    assert Kept(tmp_path / "found.jsonl", FILES).verdict(CASE) is None
