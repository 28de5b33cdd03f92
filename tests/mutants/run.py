"""Puts mutations into copies of the source and tells which of them no test notices.

    make mutants                                     the committed list
    make mutants MODULES="integer/* quant/fold.py"   of these files
    make mutants OPERATORS=1 MODULES=quant/fold.py   every comparison, ±1, and / or and guard of a file
    make mutants SAMPLE=100                          so many of those at random, of the files of the list
    make mutants LIKELY=1                            measure nothing; run files of tests by imports and names

The list is ``mutations.toml``. For each mutation only those tests of `make test` run that reach the changed
line, the likeliest to notice first; which these are is measured once (``mutants.reach``). A mutation that a
test notices is killed. One whose text is not there any more is stale: choose it again. A killing test counts
if it passes without the mutation. What was found is kept in ``runs/mutants.jsonl``, and holds until the
source or the test changes: a run that was stopped goes on. They are tried in an order drawn from the seed.
"""

import argparse
import fnmatch
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mutants.hands import Case, Hands, Verdict
from mutants.kept import Kept
from mutants.likely import Likely
from mutants.mutation import Mutation, Stale, read_list
from mutants.operators import operator_mutations
from mutants.timed import Test
from mutants.tree import ROOT, SOURCE, test_hashes

if TYPE_CHECKING:
    from mutants.reach import Reach

# seconds of tests, as they took under measurement, after which a mutation has survived.
BUDGET = 900.0
# seconds after which a test that killed is given up where it runs without a mutation.
_LONGEST = 60.0
FOUND = ROOT / "runs" / "mutants.jsonl"


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    mutations = _chosen(asked.modules, operators=asked.operators, sample=asked.sample, seed=asked.seed)
    random.Random(asked.seed).shuffle(mutations)
    kept = Kept(asked.found, test_hashes(), fresh=asked.fresh)
    whole = Likely() if asked.likely else _measured(asked.jobs, fresh=asked.fresh)
    found = list(_tried(mutations, whole, kept, asked.jobs, asked.budget))
    return _told(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--modules", nargs="*", help="files of src/qbayes, or patterns of them")
    parser.add_argument("--operators", action="store_true", help="every operator, in place of the list")
    parser.add_argument("--sample", type=int, help="so many operators at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample, and of the order")
    parser.add_argument(
        "--likely", action="store_true", help="tests by imports and names, not by what they reach"
    )
    parser.add_argument("--found", type=Path, default=FOUND, help="where what was found is kept")
    parser.add_argument("--jobs", type=int, default=1, help="mutations that are tried at a time")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of tests for one mutation")
    parser.add_argument("--fresh", action="store_true", help="forget what was found, measure anew")
    return parser


def _chosen(
    modules: Sequence[str] | None, *, operators: bool, sample: int | None, seed: int
) -> list[Mutation]:
    listed = read_list()
    if sample is None and not operators:
        return [one for one in listed if _matches(one.file, modules)]
    if modules:
        every = [str(path.relative_to(ROOT / SOURCE)) for path in sorted((ROOT / SOURCE).rglob("*.py"))]
        files = [file for file in every if _matches(file, modules)]
    else:
        files = sorted({one.file for one in listed})
    found = [one for file in files for one in operator_mutations(file, _text(file))]
    return found if sample is None else random.Random(seed).sample(found, min(sample, len(found)))


def _matches(file: str, modules: Sequence[str] | None) -> bool:
    return not modules or any(fnmatch.fnmatch(file, module) for module in modules)


def _text(file: str) -> str:
    path = ROOT / SOURCE / file
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _tried(
    mutations: Sequence[Mutation], whole: "Reach | Likely", kept: Kept, jobs: int, budget: float
) -> Iterator[Verdict]:
    """The verdicts, told as they come; those by tests that fail without the mutation too are asked again."""
    cases, known = list[Case](), set[str]()
    for mutation in mutations:
        if mutation.equivalent:
            yield _shown(Verdict(mutation, "equivalent"))
            continue
        try:
            cases.append(_case(mutation, whole))
        except Stale as error:
            yield _shown(Verdict(mutation, "stale", str(error)))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, Hands(Path(folder), jobs) as hands:
        while cases:
            found = list(_judged(cases, kept, hands, budget))
            killers = sorted({one.by for one in found if one.state == "killed"} - known)
            wrong = hands.failing(Test(name, _LONGEST, 0) for name in killers)
            known |= set(killers)
            yield from (one for one in found if one.by not in wrong)
            again = {one.mutation.id for one in found if one.by in wrong}
            cases = [case.but(wrong) for case in cases if case.mutation.id in again]


def _measured(jobs: int, *, fresh: bool) -> "Reach":
    from mutants.reach import reach

    return reach(jobs, fresh=fresh)


def _judged(cases: Sequence[Case], kept: Kept, hands: Hands, budget: float) -> Iterator[Verdict]:
    """The verdicts that are kept and still hold, then those that are found now."""
    left: dict[str, Case] = {}
    for case in cases:
        verdict = kept.verdict(case)
        if verdict is not None and verdict.by not in case.without:
            yield _shown(verdict)
        else:
            left[case.mutation.id] = kept.left(case)
    for verdict in hands.judge(list(left.values()), budget):
        kept.keep(left[verdict.mutation.id], verdict)
        yield _shown(verdict)


def _case(mutation: Mutation, whole: "Reach | Likely") -> Case:
    text = _text(mutation.file)
    mutation.applied(text)
    reaching = whole.tests(mutation, text)
    return Case(mutation, (*reaching, *whole.beside(mutation, reaching)))


def _shown(verdict: Verdict) -> Verdict:
    one = verdict.mutation
    told = f"{verdict.tests} of {verdict.of} tests" if verdict.state == "survived" else verdict.by
    print(f"{verdict.state:10} {verdict.seconds:6.1f} s  {one.id}  {told}".rstrip(), flush=True)
    return verdict


def _told(found: Sequence[Verdict]) -> int:
    """The counts, and what is to be done; whether all is well."""
    states = Counter(one.state for one in found)
    tried = len(found) - states["equivalent"]
    for one in sorted(found, key=lambda one: (one.state, one.mutation.file, one.mutation.id)):
        if one.state not in ("killed", "equivalent"):
            print(f"\n{one.state}: {one.mutation.id} in {one.mutation.file}\n  {one.mutation.why}")
            print(f"  - {one.mutation.old}\n  + {one.mutation.new}".replace("\n", "\n    "))
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    share, seconds = states["killed"] / tried if tried else 1.0, sum(one.seconds for one in found)
    print(f"\n{len(found)} mutations: {counted}; {share:.1%} killed, in {seconds:.0f} s")
    return 0 if states["killed"] == tried else 1


if __name__ == "__main__":
    sys.exit(main())
