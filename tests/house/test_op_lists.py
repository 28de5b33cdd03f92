"""What an op is stands in its class, what a kind of nodes is in its ``NodeKind``. Nobody keeps a list.

With one list forgotten a new op ran, and an activation had 8 bits in place of 4 without a word.
"""

import ast
from pathlib import Path

import pytest

from qbayes.integer.ops import OPS
from qbayes.quant.graph.nodes import KINDS

SRC = Path(__file__).resolve().parents[2] / "src" / "qbayes"
# where they are defined; names of C functions that are called like ops.
ALLOWED = ("integer/ops", "quant/graph/kinds.py", "integer/c_library/__init__.py")
NAMES = {*OPS, *KINDS}
CLASSES = {op.__name__ for op in OPS.values()}
MOST = 2


def named(node: ast.AST) -> str:
    """The kind of op that an element of a collection names, or nothing."""
    if isinstance(node, ast.Constant) and node.value in NAMES:
        return str(node.value)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name if name in CLASSES else ""


def kinds_listed(text: str) -> list[set[str]]:
    """The kinds that each collection, or union of classes, of a source names, where it names several."""
    found: list[set[str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            found.append({named(part) for part in node.elts} - {""})
        elif isinstance(node, ast.Dict):
            found.append({named(part) for part in node.keys if part is not None} - {""})
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            found.append({named(part) for part in ast.walk(node)} - {""})
    return [kinds for kinds in found if len(kinds) > MOST]


def test_no_source_keeps_a_list_of_ops() -> None:
    paths = {path.relative_to(SRC).as_posix(): path for path in SRC.rglob("*.py")}
    lists = {
        name: kinds
        for name, path in paths.items()
        if not name.startswith(ALLOWED) and (kinds := kinds_listed(path.read_text(encoding="utf-8")))
    }
    assert lists == {}


@pytest.mark.parametrize(
    "text",
    [
        'MOVES = frozenset({"mask", "pad", "slice"})',
        "_HAND_ON = (Mask, MaxPool, Pad)",
        "_RULES = {ops.Add: 1, ops.Mul: 2, ops.Concat: 3}",
        "isinstance(op, Conv | MaxPool | AvgPool)",
    ],
)
def test_a_list_is_found(text: str) -> None:
    assert kinds_listed(text)
