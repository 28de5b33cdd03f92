"""What people call says what it does: every argument is explained, and every example runs."""

import ast
import doctest
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import qbayes
from qbayes import api
from qbayes.export.base import TARGETS, Target
from qbayes.integer.backends.base import Backend
from qbayes.integer.ops.base import Op
from qbayes.lab.report.charts.chart import Figure
from qbayes.lab.study.executors.base import Executor
from qbayes.methods import METHODS
from qbayes.networks import NETWORKS
from qbayes.networks.base import Network
from qbayes.quant.observers.base import RangeRule
from qbayes.registry import Registry
from qbayes.tasks.dataset import Dataset

SRC = Path(qbayes.__file__).resolve().parent
# what one derives from, or makes, to add a member to a registry; ``Method`` is public already.
BASES = (Backend, Dataset, Executor, Figure, Network, Op, RangeRule, Target)
PUBLIC: dict[str, Any] = {name: getattr(api, name) for name in api.__all__}
DOCUMENTED = PUBLIC | {base.__name__: base for base in BASES}
# whose options are the ``**options`` of ``qb.method``, ``qb.network`` and ``make_target``.
WITH_OPTIONS = (METHODS, NETWORKS, TARGETS)
HEADING = re.compile(r"^(\w+):$")
ENTRY = re.compile(r"^    \*{0,2}(\w+): \S")


def sections(text: str) -> dict[str, list[str]]:
    """The lines of a docstring by the heading above them; those before any heading stand under nothing."""
    found: dict[str, list[str]] = {"": []}
    heading = ""
    for line in text.splitlines():
        match = HEADING.match(line)
        if match or (line and not line.startswith(" ")):
            heading = match[1] if match else ""
        if match:
            found[heading] = []
        else:
            found.setdefault(heading, []).append(line)
    return found


def explained(text: str) -> list[str]:
    """The arguments and fields that a docstring explains."""
    parts = sections(text)
    lines = [*parts.get("Args", ()), *parts.get("Attributes", ())]
    return [match[1] for line in lines if (match := ENTRY.match(line))]


def parameters(subject: Callable[..., Any]) -> list[str]:
    """What one may give in a call; a class that has its constructor from another library adds nothing."""
    if inspect.isclass(subject) and not is_ours(subject, "__init__"):
        return []
    return [name for name in inspect.signature(subject).parameters if name != "self"]


def is_ours(kind: type, name: str) -> bool:
    """Whether a class of qbayes defines that attribute of a class."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), object)
    return owner.__module__.startswith("qbayes")


def wrong_text(name: str, subject: Any, text: str) -> list[str]:
    """What a docstring lacks, or says of arguments that are not there."""
    summary = text.partition("\n")[0].strip()
    # a dataclass without a docstring gets its signature for one.
    if not summary or HEADING.match(summary) or summary.startswith(f"{name.rpartition('.')[2]}("):
        return [f"{name} has no summary line"]
    if isinstance(subject, property | cached_property):
        return []
    known, said = parameters(subject), explained(text)
    fields = dir(subject) if inspect.isclass(subject) else []
    fields += getattr(subject, "__dataclass_fields__", ())
    return [
        *(f"{name}({parameter}) is not explained" for parameter in known if parameter not in said),
        *(f"{name} explains '{entry}', which it has not" for entry in said if entry not in (*known, *fields)),
        *(f"{name} explains '{entry}' twice" for entry in sorted(set(said)) if said.count(entry) > 1),
    ]


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, also those that it has from a class of ours."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_") or not is_ours(kind, name):
            continue
        if isinstance(member, staticmethod | classmethod) or inspect.isfunction(member):
            yield name, getattr(kind, name)
        if isinstance(member, property | cached_property):
            yield name, member


def undocumented(name: str, subject: Any) -> list[str]:
    """All that the docstrings of a name and of its public methods lack."""
    text = inspect.getdoc(subject) or ""
    wrong = wrong_text(name, subject, text)
    if not doctest.DocTestParser().get_examples(text):
        wrong.append(f"{name} has no example")
    if inspect.isfunction(subject) and "Returns" not in sections(text):
        wrong.append(f"{name} does not say what it returns")
    for member, value in members(subject) if inspect.isclass(subject) else ():
        wrong += wrong_text(f"{name}.{member}", value, inspect.getdoc(value) or "")
    return wrong


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_names_are_documented(name: str) -> None:
    assert undocumented(name, DOCUMENTED[name]) == []


@pytest.mark.parametrize("registry", WITH_OPTIONS, ids=lambda registry: registry.kind)
def test_options_by_name_are_documented(registry: Registry[Any]) -> None:
    texts = {name: inspect.getdoc(registry[name]) or "" for name in registry}
    assert [wrong for name in registry for wrong in wrong_text(name, registry[name], texts[name])] == []


def explain_all(rate: float, *names: str, depth: int = 1) -> float:
    """The share of something.

    Example:
        >>> explain_all(0.5)
        0.5

    Args:
        rate: A share.
        *names: Names: they
            may need two lines.
        depth: 1 by default.

    Returns:
        The share.
    """
    return rate * depth + 0 * len(names)


def test_what_is_missing_is_found() -> None:
    text = inspect.getdoc(explain_all) or ""
    assert undocumented("explain_all", explain_all) == []
    for line, complaint in {
        "rate: A share.": "explain_all(rate) is not explained",
        "    depth: 1 by default.": "explain_all(depth) is not explained",
        "    >>> explain_all(0.5)": "explain_all has no example",
        "Returns:": "explain_all does not say what it returns",
        "The share of something.": "explain_all has no summary line",
    }.items():
        assert line in text

        def poorer(rate: float, *names: str, depth: int = 1) -> float:
            return rate * depth + 0 * len(names)

        poorer.__doc__ = text.replace(line, "")
        assert complaint in undocumented("explain_all", poorer)
    poorer.__doc__ = text.replace("depth: 1", "width: 1")
    assert "explain_all explains 'width', which it has not" in undocumented("explain_all", poorer)


def with_examples() -> list[str]:
    """The modules with examples in their docstrings; they are read, not imported."""
    paths = [path for path in sorted(SRC.rglob("*.py")) if has_example(ast.parse(path.read_text("utf-8")))]
    names = (path.relative_to(SRC.parent).with_suffix("").parts for path in paths)
    return [".".join(parts).removesuffix(".__init__") for parts in names]


def has_example(tree: ast.Module) -> bool:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return any(">>> " in text for text in texts if text)


@pytest.mark.parametrize("name", with_examples())
def test_examples_give_what_they_show(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example stands by itself: it sees the names of its module, and no name of another example."""
    monkeypatch.chdir(tmp_path)
    wrong: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    for example in doctest.DocTestFinder().find(importlib.import_module(name)):
        if example.examples:
            runner.run(example, out=wrong.append)
    assert "".join(wrong) == ""
    assert runner.tries > 0
    assert list(tmp_path.iterdir()) == [], "an example leaves no file behind"
