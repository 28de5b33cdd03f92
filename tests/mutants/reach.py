"""Which tests run which lines: collected once, then kept; a test file that changed is run again.

What was collected lies in layers under ``build/mutants``. Each holds the measurements of coverage, the tests
with their times, and the source that they ran on: a line of today's source is looked up there by the
difference of the two. So the map ages a little with every change of the source; ``--fresh`` collects it anew.
"""

import difflib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import coverage

from mutants.mutation import Mutation, statement_of
from mutants.timed import Test
from mutants.tree import ROOT, SOURCE, copy_project, environment, test_hashes

KEPT = ROOT / "build" / "mutants"
_SETTINGS = """[run]
source = {source}
data_file = {data}
parallel = true
core = ctrace
context = ${{MUTANTS_TEST-}}
concurrency = thread, multiprocessing
sigterm = true
disable_warnings = no-data-collected, module-not-measured
patch = _exit, fork
"""


class Layer:
    """One collection, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hashes: dict[str, str] = json.loads((folder / "files.json").read_text())
        self._data = coverage.CoverageData(str(folder / "lines"))
        self._data.read()
        self._by_line: dict[str, dict[int, list[str]]] = {}

    @cached_property
    def tests(self) -> dict[str, tuple[float, list[str]]]:
        """Seconds and shared fixtures of each test that passed."""
        found: dict[str, tuple[float, list[str]]] = {}
        failed: set[str] = set()
        for line in (self.folder / "tests.jsonl").read_text().splitlines():
            part = json.loads(line)
            seconds, fixtures = found.get(part["test"], (0.0, []))
            found[part["test"]] = (seconds + part["seconds"], fixtures + part["fixtures"])
            failed |= {part["test"]} if part["outcome"] != "passed" else set()
        return {test: said for test, said in found.items() if test not in failed}

    @cached_property
    def longest(self) -> dict[str, float]:
        """The seconds of the longest test of each file."""
        found: dict[str, float] = {}
        for test, (seconds, _) in self.tests.items():
            file = test.partition("::")[0]
            found[file] = max(seconds, found.get(file, 0.0))
        return found

    @cached_property
    def users(self) -> dict[str, list[str]]:
        """The tests of each shared fixture."""
        found: dict[str, list[str]] = {}
        for test, (_, fixtures) in self.tests.items():
            for fixture in fixtures:
                found.setdefault(fixture, []).append(test)
        return found

    @cached_property
    def sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for file in self._data.measured_files():
            for contexts in self._contexts(file).values():
                for context in contexts:
                    sizes[context] = sizes.get(context, 0) + 1
        return sizes

    def text(self, file: str) -> str:
        path = self.folder / "source" / file
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def reaching(self, file: str, lines: Iterable[int]) -> set[str]:
        """The tests that run one of the lines, as the layer's own source numbers them."""
        measured = next(
            (name for name in self._data.measured_files() if name.endswith(f"/{SOURCE}/{file}")), ""
        )
        by_line = self._contexts(measured) if measured else {}
        contexts = {context for line in lines for context in by_line.get(line, ())}
        return {
            test for context in contexts for test in self.users.get(context, [context]) if test in self.tests
        }

    def _contexts(self, file: str) -> dict[int, list[str]]:
        if file not in self._by_line:
            self._by_line[file] = self._data.contexts_by_lineno(file)
        return self._by_line[file]


class Reach:
    """All layers, as one map."""

    def __init__(self, layers: Sequence[Layer], current: Mapping[str, str]) -> None:
        self.layers, self.current = layers, current

    def tests(self, mutation: Mutation, text: str) -> list[Test]:
        """The tests that reach what the mutation changes, the likeliest to notice first."""
        statement = statement_of(text, mutation.lines(text))
        found = self._at(mutation.file, text, statement.lines)
        if not found and statement.function is not None:
            found = self._at(mutation.file, text, statement.function)
        if statement.function is None:
            # what runs at import is reached by whoever uses the names that it makes.
            found |= self._mentioning(statement.names)
        if not found:
            found = self._at(mutation.file, text, range(1, text.count("\n") + 2))
        return sorted(found, key=lambda test: (test.cost(mutation.file), test.id))

    def beside(self, mutation: Mutation, tests: Iterable[Test]) -> list[Test]:
        """The other tests of the same files: what one of them computed may have been kept for another."""
        some = {test.id for test in tests}
        files = {test.file for test in tests}
        others = (test for test in self._all() if test.file in files and test.id not in some)
        return sorted(others, key=lambda test: (test.cost(mutation.file), test.id))

    def _all(self) -> Iterator[Test]:
        for layer in self.layers:
            yield from self._valid(layer, layer.tests)

    def _at(self, file: str, text: str, lines: Iterable[int]) -> set[Test]:
        found: set[Test] = set()
        for layer in self.layers:
            known = layer.text(file)
            numbers = set(lines) if known == text else followed(text, known, set(lines))
            found |= set(self._valid(layer, layer.reaching(file, numbers)))
        return found

    def _valid(self, layer: Layer, names: Iterable[str]) -> Iterator[Test]:
        """Tests whose file is as it was when the layer was collected."""
        for name in names:
            file = name.partition("::")[0]
            if layer.hashes.get(file) == self.current.get(file):
                yield Test(name, layer.tests[name][0], layer.sizes.get(name, 0), layer.longest[file])

    def _mentioning(self, names: frozenset[str]) -> set[Test]:
        found: set[Test] = set()
        if not names:
            return found
        mention = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
        for path in sorted((ROOT / SOURCE).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            lines = [number for number, line in enumerate(text.splitlines(), 1) if mention.search(line)]
            if lines:
                found |= self._at(str(path.relative_to(ROOT / SOURCE)), text, lines)
        return found


def followed(text: str, before: str, lines: set[int]) -> set[int]:
    """The lines of an earlier text that stand where these lines of ``text`` do."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), text.splitlines(), autojunk=False)
    found: set[int] = set()
    for kind, first, last, start, stop in matcher.get_opcodes():
        here = {line for line in lines if start < line <= stop}
        if kind == "equal":
            found |= {line - start + first for line in here}
        elif here:
            found |= set(range(first + 1, last + 1))
    return found


def reach(jobs: int, *, fresh: bool = False) -> Reach:
    """The map, after what is missing of it has been collected."""
    if fresh:
        shutil.rmtree(KEPT, ignore_errors=True)
    current = test_hashes()
    layers = [Layer(folder) for folder in sorted(KEPT.glob("layer-*")) if (folder / "files.json").exists()]
    known = {(file, held) for layer in layers for file, held in layer.hashes.items()}
    missing = [file for file, held in current.items() if (file, held) not in known]
    if missing:
        layers.append(_collect(KEPT / f"layer-{len(layers):04d}", missing, current, jobs, whole=not layers))
    return Reach(layers, current)


def _collect(
    folder: Path, files: Sequence[str], current: Mapping[str, str], jobs: int, *, whole: bool
) -> Layer:
    """Run the tests of these files once, measured."""
    print(
        f"collecting what {'all tests' if whole else f'{len(files)} changed files of tests'} reach …",
        flush=True,
    )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        tree, data = copy_project(Path(place) / "tree"), Path(place) / "data"
        data.mkdir()
        settings = data / "coverage.ini"
        settings.write_text(_SETTINGS.format(source=tree / SOURCE, data=data / "lines"))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants.plugin", "-p", "no:cacheprovider"]
        command += ["-n", str(jobs), "--dist", "worksteal", *([] if whole else files)]
        with (folder / "log").open("wb") as log:
            told = {**environment(tree), "MUTANTS_REACH": str(data)}
            subprocess.run(command, cwd=tree, env=told, stdout=log, stderr=subprocess.STDOUT, check=False)
        _gather(tree, data, folder)
    (folder / "files.json").write_text(json.dumps({file: current[file] for file in files}))
    return Layer(folder)


def _gather(tree: Path, data: Path, folder: Path) -> None:
    """Into one folder: the measurements of all processes, the tests, the source that they ran on."""
    measured = coverage.Coverage(data_file=str(folder / "lines"), config_file=False)
    measured.combine([str(path) for path in data.glob("lines.*")])
    measured.save()
    parts = sorted(data.glob("tests.*.jsonl"))
    (folder / "tests.jsonl").write_bytes(b"".join(part.read_bytes() for part in parts))
    for path in (tree / SOURCE).rglob("*.py"):
        place = folder / "source" / path.relative_to(tree / SOURCE)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
