"""A mutation: one text of a source file in place of another, and where it stands."""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("mutations.toml")


class Stale(Exception):
    """The text to replace is not there exactly once: the source has moved on."""


@dataclass(frozen=True)
class Mutation:
    """``old`` in a file of src/qbayes becomes ``new``; ``start`` says which of several it is."""

    id: str
    file: str
    old: str
    new: str
    why: str = ""
    named: str = ""
    equivalent: str = ""
    start: int | None = None

    def place(self, text: str) -> int:
        """Where ``old`` begins in the text of the file."""
        if self.start is not None:
            return self.start
        if self.old == self.new or text.count(self.old) != 1:
            raise Stale(f"{self.id}: the text to replace stands {text.count(self.old)} times in {self.file}")
        return text.index(self.old)

    def applied(self, text: str) -> str:
        """The mutated text; what is no Python any more is stale too."""
        start = self.place(text)
        mutated = text[:start] + self.new + text[start + len(self.old) :]
        try:
            compile(mutated, self.file, "exec")
        except SyntaxError as error:
            raise Stale(f"{self.id}: {self.file} would be no Python: {error}") from None
        return mutated

    def lines(self, text: str) -> range:
        """The numbers of the lines in which ``old`` and ``new`` differ."""
        same = _alike(self.old, self.new)
        behind = _alike(self.old[same:][::-1], self.new[same:][::-1])
        first = self.place(text) + same
        last = max(first, self.place(text) + len(self.old) - behind - 1)
        return range(text.count("\n", 0, first) + 1, text.count("\n", 0, last) + 2)


def _alike(one: str, two: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, two, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(two)))


def read_list(path: Path = LIST) -> list[Mutation]:
    with path.open("rb") as file:
        return [Mutation(**entry) for entry in tomllib.load(file)["mutation"]]


@dataclass(frozen=True)
class Statement:
    """The lines of the innermost statement around some lines; ``names`` is what it binds at import."""

    lines: range
    names: frozenset[str]
    function: range | None


def statement_of(text: str, lines: range) -> Statement:
    """Of a statement with a body only its head: the body's own statements are others."""
    tree, found, function = ast.parse(text), None, None
    for node in _around(tree, lines):
        if isinstance(node, ast.FunctionDef) and node.body[0].lineno <= lines[0]:
            function = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if isinstance(node, ast.stmt):
            found = node
    if found is None:
        return Statement(lines, frozenset(), None)
    return Statement(_head(found), frozenset(_bound(found)), function)


def _around(tree: ast.AST, lines: range) -> Iterator[ast.AST]:
    """The nodes that hold all the lines, from the outermost in."""
    for child in ast.iter_child_nodes(tree):
        first, last = getattr(child, "lineno", None), getattr(child, "end_lineno", None)
        decorators = getattr(child, "decorator_list", ())
        if decorators:
            first = decorators[0].lineno
        if first is not None and last is not None and first <= lines[0] and lines[-1] <= last:
            yield child
            yield from _around(child, lines)
            return
        if first is None:
            yield from _around(child, lines)


def _head(node: ast.stmt) -> range:
    body = getattr(node, "body", None)
    last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return range(node.lineno, max(last, node.lineno) + 1)


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
        return
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        for part in ast.walk(target) if target is not None else ():
            if isinstance(part, ast.Name):
                yield part.id
