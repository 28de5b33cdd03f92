"""The drawing of a program: valid XML, every op and quantiser in it, and lines that run between boxes."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbayes.integer.ops import Mask, Weighted
from qbayes.integer.program import Program
from qbayes.lab.report.drawing import graph
from qbayes.lab.report.drawing.graph import graph_svg
from qbayes.lab.report.drawing.layout import Edge, Layout, Node
from qbayes.lab.report.drawing.svg import Sheet, rounded, shorten

Make = Callable[..., Program]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(program: Program) -> ET.Element:
    return ET.fromstring(graph_svg(program))


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def chips(root: ET.Element) -> Counter[tuple[str, str, str]]:
    """Colour, symbol and bits of every chip, without those of the legend (it comes first)."""
    elements = list(root)
    found = []
    for place, element in enumerate(elements):
        if element.tag == f"{SVG}rect" and element.get("width") == "44.0" and element.get("height") == "18.0":
            symbol, bits = elements[place + 1].text or "", elements[place + 2].text or ""
            found.append((element.get("fill", ""), symbol, bits))
    return Counter(found[4:])


def expected_chips(program: Program) -> Counter[tuple[str, str, str]]:
    values, found = program.values, Counter[tuple[str, str, str]]()
    found[graph.ACTIVATION, "q", str(values[program.input].bits)] += 1
    for op in program.ops:
        if not op.keeps_grid:
            found[graph.ACTIVATION, "q", str(values[op.output].bits)] += 1
        if isinstance(op, Mask):
            found[graph.NOISE, "k", "1"] += 1
        if not isinstance(op, Weighted):
            continue
        weights = op.weights
        found[graph.SUM, "b" if weights.bias_site is None else "b~", "32"] += 1
        if not weights.is_gaussian:
            found[graph.WEIGHT, "w", str(weights.bits)] += 1
            continue
        found[graph.WEIGHT, "μ", str(weights.bits)] += 1
        found[graph.WEIGHT, "σ", str(weights.sigma_bits)] += 1
        found[graph.NOISE, "ε", str(weights.noise_bits)] += 1
        found[graph.NOISE, "n", str(weights.bits)] += 1
        if weights.grids != 2:
            found[graph.WEIGHT, "w", str(weights.bits)] += 1
    return found


@pytest.mark.parametrize("kind", ["every", "heads", "constant"])
def test_every_op_and_every_quantiser_is_drawn(kind: str, make_program: Make) -> None:
    program = make_program(kind)
    root = drawn(program)
    assert {op.name for op in program.ops} <= set(texts(root))
    assert {head or "logits" for head in (*program.outputs, *program.constant_heads)} <= set(texts(root))
    assert chips(root) == expected_chips(program)


def test_the_ops_that_have_no_grid_of_their_own_are_those_that_keep_the_zero_point(
    make_program: Make,
) -> None:
    """``keeps_grid`` says which outputs have no quantiser; a program cannot have them otherwise."""
    program = make_program("every")
    kinds = {op.kind: "low" in {c.name for c in op.constants(program.values)} for op in program.ops}
    assert {kind for kind, clamps in kinds.items() if not clamps} - {"lookup"} == {
        op.kind for op in program.ops if op.keeps_grid
    }


def test_noise_colours_what_it_reaches(make_program: Make) -> None:
    program = make_program("every")
    fills = {
        element.find(f"{SVG}title").text: element.get("fill")  # pyright: ignore[reportOptionalMemberAccess]
        for element in drawn(program).iter(f"{SVG}rect")
        if element.find(f"{SVG}title") is not None
    }
    noisy = program.noisy_values()
    for op in program.ops:
        assert fills[op.name] == (graph.EVERY_DRAW if op.output in noisy else graph.ONCE)


def test_names_of_strangers_are_text_and_nothing_else(make_program: Make) -> None:
    program = make_program("heads")
    nasty = "</text><script>alert('&')</script>"
    ops = (replace(program.ops[0], name=nasty), *program.ops[1:])
    long = "layer." * 40 + "end\x1b[2J\ud800"
    ops = (*ops[:1], replace(ops[1], name=long), *ops[2:])
    constants = [
        replace(m, constants={**m.constants, nasty: m.constants["first"], long: m.constants["head0"]})
        for m in program.members
    ]
    svg = graph_svg(replace(program, ops=ops, members=constants))
    root = ET.fromstring(svg.encode())
    assert "script" not in {element.tag.removeprefix(SVG) for element in root.iter()}
    assert nasty in {element.text for element in root.iter(f"{SVG}title")}
    assert max(map(len, texts(root))) < 140
    assert "\x1b" not in svg


def segments(points: list[tuple[float, float]]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    return [(a, b) for a, b in pairwise(points) if a != b]


def crosses(a: tuple[float, float], b: tuple[float, float], node: Node) -> bool:
    """Whether a straight piece runs through the inside of a box or the chips to its left."""
    left, right = node.x - node.width / 2 - node.panel, node.x + node.width / 2
    inside_x = max(a[0], b[0]) > left + 0.1 and min(a[0], b[0]) < right - 0.1
    inside_y = max(a[1], b[1]) > node.y + 0.1 and min(a[1], b[1]) < node.bottom - 0.1
    return inside_x and inside_y


def lies_on(one: tuple[float, float, float, float], two: tuple[float, float, float, float]) -> bool:
    """Whether two pieces, both across or both down, share more than a point."""
    for axis in (0, 1):
        if all(abs(piece[1 - axis] - one[1 - axis]) < 0.1 for piece in (one, two)) and all(
            abs(piece[1 - axis] - piece[3 - axis]) < 0.1 for piece in (one, two)
        ):
            low = max(min(one[axis], one[axis + 2]), min(two[axis], two[axis + 2]))
            high = min(max(one[axis], one[axis + 2]), max(two[axis], two[axis + 2]))
            return high - low > 0.1
    return False


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(2, 14))):
        count = draw(st.integers(1, min(3, number))) if number else 0
        near = st.integers(max(0, number - 5), number - 1) if number else st.nothing()
        chosen = sorted({draw(near) for _ in range(count)})
        sizes = [float(draw(st.sampled_from(choice))) for choice in ((100, 180), (30, 75), (0, 90, 260))]
        nodes.append(Node(str(number), [nodes[place] for place in chosen], sizes[0], sizes[1], sizes[2]))
    return nodes


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_lines_meet_boxes_at_their_ends_only(nodes: list[Node]) -> None:
    layout = Layout(nodes, 0.0)
    assert len(layout.edges) == sum(len(node.sources) for node in nodes)
    for place, node in enumerate(nodes):
        assert all(source.bottom < node.y for source in node.sources)
        for other in nodes[:place]:
            apart = abs(node.x - other.x) >= (node.width + other.width) / 2
            assert apart or node.bottom <= other.y or other.bottom <= node.y
    for edge in layout.edges:
        points = layout.route(edge)
        assert points[0] == (edge.source.x, edge.source.bottom)
        assert points[-1][1] == edge.target.y
        assert abs(points[-1][0] - edge.target.x) < edge.target.width / 2
        for a, b in segments(points):
            assert a[0] == b[0] or a[1] == b[1]
            assert not any(crosses(a, b, node) for node in nodes)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_lines_of_different_sources_never_lie_on_each_other(nodes: list[Node]) -> None:
    layout = Layout(nodes, 0.0)
    pieces = [(edge, (*a, *b)) for edge in layout.edges for a, b in segments(layout.route(edge))]
    for place, (edge, piece) in enumerate(pieces):
        for other, against in pieces[:place]:
            if other.source is not edge.source:
                assert not lies_on(piece, against), (edge.source.name, edge.target.name, other.source.name)


def test_a_chain_is_a_straight_line_and_a_skip_runs_beside_it() -> None:
    """A residual block: x → a → b → sum, and x → sum past them."""
    x = Node("x", [], 100, 40)
    a = Node("a", [x], 100, 40)
    b = Node("b", [a], 100, 40)
    total = Node("sum", [b, x], 100, 40)
    layout = Layout([x, a, b, total], 0.0)
    assert {node.column for node in (x, a, b, total)} == {0}
    routes = {(e.source.name, e.target.name): layout.route(e) for e in layout.edges}
    assert all(len(routes[pair]) == 2 for pair in (("x", "a"), ("a", "b"), ("b", "sum")))
    assert max(point[0] for point in routes["x", "sum"]) > x.x + x.width / 2


def test_a_branch_stands_beside_and_comes_back() -> None:
    """A block with a projection: x → a → b → sum, x → p → sum; the next block uses the column again."""
    nodes = [Node("x", [], 100, 40)]
    for block in range(2):
        first = nodes[-1]
        a = Node(f"a{block}", [first], 100, 40)
        b = Node(f"b{block}", [a], 100, 40)
        p = Node(f"p{block}", [first], 100, 40)
        nodes += [a, b, p, Node(f"sum{block}", [b, p], 100, 40)]
    Layout(nodes, 0.0)
    assert {node.name for node in nodes if node.column == 1} == {"p0", "p1"}
    assert max(node.column for node in nodes) == 1


def test_corners_are_round_and_points_given_twice_count_once() -> None:
    path = rounded([(0, 0), (0, 10), (0, 10), (20, 10)])
    assert path == "M0.0 0.0L0.0 5.0Q0.0 10.0 6.0 10.0L20.0 10.0"
    assert re.fullmatch(r"M1\.0 2\.0L3\.0 2\.0", rounded([(1, 2), (3, 2)]))


def test_long_names_lose_their_middle() -> None:
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert shorten("abc", 3) == "abc"
    assert len(shorten("x" * 300, 40)) == 40


def test_a_sheet_is_a_document_of_its_own() -> None:
    sheet = Sheet()
    sheet.text(1, 2, "a < b")
    root = ET.fromstring(sheet.document(30, 40, "t & t"))
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("30", "40", "0 0 30 40")
    assert [title.text for title in root.iter(f"{SVG}title")] == ["t & t"]
    assert Edge(Node("a", [], 1, 1), Node("b", [], 1, 1)).track is None
