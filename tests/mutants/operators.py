"""Mutations that need no list: comparisons, ±1, and / or, guards dropped, everywhere in a file."""

import ast
from collections.abc import Callable, Iterator

from mutants.mutation import Mutation

_COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
}
_CALLED = {"min": "max", "max": "min", "all": "any", "any": "all"}
_DROPPED = frozenset({"abs", "clamp", "clamp_min", "clamp_max"})
_LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)


def operator_mutations(file: str, text: str) -> list[Mutation]:
    """Every mutation of the file, in the order of its text."""
    found: list[Mutation] = []
    offsets = _line_starts(text)
    for node in _code(ast.parse(text)):
        for part, new in _changes(node, text, offsets):
            first, last = _span(part, text, offsets)
            old = text[first:last]
            name = f"{file}:{part.lineno}:{part.col_offset} {_short(old)} -> {_short(new)}"
            if old != new:
                found.append(Mutation(name, file, old, new, start=first))
    return sorted(found, key=lambda mutation: (mutation.start or 0, mutation.new))


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of messages, types and assertions."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr):
                yield child
                yield from _code(child)


def _changes(node: ast.AST, text: str, offsets: list[int]) -> Iterator[tuple[ast.expr, str]]:
    """Parts of the text with what is put in their place."""

    def said(part: ast.expr) -> str:
        first, last = _span(part, text, offsets)
        return text[first:last]

    match node:
        case ast.Compare():
            for index, sign in enumerate(node.ops):
                yield node, _compared(node, [*node.ops[:index], _other(sign), *node.ops[index + 1 :]])
        case ast.BoolOp():
            both = isinstance(node.op, ast.And)
            yield node, f"({(' or ' if both else ' and ').join(f'({said(part)})' for part in node.values)})"
            yield from ((part, str(both)) for part in node.values)
        case ast.If() if isinstance(node.body[0], _LEAVES) or len(node.body) == 1:
            yield node.test, "False"
        case ast.expr():
            if (new := _put_for(node, said)) is not None:
                yield node, new
        case _:
            return


def _put_for(node: ast.expr, said: Callable[[ast.expr], str]) -> str | None:
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"({said(operand)})"
        case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right):
            return f"({said(left)} {'-' if isinstance(op, ast.Add) else '+'} ({said(right)}))"
        case ast.Constant(value=value) if type(value) is int:
            return str(value + 1)
        case ast.Name(id=name) if name in _CALLED:
            return _CALLED[name]
        case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in _DROPPED:
            return said(value)
        case _:
            return None


def _other(sign: ast.cmpop) -> ast.cmpop:
    opposite = _COMPARED[type(sign)][1]
    return next(kind() for kind, (said, _) in _COMPARED.items() if said == opposite)


def _compared(whole: ast.Compare, signs: list[ast.cmpop]) -> str:
    return f"({ast.unparse(ast.Compare(whole.left, signs, whole.comparators))})"


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _span(node: ast.expr, text: str, offsets: list[int]) -> tuple[int, int]:
    """Where a node stands in the text; Python counts columns in bytes."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    ends = []
    for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)):
        start = offsets[line - 1]
        held = text[start : offsets[line]].encode()[:column].decode()
        ends.append(start + len(held))
    return ends[0], ends[1]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}…"
