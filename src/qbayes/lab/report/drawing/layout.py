"""Where the nodes of a graph go, top-down, and how its edges run between them.

A node stands one row below its lowest source. The longest way through the graph is a straight column on the
left; every other chain gets a column to its right. Edges to the next row of the same column are straight. A
chain that ends runs down its own column and then across; all other edges leave downwards, run in a track of
their own to the right of the source's column, and come in from the right. Across they only run between rows,
so that no line crosses a box.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from qbayes.lab.report.drawing.svg import Point

MARGIN = 24.0
GAP = 30.0  # between rows, without lines that run across
TRACK = 14.0
PORT = 34.0  # from the middle of a box to the next line that comes in
LANE = 7.0

Span = tuple[float, float]


@dataclass(eq=False)
class Node:
    """A box to place: its size, what stands to the left of it, and the nodes that it reads."""

    name: str
    sources: list["Node"]
    width: float
    height: float
    panel: float = 0.0
    beside: "Node | None" = None  # for one without sources: whose row it shares
    rank: int = 0
    column: int = 0
    x: float = 0.0  # of the box's middle
    y: float = 0.0  # of its top
    targets: list["Node"] = field(default_factory=list["Node"])

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(eq=False)
class Edge:
    """A line from one node to another; ``track`` where it runs beside its column."""

    source: Node
    target: Node
    track: int | None = None
    port: float = 0.0
    lane: int = 0


def take(lines: list[list[Span]], first: float, last: float) -> int:
    """The first line on which nothing from ``first`` to ``last`` is taken yet; it is taken now."""
    free = (k for k, held in enumerate(lines) if all(last < a or b < first for a, b in held))
    found = next(free, len(lines))
    if found == len(lines):
        lines.append([])
    lines[found].append((first, last))
    return found


def separate(spans: Sequence[Span]) -> list[int]:
    """A line for each span, its ends in any order, so that none on the same line meet."""
    lines: list[list[Span]] = []
    return [take(lines, min(span), max(span)) for span in spans]


class Layout:
    """Nodes, given in an order in which sources come first, with places; and the way of each edge."""

    def __init__(self, nodes: Sequence[Node], top: float) -> None:
        self.nodes = list(nodes)
        for node in self.nodes:
            above = max((source.rank for source in node.sources), default=-1)
            node.rank = 1 + above if node.beside is None else node.beside.rank
            for source in dict.fromkeys(node.sources):
                source.targets.append(node)
        self._rows: list[list[Node]] = [[] for _ in range(1 + max(node.rank for node in self.nodes))]
        for node in self.nodes:
            self._rows[node.rank].append(node)
        self._to_end = self._distances()
        self._heir = self._heirs()
        self._columns()
        self.edges = [Edge(source, node) for node in self.nodes for source in dict.fromkeys(node.sources)]
        self._coming: dict[Node, list[Edge]] = defaultdict(list)
        self._going: dict[Node, list[Edge]] = defaultdict(list)
        for edge in self.edges:
            self._coming[edge.target].append(edge)
            self._going[edge.source].append(edge)
        self._tracks()
        self._place_columns()
        self._ports()
        self._leaves()
        self._place_rows(top)

    def _distances(self) -> dict[Node, int]:
        """Steps of the longest way from each node to an end."""
        found: dict[Node, int] = {}
        for node in reversed(self.nodes):
            found[node] = 1 + max((found[target] for target in node.targets), default=-1)
        return found

    def next_in_chain(self, node: Node) -> Node | None:
        """The target through which the longest way goes on."""
        return max(node.targets, key=lambda target: self._to_end[target], default=None)

    def _heirs(self) -> dict[Node, Node]:
        """Which source's column a node takes: of those that go on through it, the lowest one."""
        found: dict[Node, Node] = {}
        for node in self.nodes:
            offered = [source for source in node.sources if self.next_in_chain(source) is node]
            if offered:
                found[node] = max(offered, key=lambda source: source.rank)
        return found

    def _columns(self) -> None:
        taken: list[list[Span]] = []
        for node in self.nodes:
            heir = self._heir.get(node)
            node.column = heir.column if heir else take(taken, node.rank, self._chain_end(node))

    def _chain_end(self, node: Node) -> int:
        """The last row that the chain from ``node`` needs, down to where it meets another or ends."""
        here = node
        while (following := self.next_in_chain(here)) is not None:
            if self._heir[following] is not here:
                return following.rank
            here = following
        return here.rank

    def _tracks(self) -> None:
        """Short edges lie nearest to their column."""
        held: dict[int, list[list[Span]]] = defaultdict(list)
        wanted = [edge for edge in self.edges if self._needs_track(edge)]
        for edge in sorted(wanted, key=lambda edge: edge.target.rank - edge.source.rank):
            # an edge may begin in the row in which another one of its track ends.
            first, last = edge.source.rank + 0.25, edge.target.rank - 0.25
            edge.track = take(held[edge.source.column], first, last)
        self._track_counts = {column: len(tracks) for column, tracks in held.items()}

    def _needs_track(self, edge: Edge) -> bool:
        near = edge.target.rank == edge.source.rank + 1
        return not near and self.next_in_chain(edge.source) is not edge.target

    def _place_columns(self) -> None:
        self._column_right: dict[int, float] = {}
        x = MARGIN
        columns: dict[int, list[Node]] = defaultdict(list)
        for node in self.nodes:
            columns[node.column].append(node)
        for column, here in sorted(columns.items()):
            panel, width = max(node.panel for node in here), max(node.width for node in here)
            for node in here:
                node.x, node.width = x + panel + width / 2, width
            self._column_right[column] = x + panel + width
            x += panel + width + TRACK * (self._track_counts.get(column, 0) + 1) + 2 * MARGIN
        self.width = x

    def _across(self, edge: Edge) -> float:
        """Where an edge comes down before it turns towards its target."""
        if edge.track is not None:
            return self._column_right[edge.source.column] + TRACK * (edge.track + 1)
        opens_chain = edge.target not in self._heir and edge.target.sources[0] is edge.source
        return edge.target.x if opens_chain else edge.source.x

    def _ports(self) -> None:
        """Lines from a side come in on that side of the middle, the nearest one next to it and highest."""
        turning: dict[int, list[Edge]] = defaultdict(list)
        for node in self.nodes:
            coming = [e for e in self._coming[node] if abs(self._across(e) - node.x) > 1]
            for sign in (1, -1):
                side = [e for e in coming if (self._across(e) - node.x) * sign > 0]
                side.sort(key=lambda e: abs(self._across(e) - node.x))
                step = min(PORT, (node.width / 2 - 8) / max(1, len(side)))
                for place, edge in enumerate(side):
                    edge.port = sign * step * (place + 1)
                # the furthest one first: it runs lowest.
                turning[node.rank] += reversed(side)
        self._arriving: dict[int, int] = {}
        for rank, edges in turning.items():
            spans = [(self._across(edge), edge.target.x + edge.port) for edge in edges]
            lanes = separate(spans)
            self._arriving[rank] = 1 + max(lanes, default=-1)
            for edge, lane in zip(edges, lanes, strict=True):
                edge.lane = lane

    def _leaves(self) -> None:
        """Lines that leave a node fork from one line across below its row."""
        self._leave: dict[Node, int] = {}
        self._leaving: dict[int, int] = {}
        for rank, row in enumerate(self._rows):
            spans: dict[Node, Span] = {}
            for node in row:
                ends = [self._across(edge) for edge in self._going[node]]
                if any(abs(end - node.x) > 1 for end in ends):
                    spans[node] = min(node.x, *ends), max(node.x, *ends)
            lanes = separate(list(spans.values()))
            self._leave |= dict(zip(spans, lanes, strict=True))
            self._leaving[rank] = 1 + max(lanes, default=-1)

    def _place_rows(self, top: float) -> None:
        y = top
        for rank, row in enumerate(self._rows):
            y += LANE * (self._arriving.get(rank, 0) + self._leaving.get(rank - 1, 0))
            for node in row:
                node.y = y
            y = max(node.bottom for node in row) + GAP
        self.height = y

    def route(self, edge: Edge) -> list[Point]:
        """The corners of an edge, from the bottom of its source to the top of its target."""
        source, target = edge.source, edge.target
        start, end = (source.x, source.bottom), (target.x + edge.port, target.y)
        across = self._across(edge)
        points = [start]
        if abs(across - source.x) > 1:
            row_bottom = max(node.bottom for node in self._rows[source.rank])
            leave = row_bottom + 9 + LANE * self._leave[source]
            points += [(source.x, leave), (across, leave)]
        if abs(across - end[0]) > 1:
            arrive = target.y - 14 - LANE * edge.lane
            points += [(across, arrive), (end[0], arrive)]
        return [*points, end]
