"""Draws ``docs/images/architecture.svg``: the packages and what they import, from the code.

    .venv/bin/python docs/draw_architecture.py

Layers stand in their order. An arrow is an import that no other path explains, so that few are left:
``a → c`` is not drawn where a imports b and b imports c.
"""

import textwrap
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs" / "images" / "architecture.svg"
# the place of each package: column and row, and how many rows it takes. Imports look down.
PLACES = {
    "cli": (1, 0, 1),
    "api": (1, 1, 1),
    "lab": (0, 2, 1),
    "export": (2, 2, 1),
    "quant": (1, 3, 1),
    "training": (1, 4, 1),
    "metrics": (0, 5, 1),
    "methods": (1, 5, 1),
    "integer": (2, 4, 2),
    "tasks": (0, 6, 1),
    "networks": (1, 6, 1),
    "posterior": (1, 7, 1),
    "noise": (1, 8, 1),
}
SAYS = {
    "cli": "one file a command",
    "api": "the verbs: fit · quantize · lower · evaluate",
    "lab": "measures the rest",
    "export": "what leaves Python",
    "quant": "from float to integers",
    "training": "one loop for every method",
    "methods": "one file a method",
    "metrics": "scores of predictions",
    "networks": "plain PyTorch",
    "tasks": "data, likelihood, shifts",
    "integer": "the integer machine",
    "posterior": "the interface: masks, Gaussians, members",
    "noise": "noise is an input",
}
INNER = ("lab", "export", "quant", "integer", "posterior")
WIDTH, ROW, BOX, GAP, BESIDE = 1060, 116, 300, 30, 66
LINE = 52  # characters of a line in a box
STYLE = (
    "text{font-family:system-ui,sans-serif;fill:#1c2430}.n{font-weight:600;font-size:17px}"
    ".s{font-size:12.5px;fill:#55606e}.i{font-size:11px;fill:#55606e}"
    ".b{fill:#f6f8fb;stroke:#9aa7b8}.m{fill:#eef6ee;stroke:#7fae84}.e{stroke:#8592a3;fill:none;stroke-width:1.4;stroke-linejoin:round}"
)


def imports(packages: list[str]) -> set[tuple[str, str]]:
    """Which package imports which, without what follows from others."""
    graph = grimp.build_graph("qbayes", exclude_type_checking_imports=True)
    edges = {
        (one, two)
        for one in packages
        for two in packages
        if one != two
        and graph.find_shortest_chains(f"qbayes.{one}", f"qbayes.{two}", as_packages=True)
        and _direct(graph, one, two)
    }
    reach = {one: {two for first, two in edges if first == one} for one in packages}
    return {(a, c) for a, c in edges if not any(c in _below(b, reach) for b in reach[a] - {c})}


def _direct(graph: grimp.ImportGraph, one: str, two: str) -> bool:
    below = {f"qbayes.{two}", *graph.find_descendants(f"qbayes.{two}")}
    own = {f"qbayes.{one}", *graph.find_descendants(f"qbayes.{one}")}
    return any(graph.find_modules_directly_imported_by(module) & below for module in own)


def _below(package: str, reach: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [package]
    while waiting:
        new = reach[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def box(package: str) -> tuple[int, int, int]:
    """Left and upper edge, and height."""
    column, row, rows = PLACES[package]
    return 14 + column * (BOX + BESIDE), 14 + row * ROW, rows * ROW - GAP


def inner(package: str) -> list[str]:
    """The folders of a package, in lines."""
    folder = ROOT / "src" / "qbayes" / package
    names = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    return textwrap.wrap(" · ".join(names), LINE) if package in INNER else []


def draw() -> str:
    height = 14 + ROW * (1 + max(row for _, row, _ in PLACES.values()))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Packages of qbayes and their imports">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#8592a3"/></marker></defs>',
    ]
    parts += [_arrow(one, two, lane) for lane, (one, two) in enumerate(sorted(imports(list(PLACES))))]
    for name in PLACES:
        x, y, high = box(name)
        kind = "m" if name == "integer" else "b"
        parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{BOX}" height="{high}" rx="8"/>')
        parts.append(f'<text class="n" x="{x + 12}" y="{y + 24}">{escape(name)}</text>')
        parts.append(f'<text class="s" x="{x + 12}" y="{y + 43}">{escape(SAYS[name])}</text>')
        parts += [
            f'<text class="i" x="{x + 12}" y="{y + 61 + 16 * line}">{escape(words)}</text>'
            for line, words in enumerate(inner(name))
        ]
    return "\n".join([*parts, "</svg>\n"])


def _arrow(one: str, two: str, lane: int) -> str:
    """Straight down to the next box of a column; else through the gap beside, in a lane of its own."""
    (x, y, high), (u, v, _) = box(one), box(two)
    if x == u and v - y - high <= GAP:
        return _line(f"M{x + BOX / 2:.0f} {y + high}V{v - 2}")
    right = u > x or (x == u and PLACES[one][0] == 0)
    start, end = (x + BOX, u - 2) if right else (x, u + BOX + 2)
    if x == u:
        end = x + BOX + 2 if right else x - 2
    middle = (max(start, u - BESIDE) if right else start - BESIDE) + 8 + 9 * (lane % 6)
    return _line(f"M{start} {y + 30 + 7 * (lane % 6)}H{middle}V{v + 16 + 8 * (lane % 6)}H{end}")


def _line(path: str) -> str:
    return f'<path class="e" marker-end="url(#a)" d="{path}"/>'


if __name__ == "__main__":
    FIGURE.write_text(draw(), encoding="utf-8")
