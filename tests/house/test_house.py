"""Rules of the house that no tool checks. Each rule is a function, and is shown to find what it forbids."""

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import qbayes
from qbayes import api
from qbayes.registry import Registry

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "qbayes"
SOURCES = sorted(SRC.rglob("*.py"))
LONGEST = 400

CORE = {"torch", "numpy", "sklearn", "scipy", "safetensors", "typer", "rich", "click", "qbayes"}
EXTRAS = {
    "matplotlib",
    "pandas",
    "pyarrow",
    "playwright",
    "torchmetrics",
    "onnx",
    "onnxruntime",
    "ray",
    "openvino",
    "pytest",
}
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".c", ".h", ".json", ".cfg", ".sh", ""}
NOT_OURS = {".git", ".venv", "site", "runs", "data", "build", "dist", "node_modules", "shared"}
FOREIGN_PATH = re.compile(r"/(wor[k]|far[m]|hom[e]|roo[t])/")
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def dotted(node: ast.AST) -> str:
    """``torch.ops.quantized`` for the node that says so."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def pickles(node: ast.AST) -> bool:
    """Unpickling runs code from a file."""
    if any(name.split(".")[0] in {"pickle", "cloudpickle", "dill", "joblib"} for name in imported(node)):
        return True
    if not isinstance(node, ast.Call):
        return False
    keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
    unsafe_load = dotted(node.func) == "torch.load" and keywords.get("weights_only") != "True"
    return unsafe_load or keywords.get("weights_only") == "False" or keywords.get("allow_pickle") == "True"


def swallows(node: ast.AST) -> bool:
    """An unexpected error must not be hidden; BaseException may be caught to clean up and raise again."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    names = {"" if kind is None else dotted(kind) for kind in caught}
    raises_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
    return bool(names & {"", "Exception"}) or ("BaseException" in names and not raises_again)


def removed_from_torch(node: ast.AST) -> bool:
    """torch.ao.quantization, the quantised dtypes and their operators are being removed from PyTorch."""
    names = [dotted(node), *imported(node)]
    return any(
        re.search(r"^torch\.(ao|quantization|q\w*int\d+)\b|\bops\.quantized\b", name) for name in names
    )


def unfinished(node: ast.AST) -> bool:
    """Nothing is promised and left out. (Catching what a library has not implemented is another matter.)"""
    if not isinstance(node, ast.Raise) or node.exc is None:
        return False
    return dotted(node.exc.func if isinstance(node.exc, ast.Call) else node.exc) == "NotImplementedError"


def eager_extra(node: ast.AST) -> bool:
    """An import at the top of a module that is neither Python's nor of the core dependencies."""
    tops = {name.split(".")[0] for name in imported(node)}
    return bool(tops - CORE - set(sys.stdlib_module_names))


def found(rule: Callable[[ast.AST], bool], text: str, top_only: bool = False) -> list[int]:
    """The lines of ``text`` that break ``rule``."""
    tree = ast.parse(text)
    nodes = tree.body if top_only else ast.walk(tree)
    return [getattr(node, "lineno", 0) for node in nodes if rule(node)]


ANYWHERE = [pickles, swallows, removed_from_torch, unfinished]
TRY = "try:\n    f()\nexcept "


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SRC)))
def test_source_keeps_the_rules(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "a module must say in a docstring what it is for"
    assert len(text.splitlines()) <= LONGEST
    assert not NO_NAMES & set(path.relative_to(SRC).with_suffix("").parts), "name the thing, not its drawer"
    assert not re.findall(r"\b(TODO|FIXME|XXX)\b", text)
    broken = {rule.__name__: found(rule, text) for rule in ANYWHERE}
    broken["eager_extra"] = found(eager_extra, text, top_only=True)
    assert {rule: lines for rule, lines in broken.items() if lines} == {}


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        (pickles, "import pickle"),
        (pickles, "from pickle import loads"),
        (pickles, "torch.load(path)"),
        (pickles, "torch.load(path, weights_only=False)"),
        (pickles, "load(path, weights_only=False)"),
        (pickles, "np.load(path, allow_pickle=True)"),
        (swallows, TRY + "Exception:\n    pass"),
        (swallows, "try:\n    f()\nexcept:\n    pass"),
        (swallows, TRY + "(ValueError, Exception):\n    pass"),
        (swallows, TRY + "BaseException:\n    pass"),
        (removed_from_torch, "torch.ao.quantization.prepare(x)"),
        (removed_from_torch, "import torch.ao.nn"),
        (removed_from_torch, "from torch.ao import nn"),
        (removed_from_torch, "x.to(torch.qint8)"),
        (removed_from_torch, "torch.quint8"),
        (removed_from_torch, "torch.ops.quantized.linear(x)"),
        (unfinished, "raise NotImplementedError"),
        (unfinished, "raise NotImplementedError('later')"),
        (eager_extra, "import matplotlib.pyplot as plt"),
        (eager_extra, "from pandas import DataFrame"),
    ],
)
def test_rules_find_what_they_forbid(rule: Callable[[ast.AST], bool], bad: str) -> None:
    assert found(rule, bad)


@pytest.mark.parametrize(
    ("rule", "good"),
    [
        (pickles, "torch.load(path, weights_only=True)"),
        (swallows, TRY + "ValueError:\n    pass"),
        (swallows, TRY + "BaseException:\n    clean()\n    raise"),
        (removed_from_torch, "torch.fake_quantize_per_tensor_affine(x)\ntorch.int8\nqbayes.quantize"),
        (unfinished, TRY + "NotImplementedError:\n    raise"),
        (eager_extra, "import os, torch\nfrom qbayes.errors import BadInput"),
    ],
)
def test_rules_allow_what_is_right(rule: Callable[[ast.AST], bool], good: str) -> None:
    assert not found(rule, good)


def every_module() -> Iterator[str]:
    for module in pkgutil.walk_packages(qbayes.__path__, "qbayes."):
        if not module.name.endswith("__main__"):
            yield module.name


def imported_within(folder: Path, package: str) -> set[str]:
    """The modules of ``package`` that another module of it imports."""
    names: set[str] = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            inner = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            names.update(imported(node), (f"{base}.{name}" for base in imported(node) for name in inner))
    inside = (name.removeprefix(f"{package}.") for name in names if name.startswith(f"{package}."))
    return {name.partition(".")[0] for name in inside}


def test_members_of_registries_are_called_like_their_files() -> None:
    """A file of a registry holds the member it is called after, holds several, or is imported by those."""
    held = [value for name in every_module() for value in vars(importlib.import_module(name)).values()]
    registries = {value.package: value for value in held if isinstance(value, Registry)}
    assert {"network", "method"} <= {registry.kind for registry in registries.values()}
    for package, registry in registries.items():
        folder = SRC.parent.joinpath(*package.split("."))
        files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        files |= {path.parent.name for path in folder.glob("*/__init__.py")}
        origins = [registry.origin(name) for name in registry]
        tables = {name for name in origins if origins.count(name) > 1}
        misnamed = [n for n in registry if n not in files and registry.origin(n) not in tables]
        assert not misnamed, f"members of the registry '{registry.kind}' that no file is called after"
        alone = files - {name.rpartition(".")[2] for name in origins}
        assert alone <= imported_within(folder, package), f"files of {package} that register nothing"


def test_import_brings_no_extra() -> None:
    """The user who does not plot must not need, or wait for, the plotting library."""
    code = "import sys, qbayes; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    environment = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert "qbayes" in loaded
    assert loaded & EXTRAS == set()


def project_files() -> Iterator[Path]:
    for folder, names, files in os.walk(ROOT):
        kept = [name for name in names if name not in NOT_OURS and not name.endswith("cache")]
        names[:] = [name for name in kept if name not in ("__pycache__", ".hypothesis")]
        # in a work tree of git, .git is a file that names the repository's folder.
        yield from (Path(folder) / file for file in files if Path(file).suffix in TEXT and file != ".git")


def test_project_names_no_folder_of_somebodys_machine() -> None:
    files = list(project_files())
    assert ROOT / "pyproject.toml" in files
    assert Path(__file__) in files
    hits = [str(f.relative_to(ROOT)) for f in files if FOREIGN_PATH.search(f.read_text(encoding="utf-8"))]
    assert hits == []
    assert FOREIGN_PATH.search("see /" + "home/ann/data")


def test_every_method_has_a_test() -> None:
    """``base`` is what the contract suite tests; every other file of the folder has a test of its own."""
    methods = {path.stem for path in (SRC / "methods").glob("*.py")} - {"__init__", "base"}
    assert (ROOT / "tests" / "contracts" / "test_methods.py").exists()
    assert {"pointwise", "mcd", "bbb", "sghmc"} <= methods
    tests = [path.stem for path in (ROOT / "tests").rglob("test_*.py")]
    assert [name for name in sorted(methods) if not any(f"_{name}" in test for test in tests)] == []


def test_exported_names_exist() -> None:
    assert qbayes.__doc__
    exported = getattr(qbayes, "__all__", ())
    assert exported, "qbayes must say in __all__ what its public names are"
    assert [name for name in exported if not hasattr(qbayes, name)] == []


def test_neither_the_package_nor_its_modules_wait_for_torch() -> None:
    code = "import sys, qbayes; from qbayes import errors, registry; print('torch' in sys.modules)"
    code += "; print(hasattr(qbayes, '__wrapped__'), 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False", "False"]


def test_public_names_are_those_of_the_api() -> None:
    assert qbayes.__all__ == api.__all__
    assert {*api.__all__, "__version__"} == set(dir(qbayes))
    assert all(getattr(qbayes, name) is getattr(api, name) for name in api.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        qbayes.nothing  # noqa: B018
