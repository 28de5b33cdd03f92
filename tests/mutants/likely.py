"""Which files of tests are likely to notice a mutation, told by imports and names alone: nothing is measured.

The nearer a file of tests imports the mutated module, the likelier it notices; one that is called like the
module, or that names what the mutation stands in, likelier still. Files of one cost stand by their names.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mutants.mutation import Mutation
from mutants.timed import Test
from mutants.tree import ROOT, SOURCE

# seconds that a file takes, roughly; and how many imports further away it counts as.
_FOLDERS = {"unit": (5.0, 0.0), "contracts": (10.0, 1.0), "house": (10.0, 4.0)}
_OTHERS = (40.0, 3.0)
_CALLED_SO, _IN_ITS_FOLDER, _NAMES_IT = 2.5, 0.5, 1.5
# an interpreter runs the kernels of a GPU, slowly.
_INTERPRETED = 3.0
_FAR = 99


class Likely:
    """The order of the files of tests for each mutation."""

    def __init__(self) -> None:
        self.files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))

    def tests(self, mutation: Mutation, text: str) -> list[Test]:
        """The files, the likeliest to notice first; those that import nothing near are left out."""
        apart = self._apart(_module(ROOT / SOURCE / mutation.file))
        around = set(_names_around(text, mutation.lines(text)))
        costs: dict[str, float] = {}
        for file in self.files:
            near = min((apart.get(name, _FAR) for name in self._imports[file]), default=_FAR)
            if near < _FAR:
                costs[file] = near + self._extra(file, mutation.file, around)
        ordered = sorted(costs, key=lambda file: (costs[file], file))
        return [Test(file, _folder(file)[0], 0) for file in ordered]

    def beside(self, mutation: Mutation, tests: Iterable[Test]) -> list[Test]:
        """None: whole files run."""
        return []

    def _extra(self, file: str, mutated: str, around: set[str]) -> float:
        words, path = set(Path(file).stem.split("_")), Path(mutated)
        called_so, in_folder = words & _words(path.stem), words & _words(str(path.parent))
        names_it = not around.isdisjoint(self._words[file])
        near = _CALLED_SO * len(called_so) + _IN_ITS_FOLDER * len(in_folder) + _NAMES_IT * names_it
        kernels = any(name.endswith(("_kernels", ".triton")) for name in self._imports[file])
        return _folder(file)[1] + _INTERPRETED * kernels - near

    def _apart(self, module: str) -> dict[str, int]:
        """How many imports lie between each module of the source and this one."""
        found, edge = {module: 0}, [module]
        while edge:
            edge = [user for one in edge for user in self._users.get(one, ()) if user not in found]
            found.update(dict.fromkeys(edge, max(found.values()) + 1))
        return found

    @functools.cached_property
    def _users(self) -> Mapping[str, list[str]]:
        """The modules that import each module."""
        found: dict[str, list[str]] = {}
        for path in sorted((ROOT / SOURCE).rglob("*.py")):
            for name in _imported(path):
                found.setdefault(name, []).append(_module(path))
        return found

    @functools.cached_property
    def _imports(self) -> Mapping[str, set[str]]:
        """What each file of tests imports of the source, by way of the tests' own modules too."""
        return {file: _through(ROOT / file, set()) for file in self.files}

    @functools.cached_property
    def _words(self) -> Mapping[str, set[str]]:
        return {
            file: set(re.findall(r"\w+", (ROOT / file).read_text(encoding="utf-8"))) for file in self.files
        }


def _folder(file: str) -> tuple[float, float]:
    return _FOLDERS.get(Path(file).parts[1], _OTHERS)


def _words(name: str) -> set[str]:
    """The words of a name; a word may stand in the plural."""
    words = set(re.split(r"[_/.]", name)) - {""}
    return words | {word.removesuffix("s") for word in words}


def _module(path: Path) -> str:
    base = "src" if path.is_relative_to(ROOT / "src") else "tests"
    parts = path.relative_to(ROOT / base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def _imported(path: Path) -> set[str]:
    """The modules that a file imports, in functions too; a name of a package may be a module of it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if _is_module(name)}
            found |= modules | ({node.module} if len(modules) < len(inner) else set())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= _registered(node.value)
    # `import qbayes as qb` is the public names.
    return found | ({"qbayes.api"} if "qbayes" in found else set())


def _registered(name: str) -> set[str]:
    """The modules of a package that is named in a text: a registry imports them when it is asked."""
    folder = (ROOT / "src").joinpath(*name.split("."))
    if not name.startswith("qbayes.") or not (folder / "__init__.py").is_file():
        return set()
    return {_module(path) for path in folder.glob("*.py")} - {name}


def _is_module(name: str) -> bool:
    place = Path(*name.split("."))
    return any(
        (ROOT / base / place).with_suffix(".py").is_file() or (ROOT / base / place / "__init__.py").is_file()
        for base in ("src", "tests")
    )


def _through(path: Path, seen: set[Path]) -> set[str]:
    seen.add(path)
    found: set[str] = set()
    for name in _imported(path):
        place = (ROOT / "tests").joinpath(*name.split(".")).with_suffix(".py")
        if place.is_file() and place not in seen:
            found |= _through(place, seen)
        elif name.startswith("qbayes"):
            found.add(name)
    return found


def _names_around(text: str, lines: range) -> Iterator[str]:
    """The functions and classes around some lines, without their leading underscore."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name == "_":
            continue
        if node.lineno <= lines[0] and lines[-1] <= (node.end_lineno or node.lineno):
            yield node.name.strip("_")
