"""A program as a drawing: every op top-down, and on it every quantiser with its bits.

A chip is a tensor of codes: its symbol, and the bits that it is rounded to. Weights come in from the left:
``w`` as stored; a Gaussian's ``μ``, ``σ`` and ``ε``, their noise ``n = σ ε`` and, where both stand on one
grid, ``w = μ + n``. A mask is one bit, ``k``. The chip below a box is the quantiser of its output; ops that
only move or drop codes have none, as they keep the grid of what they read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qbayes.integer.ops import Mask, Op, Weighted
from qbayes.integer.ops.fields import lengths_text
from qbayes.integer.program import Program
from qbayes.lab.report.drawing.layout import MARGIN, Layout, Node
from qbayes.lab.report.drawing.svg import INK, QUIET, Sheet, shorten, text_width

WEIGHT, NOISE, ACTIVATION, SUM = "#cfe0fc", "#fbd9b5", "#cdebd0", "#e4e7eb"
ONCE, EVERY_DRAW, TERMINAL = "#ffffff", "#fff7e8", "#f1f4f8"
CHIP_WIDTH, CHIP_HEIGHT = 44.0, 18.0
_ROW = 24.0  # between the chips of a panel
_HEADING = 112.0
_CHIPS = (
    ("w", "n", WEIGHT, "weights of n bits"),
    ("ε", "n", NOISE, "noise"),
    ("q", "n", ACTIVATION, "activations"),
    ("b", "32", SUM, "bias, as wide as sums"),
)
_SYMBOLS = "w, μ, σ: weights · ε: standard normal · n = σ ε · k: mask, kept or dropped · b: bias · q: output"
_LONGEST = 40  # characters of a name
_NOTE: dict[str, Any] = {"size": 11, "anchor": "start", "fill": QUIET}


def graph_svg(program: Program) -> str:
    """The drawing of a program, as the text of an SVG file."""
    return _Drawing(program).document()


@dataclass(frozen=True)
class Place:
    """What a node of the layout stands for: a value with its op, or a head."""

    label: str
    detail: str
    op: Op | None = None
    value: str | None = None
    noisy: bool = False
    constant: bool = False

    @property
    def quantised(self) -> bool:
        """Whether its output is rounded to a grid of its own."""
        return self.value is not None and (self.op is None or not self.op.keeps_grid)


class _Drawing:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.sheet = Sheet()
        self.places: dict[Node, Place] = {}
        self.layout = Layout(self._nodes(), _HEADING)

    def _nodes(self) -> list[Node]:
        program, noisy = self.program, self.program.noisy_values()
        first = program.values[program.input]
        made = {program.input: self._node(Place("input", lengths_text(first.shape), value=program.input), [])}
        for op in program.ops:
            place = Place(op.name, detail(op, program), op, op.output, op.output in noisy)
            made[op.output] = self._node(place, [made[name] for name in op.inputs])
        heads = program.outputs.items()
        ends = [self._node(Place(head or "logits", "answer"), [made[name]]) for head, name in heads]
        learned = (Place(head, "constant, learned", constant=True) for head in program.constant_heads)
        constant = [self._node(place, []) for place in learned]
        for node in constant:
            node.beside = ends[0]
        return [*made.values(), *ends, *constant]

    def _node(self, place: Place, sources: list[Node]) -> Node:
        words = max(text_width(shorten(place.label, _LONGEST), 12.5), text_width(place.detail, 11))
        node = Node(place.label, sources, max(150.0, words + 28), node_height(place), panel_width(place.op))
        self.places[node] = place
        return node

    def document(self) -> str:
        ends = self._heading()
        for edge in self.layout.edges:
            self.sheet.line(self.layout.route(edge))
        for node, place in self.places.items():
            self._draw(node, place)
        width = max(self.layout.width, ends + MARGIN)
        return self.sheet.document(width, self.layout.height + 8, f"qbayes: {self._title()}")

    def _title(self) -> str:
        program = self.program
        method = program.provenance.get("method")
        named = method.get("name") if isinstance(method, Mapping) else None
        bits = [program.precision.get(name) for name in ("weight", "activation")]
        parts = [
            program.signature.task,
            named if isinstance(named, str) else "",
            f"W{bits[0]}A{bits[1]}" if all(isinstance(one, int) for one in bits) else "",
            f"{len(program.members)} members" if len(program.members) > 1 else "",
        ]
        return " · ".join(shorten(part, _LONGEST) for part in parts if part)

    def _heading(self) -> float:
        """Title and legend; returns where the longest line ends."""
        sheet = self.sheet
        sheet.text(MARGIN, 24, self._title(), size=16, anchor="start", bold=True)
        x, y = MARGIN, 54.0
        for symbol, bits, fill, words in _CHIPS:
            chip(sheet, x + CHIP_WIDTH / 2, y, symbol, bits, fill)
            sheet.text(x + CHIP_WIDTH + 6, y, words, **_NOTE)
            x += CHIP_WIDTH + text_width(words, 11) + 20
        for fill, words in ((ONCE, "runs once"), (EVERY_DRAW, "runs every draw")):
            sheet.box(x, y - 8, 22, 16, fill=fill, radius=3)
            sheet.text(x + 28, y, words, **_NOTE)
            x += 28 + text_width(words, 11) + 16
        sheet.text(MARGIN, 80, _SYMBOLS, **_NOTE)
        return max(x, MARGIN + text_width(_SYMBOLS, 11), MARGIN + text_width(self._title(), 16))

    def _draw(self, node: Node, place: Place) -> None:
        left, height = node.x - node.width / 2, box_height(place)
        inner = EVERY_DRAW if place.noisy else ONCE
        fill, radius = (TERMINAL, height / 2) if place.op is None else (inner, 6.0)
        shape = {"fill": fill, "radius": radius, "dashed": place.constant, "title": place.label}
        self.sheet.box(left, node.y, node.width, height, **shape)
        # the output's chip covers the lower edge.
        middle = node.y + height / 2 - (3 if place.quantised else 0)
        name = shorten(place.label, _LONGEST)
        self.sheet.text(node.x, middle - 8, name, size=12.5, bold=True)
        self.sheet.text(node.x, middle + 9, place.detail, size=11, fill=QUIET)
        if isinstance(place.op, Weighted):
            _PANELS[_panel(place.op)](self.sheet, place.op, left, node.y)
        elif isinstance(place.op, Mask):
            chip(self.sheet, left - 20 - CHIP_WIDTH / 2, middle, "k", "1", NOISE)
            self.sheet.line([(left - 20, middle), (left, middle)])
        if place.quantised:
            value = self.program.values[place.value or ""]
            chip(self.sheet, node.x, node.y + height, "q", str(value.bits), ACTIVATION)
            if place.op is not None:
                words = lengths_text(value.shape)
                beside = node.x + CHIP_WIDTH / 2 + 6
                self.sheet.text(beside, node.y + height + 9, words, **{**_NOTE, "size": 10})


def chip(sheet: Sheet, x: float, y: float, symbol: str, bits: str, fill: str) -> None:
    """A tensor of codes, its middle at (x, y): the symbol on white, the bits on the colour of its kind."""
    left, top, half = x - CHIP_WIDTH / 2, y - CHIP_HEIGHT / 2, CHIP_WIDTH / 2
    sheet.box(left, top, CHIP_WIDTH, CHIP_HEIGHT, fill=fill, radius=CHIP_HEIGHT / 2)
    sheet.text(x - half / 2, y, symbol, size=11.5, bold=True)
    sheet.text(x + half / 2, y, bits, size=11.5, fill=INK)


def box_height(place: Place) -> float:
    if place.op is not None and _panel(place.op) in ("summed", "apart"):
        return 3 * _ROW + 2
    plain = place.op is not None and place.op.keeps_grid
    return (1.6 if plain else 2.2) * _ROW


def node_height(place: Place) -> float:
    """The box, and below it the lower half of its output's chip."""
    return box_height(place) + (CHIP_HEIGHT / 2 if place.quantised else 0)


def panel_width(op: Op | None) -> float:
    """What the chips to the left of an op need."""
    widths = {"": 0.0, "point": CHIP_WIDTH + 34, "mask": CHIP_WIDTH + 34, "summed": 268.0, "apart": 268.0}
    return widths["mask" if isinstance(op, Mask) else _panel(op)]


def _panel(op: Op | None) -> str:
    if not isinstance(op, Weighted):
        return ""
    if not op.weights.is_gaussian:
        return "point"
    return "apart" if op.weights.grids == 2 else "summed"


def _draw_point(sheet: Sheet, op: Weighted, right: float, top: float) -> None:
    x = right - 20 - CHIP_WIDTH / 2
    chip(sheet, x, top + _ROW / 2 + 2, "w", str(op.weights.bits), WEIGHT)
    sheet.line([(right - 20, top + _ROW / 2 + 2), (right, top + _ROW / 2 + 2)])
    _draw_bias(sheet, op, right, top + 1.5 * _ROW + 2)


def _draw_bias(sheet: Sheet, op: Weighted, right: float, y: float) -> None:
    symbol = "b" if op.weights.bias_site is None else "b~"
    chip(sheet, right - 20 - CHIP_WIDTH / 2, y, symbol, "32", SUM)
    sheet.line([(right - 20, y), (right, y)])


def _draw_gaussian(sheet: Sheet, op: Weighted, right: float, top: float) -> tuple[float, float, float]:
    """μ, σ and ε, and the noise n = σ ε; where the chip of n ends, and the heights of μ and n."""
    weights = op.weights
    first, second, third = (top + _ROW * (row + 0.5) + 1 for row in range(3))
    far, near = right - 226.0, right - 130.0
    times = (far + near) / 2
    chip(sheet, far, first, "μ", str(weights.bits), WEIGHT)
    chip(sheet, far, second, "σ", str(weights.sigma_bits), WEIGHT)
    chip(sheet, far, third, "ε", str(weights.noise_bits), NOISE)
    sheet.line([(far + CHIP_WIDTH / 2, second), (near - CHIP_WIDTH / 2, second)])
    sheet.line([(far + CHIP_WIDTH / 2, third), (times, third), (times, second)], arrow=False)
    _draw_operator(sheet, times, second, "×")
    chip(sheet, near, second, "n", str(weights.bits), NOISE)
    sheet.line([(far + CHIP_WIDTH / 2, first), (near + CHIP_WIDTH / 2, first)], arrow=False)
    _draw_bias(sheet, op, right, third)
    return near + CHIP_WIDTH / 2, first, second


def _draw_summed(sheet: Sheet, op: Weighted, right: float, top: float) -> None:
    """One grid: ``w = μ + n``, one sum."""
    start, first, second = _draw_gaussian(sheet, op, right, top)
    w = right - 20 - CHIP_WIDTH / 2
    plus = (start + w - CHIP_WIDTH / 2) / 2
    sheet.line([(start, first), (w - CHIP_WIDTH / 2, first)])
    sheet.line([(start, second), (plus, second), (plus, first)], arrow=False)
    _draw_operator(sheet, plus, first, "+")
    chip(sheet, w, first, "w", str(op.weights.bits), WEIGHT)
    sheet.line([(right - 20, first), (right, first)])


def _draw_apart(sheet: Sheet, op: Weighted, right: float, top: float) -> None:
    """Two grids: ``Σ x μ`` and ``Σ x n`` come in by themselves."""
    start, first, second = _draw_gaussian(sheet, op, right, top)
    for y in (first, second):
        sheet.line([(start, y), (right, y)])


def _draw_operator(sheet: Sheet, x: float, y: float, symbol: str) -> None:
    sheet.circle(x, y, 7, fill="#ffffff")
    sheet.text(x, y - 0.5, symbol, size=12)


_Panel = Callable[[Sheet, Weighted, float, float], None]
_PANELS: dict[str, _Panel] = {"point": _draw_point, "summed": _draw_summed, "apart": _draw_apart}


def detail(op: Op, program: Program) -> str:
    """What an op does, in a few words; ``≥ 0`` where its clamp is a ReLU."""
    words = op.label
    if op.keeps_grid and not op.is_stochastic:
        return f"{words} → {lengths_text(program.values[op.output].shape)}"
    member = program.members[0]
    low = member.constants.get(op.name, {}).get("low")
    above = low is not None and int(low) == member.zeros[op.output]
    return f"{words}, ≥ 0" if above else words
