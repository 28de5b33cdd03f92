/* A panel: the axes of one chart, its marks, and what the pointer and the keyboard find on it. */

const LINE = 14; // height of a line of text, in pixels
const WIDE = 6.1; // mean width of a character, in pixels

/** The lowest and highest y of charts that share an axis, or null where nothing is drawn. */
function endsOf(charts, kind) {
  const values = charts.flatMap((chart) => [
    ...(chart.level === undefined ? [] : [chart.level]),
    ...chart.series.flatMap((series) => [...series.y, ...(series.low ?? []), ...(series.high ?? [])]),
  ]);
  if (!values.length && charts.some((chart) => chart.series.some((series) => series.beyond))) return kind === "log" ? [0.1, 1] : [0, 1];
  if (!values.length) return null;
  if (charts[0].kind === "reliability") return squareEnds(charts);
  if (charts[0].kind === "bars") return [0, Math.max(...values) * 1.06 || 1];
  return axisEnds(kind === "log" ? values.filter((value) => value > 0) : values, kind);
}

/** Ends of both axes of reliability diagrams: the same tens for confidence and accuracy. */
function squareEnds(charts) {
  const values = charts.flatMap((chart) => chart.series.flatMap((series) => [...series.x, ...series.y]));
  return [Math.max(0, Math.floor(Math.min(...values) / 10) * 10), 101];
}

/** Whether all of a chart's values can stand on a logarithmic axis. */
const canLog = (chart) =>
  chart.kind !== "histogram" && chart.kind !== "bars" && chart.kind !== "reliability" &&
  chart.series.every((series) => [...series.y, ...(series.low ?? [])].every((value) => value > 0));

/** Draw a chart, `width` pixels wide; `head` is its heading, `ends` and `kind` belong to its y axis. */
function drawPanel(chart, width, head, ends, kind) {
  const panel = frameOf(chart, width, head, ends, kind);
  panel.svg.setAttribute("aria-label", spoken(chart));
  drawAxes(panel, chart);
  panel.svg.append(panel.marks);
  PAINTERS[chart.kind](panel, chart);
  drawBeyond(panel, chart);
  panel.svg.append(panel.over);
  placeNames(panel);
  return panel;
}

function frameOf(chart, width, head, ends, kind) {
  const height = Math.round(Math.min(340, Math.max(215, width * (chart.kind === "reliability" ? 0.8 : 0.68))));
  const top = head === chart.y ? 30 : 46;
  const rotated = crowded(chart, width);
  const low = rotated ? 60 : 37; // names of the ticks and of the axis
  const yRoom = Math.max(2, Math.floor((height - top - low) / 38));
  const trial = makeScale(kind, ...ends, 0, 1, kind === "log" ? yRoom + 2 : yRoom);
  const left = 12 + Math.max(2, ...trial.ticks.map((tick) => shortNumber(tick).length)) * WIDE;
  const named = chart.kind === "lines";
  const right = width - (named ? 10 + WIDE * Math.max(0, ...chart.series.map((s) => nameOf(chart, s).length)) : 14);
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0, xmlns: SVG });
  const panel = { chart, svg, width, height, left, right, top, bottom: height - low, rotated, head, least: ends[0], points: [], names: [], labels: [] };
  panel.marks = shape("g", {});
  panel.over = shape("g", {}); // names of points, above all marks
  panel.y = makeScale(kind, ...ends, panel.bottom, top, kind === "log" ? yRoom + 2 : yRoom);
  panel.x = chart.categories ? categoryScale(panel) : numberScale(panel, chart, ends);
  panel.point = (x, y, series, k) => panel.points.push({ x, y, series, k });
  panel.name = (series, y) => panel.names.push({ series, y, words: nameOf(chart, series) });
  panel.label = (x, y, words) => placeLabel(panel, x, y, words);
  return panel;
}

/** What stands at the end of a line: the way of one method, or the method's short name. */
function nameOf(chart, series) {
  const ways = chart.series.some((one) => one.dashed);
  return shortened(ways ? series.name : (GROUPS[series.group]?.short ?? series.name), 12);
}

/** Words cut to at most `most` characters. */
const shortened = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);

/** Whether the names under the axis need to be turned. */
function crowded(chart, width) {
  const letters = (chart.categories ?? []).reduce((sum, name) => sum + Math.min(name.length, 16) + 1.5, 0);
  return letters * WIDE > width - 110;
}

/** Places of the categories; float has a gap to the bits beside it. */
function categoryScale(panel) {
  const names = panel.chart.categories;
  const gap = names[0] === "float" && names.length > 1 ? 0.25 : 0;
  const step = (panel.right - panel.left) / (names.length + gap);
  panel.step = step;
  const at = new Map(names.map((name, k) => [name, panel.left + step * (k + 0.5 + (k ? gap : 0))]));
  const scale = (name) => at.get(name);
  scale.ticks = names;
  panel.divide = gap ? panel.left + step * (1 + gap / 2) : null;
  return scale;
}

function numberScale(panel, chart, yEnds) {
  const values = chart.series.flatMap(placesOf);
  const kind = chart.log_x ? "log" : "linear";
  let ends = [Math.min(...values), Math.max(...values)];
  if (chart.kind === "reliability") ends = yEnds;
  else if (chart.kind !== "histogram") ends = kind === "log" ? [ends[0] / 1.15, ends[1] * 1.15] : axisEnds(values, kind);
  const room = Math.max(2, Math.floor((panel.right - panel.left) / 62));
  panel.step = (panel.right - panel.left) / Math.max(1, new Set(values).size);
  return makeScale(kind, ...ends, panel.left, panel.right, room);
}

/** Where a series has values, finite or not. */
const placesOf = (series) => [...series.x, ...(series.beyond ?? []).map((one) => one.x)];

function drawAxes(panel, chart) {
  const { svg, left, right, bottom } = panel;
  const most = Math.floor(panel.width / WIDE / 1.3);
  svg.append(shape("text", { class: "head", x: 0, y: 13 }, shortened(panel.head, most)));
  if (panel.head !== chart.y) svg.append(shape("text", { x: 0, y: 30 }, shortened(chart.y, most)));
  for (const tick of panel.y.ticks) {
    const y = panel.y(tick).toFixed(1);
    svg.append(shape("path", { class: "gridline", d: `M${left} ${y}H${right}` }));
    svg.append(shape("text", { x: left - 6, y: Number(y) + 4, "text-anchor": "end" }, shortNumber(tick)));
  }
  svg.append(shape("path", { class: "axis", d: `M${left} ${bottom}H${right}` }));
  for (const tick of panel.x.ticks) {
    const x = panel.x(tick).toFixed(1);
    const words = typeof tick === "string" ? shortened(tick, 16) : shortNumber(tick);
    const turn = panel.rotated ? { "text-anchor": "end", transform: `rotate(-45 ${x} ${bottom + 13})` } : { "text-anchor": "middle" };
    svg.append(shape("text", { x, y: bottom + 15, ...turn }, words));
  }
  const middle = ((left + right) / 2).toFixed(1);
  svg.append(shape("text", { x: middle, y: panel.height - 4, "text-anchor": "middle" }, shortened(chart.x, Math.floor(panel.width / WIDE))));
  drawGuides(panel, chart);
}

/** Lines to compare with: float's place, equality, the level of float. */
function drawGuides(panel, chart) {
  const { svg, left, right, top, bottom } = panel;
  if (panel.divide) svg.append(shape("path", { class: "divide", d: `M${panel.divide.toFixed(1)} ${top}V${bottom}` }));
  if (chart.level !== undefined) {
    const y = panel.y(chart.level).toFixed(1);
    svg.append(shape("path", { class: "level", d: `M${left} ${y}H${right}` }));
  }
  if (chart.diagonal && chart.series.some((series) => series.y.length)) {
    const values = chart.series.flatMap((series) => [...series.x, ...series.y]);
    const [low, high] = chart.kind === "reliability" ? [panel.least, 100] : [Math.min(...values), Math.max(...values)];
    svg.append(shape("path", { class: "diagonal", d: pathOf([[panel.x(low), panel.y(low)], [panel.x(high), panel.y(high)]]) }));
  }
}

/** A name beside a point, left out where it would lie on another one. */
function placeLabel(panel, x, y, words) {
  const wide = words.length * WIDE;
  const left = Math.min(x, panel.width - wide);
  if (panel.labels.some((other) => left < other.right + 4 && left + wide > other.left - 4 && Math.abs(y - other.y) < LINE)) return;
  panel.labels.push({ left, right: left + wide, y });
  panel.over.append(shape("text", { class: "beside", x: left.toFixed(1), y: y.toFixed(1) }, words));
}

/** Names at the ends of lines, moved apart where they would overlap. */
function placeNames(panel) {
  const names = [...panel.names].sort((a, b) => a.y - b.y);
  names.forEach((name, k) => {
    name.at = k ? Math.max(name.y, names[k - 1].at + LINE - 2) : name.y;
  });
  const over = names.length ? names.at(-1).at - panel.bottom : 0;
  for (const name of names) {
    const y = name.at - Math.max(0, over) + 4;
    const text = shape("text", { class: "name", x: panel.right + 5, y: y.toFixed(1) }, name.words);
    panel.svg.append(coloured(text, name.series.group, "fill"));
  }
}

/** What a screen reader says of the chart as a whole. */
function spoken(chart) {
  const parts = chart.series.map((series) => {
    const ends = series.y.length ? `, from ${plainNumber(series.y[0])} to ${plainNumber(series.y.at(-1))}` : "";
    return `${series.name}${chart.kind === "lines" ? ends : ""}`;
  });
  return `${chart.title}. ${chart.y} over ${chart.x}. ${parts.join("; ")}. Arrow keys read the values.`;
}

/** The point nearest to a place: along x first on lines, in the plane elsewhere. */
function nearestPoint(panel, x, y) {
  const weight = panel.chart.kind === "lines" || panel.chart.kind === "histogram" ? 0.05 : 1;
  let best = null;
  let least = Infinity;
  for (const point of panel.points) {
    const distance = (point.x - x) ** 2 + weight * (point.y - y) ** 2;
    if (distance < least) [best, least] = [point, distance];
  }
  return best;
}
