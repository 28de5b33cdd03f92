"""A sheet of SVG: rectangles, texts and lines, with every text escaped."""

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, QUIET, LINE = "#1f2933", "#6b7785", "#52606d"
_CORNER = 6.0  # radius at the turns of a line
_WIDE = 0.58  # mean width of a character, in font sizes

Point = tuple[float, float]


class Sheet:
    """Collects elements in the order of drawing; later ones lie above."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str = LINE,
        radius: float = 6,
        dashed: bool = False,
        title: str = "",
    ) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"'
        hint = f"<title>{clean(title)}</title>" if title else ""
        self.parts.append(f'<rect {size} fill="{fill}" stroke="{stroke}"{dash}>{hint}</rect>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 12,
        anchor: str = "middle",
        bold: bool = False,
        fill: str = INK,
    ) -> None:
        """``y`` is the middle of the line."""
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:.1f}" y="{y + 0.35 * size:.1f}" font-size="{size:g}" text-anchor="{anchor}"'
        self.parts.append(f'<text {place}{weight} fill="{fill}">{clean(words)}</text>')

    def line(self, points: Sequence[Point], *, arrow: bool = True) -> None:
        """Straight pieces with round turns."""
        head = ' marker-end="url(#arrow)"' if arrow else ""
        pen = f'fill="none" stroke="{LINE}" stroke-width="1.4"'
        self.parts.append(f'<path d="{rounded(points)}" {pen}{head}/>')

    def circle(self, x: float, y: float, radius: float, *, fill: str) -> None:
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"'
        self.parts.append(f'<circle {place} fill="{fill}" stroke="{LINE}"/>')

    def document(self, width: float, height: float, title: str) -> str:
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        arrow = (
            '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0.8 7.5 4 0 7.2z" fill="{LINE}"/></marker>'
        )
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family={quoteattr(FONT)} role="img">'
        back = f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'
        head = [opening, f"<title>{clean(title)}</title>", f"<defs>{arrow}</defs>", back]
        return "\n".join([*head, *self.parts, "</svg>"]) + "\n"


def clean(words: str) -> str:
    """Text for XML: no markup, and none of the characters that XML cannot hold."""
    return escape("".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in words))


def text_width(words: str, size: float = 12) -> float:
    """About as wide as the words will be."""
    return _WIDE * size * len(words)


def shorten(words: str, most: int) -> str:
    """The words with their middle left out where they are longer than ``most`` characters."""
    if len(words) <= most:
        return words
    tail = (most - 1) // 2
    return f"{words[: most - 1 - tail]}…{words[len(words) - tail :]}"


def rounded(points: Sequence[Point]) -> str:
    """The path through ``points`` with its corners rounded; points in a row with equal places count once."""
    kept = [point for place, point in enumerate(points) if place == 0 or point != points[place - 1]]
    parts = [f"M{_write(kept[0])}"]
    for before, corner, after in zip(kept, kept[1:], kept[2:], strict=False):
        enter, leave = _towards(corner, before), _towards(corner, after)
        parts.append(f"L{_write(enter)}Q{_write(corner)} {_write(leave)}")
    return "".join([*parts, f"L{_write(kept[-1])}"])


def _write(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def _towards(start: Point, end: Point) -> Point:
    """A corner's radius from ``start`` on the way to ``end``, at most half of the way."""
    length = abs(end[0] - start[0]) + abs(end[1] - start[1])
    share = min(_CORNER, length / 2) / length
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])
