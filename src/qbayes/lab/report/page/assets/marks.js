/* Marks: one function a kind of chart. Each draws into a panel and says where its points are, for the pointer. */

const SVG = "http://www.w3.org/2000/svg";
const MARKERS = {
  circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  square: (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  triangle: (r) => `M0 ${-1.25 * r}L${1.15 * r} ${0.85 * r}H${-1.15 * r}z`,
  diamond: (r) => `M0 ${-1.35 * r}L${1.2 * r} 0L0 ${1.35 * r}L${-1.2 * r} 0z`,
  cross: (r) => `M${-r} ${-r}L${r} ${r}M${r} ${-r}L${-r} ${r}`,
  down: (r) => `M0 ${1.25 * r}L${1.15 * r} ${-0.85 * r}H${-1.15 * r}z`,
};

/** An SVG element; text is set as text, never as markup. */
function shape(tag, attributes, words) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  if (words !== undefined) node.textContent = words;
  return node;
}

/** An HTML element with its children; strings become text. */
function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const colourOf = (group) => (group in GROUPS ? `var(--g${GROUPS[group].index})` : "var(--neutral)");

/** Colours go through style, where the page's variables are known; an attribute would not resolve them. */
function coloured(node, group, ...properties) {
  for (const property of properties) node.style.setProperty(property, colourOf(group));
  return node;
}

function marker(group, x, y, size, hollow) {
  const kind = GROUPS[group]?.marker ?? "circle";
  const node = shape("path", { class: "mark-point", d: MARKERS[kind](size), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
  coloured(node, group, "stroke", "fill");
  if (hollow) node.style.fill = "var(--paper)";
  return node;
}

const pathOf = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** A line does not run across the places of what is not finite. */
function brokenPath(panel, series, places) {
  const gaps = (series.beyond ?? []).map((one) => panel.x(one.x));
  const pieces = [[]];
  places.forEach((place, k) => {
    if (k && gaps.some((gap) => gap > places[k - 1][0] && gap < place[0])) pieces.push([]);
    pieces.at(-1).push(place);
  });
  return pieces.map(pathOf).join("");
}

/** Lines with markers and spreads; the float point stands apart, and its level is dotted across. */
function drawLines(panel, chart) {
  const ways = chart.series.some((series) => series.dashed);
  chart.series.forEach((series, order) => {
    const shift = chart.categories ? (order - (chart.series.length - 1) / 2) * Math.min(4, panel.step / 12) : 0;
    const places = series.y.map((y, k) => [panel.x(series.x[k]) + shift, panel.y(y)]);
    const apart = series.x[0] === "float";
    if (apart) {
      const level = shape("path", { class: "mark-float", d: `M${panel.left} ${places[0][1].toFixed(1)}H${panel.right}` });
      panel.marks.append(coloured(level, series.group, "stroke"));
    }
    if (series.low) {
      const spreads = places.map(([x], k) => `M${x.toFixed(1)} ${panel.y(series.low[k]).toFixed(1)}V${panel.y(series.high[k]).toFixed(1)}`);
      panel.marks.append(coloured(shape("path", { class: "mark-spread", d: spreads.join("") }), series.group, "stroke"));
    }
    const line = shape("path", { class: "mark-line", d: brokenPath(panel, series, places.slice(apart ? 1 : 0)) });
    const dash = series.dashed ? "5 3" : ways ? "" : (GROUPS[series.group]?.dash ?? "");
    if (dash) line.setAttribute("stroke-dasharray", dash);
    panel.marks.append(coloured(line, series.group, "stroke"));
    places.forEach(([x, y], k) => {
      panel.marks.append(marker(series.group, x, y, 3.6, (apart && k === 0) || series.dashed));
      panel.point(x, y, series, k);
    });
    if (places.length) panel.name(series, places.at(-1)[1]);
  });
}

/** Boxes over quartiles with every value as a dot. */
function drawBoxes(panel, chart) {
  const count = chart.series.length;
  const wide = Math.min(26, (panel.step * 0.8) / count);
  chart.series.forEach((series, order) => {
    for (const category of chart.categories) {
      const members = series.y.map((_, k) => k).filter((k) => series.x[k] === category);
      if (!members.length) continue;
      const centre = panel.x(category) + (order - (count - 1) / 2) * wide;
      drawBox(panel, series, members.map((k) => series.y[k]), centre, wide * 0.36);
      members.forEach((k, place) => {
        const x = centre + ((place % 3) - 1) * wide * 0.13;
        const y = panel.y(series.y[k]);
        panel.marks.append(coloured(shape("circle", { class: "mark-dot", cx: x.toFixed(1), cy: y.toFixed(1), r: 1.8 }), series.group, "fill"));
        panel.point(x, y, series, k);
      });
    }
  });
}

function drawBox(panel, series, values, centre, half) {
  const sorted = [...values].sort((a, b) => a - b);
  const quantile = (share) => {
    const place = share * (sorted.length - 1);
    const below = Math.floor(place);
    return sorted[below] + (place - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
  };
  const [first, median, third] = [quantile(0.25), quantile(0.5), quantile(0.75)];
  const reach = 1.5 * (third - first);
  const inside = sorted.filter((value) => value >= first - reach && value <= third + reach);
  const [low, q1, q2, q3, high] = [inside[0], first, median, third, inside.at(-1)].map((value) => panel.y(value).toFixed(1));
  const [left, right] = [(centre - half).toFixed(1), (centre + half).toFixed(1)];
  const box = shape("path", {
    class: "mark-box",
    d: `M${left} ${q1}V${q3}H${right}V${q1}zM${left} ${q2}H${right}M${centre.toFixed(1)} ${q3}V${high}M${centre.toFixed(1)} ${q1}V${low}`,
  });
  panel.marks.append(coloured(box, series.group, "stroke", "fill"));
}

function drawBars(panel, chart) {
  const count = chart.series.length;
  const wide = Math.min(30, (panel.step * 0.8) / count);
  chart.series.forEach((series, order) => {
    series.y.forEach((y, k) => {
      const left = panel.x(series.x[k]) + (order - count / 2) * wide;
      const top = panel.y(y);
      const size = { x: (left + 1).toFixed(1), y: top.toFixed(1), width: (wide - 2).toFixed(1), height: Math.max(0.5, panel.bottom - top).toFixed(1) };
      panel.marks.append(coloured(shape("rect", { class: "mark-bar", ...size }), series.group, "fill"));
      if (series.low) {
        const spread = `M${(left + wide / 2).toFixed(1)} ${panel.y(series.low[k]).toFixed(1)}V${panel.y(series.high[k]).toFixed(1)}`;
        panel.marks.append(shape("path", { class: "mark-reach", d: spread }));
      }
      panel.point(left + wide / 2, top, series, k);
    });
  });
}

/** Steps over the edges of bins. The first set is the background of the others. */
function drawHistogram(panel, chart) {
  chart.series.forEach((series, order) => {
    const place = { class: "name", x: panel.right, y: panel.top + 10 + 14 * order, "text-anchor": "end" };
    const name = shape("text", place, series.name);
    panel.svg.append(series.group ? coloured(name, series.group, "fill") : name);
    let d = `M${panel.x(series.x[0]).toFixed(1)} ${panel.bottom}`;
    series.y.forEach((y, k) => {
      d += `V${panel.y(y).toFixed(1)}H${panel.x(series.x[k + 1]).toFixed(1)}`;
      panel.point((panel.x(series.x[k]) + panel.x(series.x[k + 1])) / 2, panel.y(y), series, k);
    });
    const area = shape("path", { class: series.group ? "mark-area" : "mark-area neutral", d: `${d}V${panel.bottom}z` });
    panel.marks.append(series.group ? coloured(area, series.group, "fill", "stroke") : area);
  });
}

/** A cloud a group; the front is the line of steps that nothing undercuts, and its points are named. */
function drawScatter(panel, chart) {
  const front = new Set();
  for (const series of chart.series.filter((one) => !one.group)) {
    const places = series.y.map((y, k) => [panel.x(series.x[k]), panel.y(y)]);
    const steps = places.map(([x, y], k) => (k ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}`)).join("");
    panel.marks.append(shape("path", { class: "front", d: `${steps}H${panel.right}` }));
    series.y.forEach((y, k) => front.add(`${series.x[k]} ${y}`));
  }
  for (const series of chart.series.filter((one) => one.group)) {
    series.y.forEach((y, k) => {
      const place = [panel.x(series.x[k]), panel.y(y)];
      panel.marks.append(marker(series.group, ...place, 3.4, series.labels?.[k] === "float"));
      panel.point(...place, series, k);
      if (front.has(`${series.x[k]} ${y}`) && series.labels) panel.label(place[0] + 6, place[1] - 6, series.labels[k]);
    });
  }
}

/** Accuracy over confidence; the area of a point is its share of the rows. */
function drawReliability(panel, chart) {
  for (const series of chart.series) {
    const places = series.y.map((y, k) => [panel.x(series.x[k]), panel.y(y)]);
    const line = shape("path", { class: "mark-line", d: pathOf(places), "stroke-opacity": 0.8 });
    if (GROUPS[series.group]?.dash) line.setAttribute("stroke-dasharray", GROUPS[series.group].dash);
    panel.marks.append(coloured(line, series.group, "stroke"));
    places.forEach(([x, y], k) => {
      panel.marks.append(marker(series.group, x, y, 1.6 + 5 * Math.sqrt(series.weight?.[k] ?? 0)));
      panel.point(x, y, series, k);
    });
  }
}

/** What is not finite: its sign at the edge of the panel, beside that of other series. */
function drawBeyond(panel, chart) {
  const count = chart.series.length;
  const wide = chart.categories ? Math.min(14, (panel.step * 0.8) / count) : 0;
  chart.series.forEach((series, order) => {
    for (const one of series.beyond ?? []) {
      const x = panel.x(one.x) + (order - (count - 1) / 2) * wide;
      const value = NOT_FINITE[one.y];
      const y = value < 0 ? panel.bottom - 4 : panel.top + 8;
      const mark = shape("text", { class: "mark-beyond", x: x.toFixed(1), y: y.toFixed(1), "text-anchor": "middle" }, plainNumber(value));
      panel.marks.append(coloured(mark, series.group, "fill"));
      panel.point(x, y, { name: series.name, group: series.group, x: [one.x], y: [value], labels: [one.label] }, 0);
    }
  });
}

const PAINTERS = {
  lines: drawLines,
  boxes: drawBoxes,
  bars: drawBars,
  histogram: drawHistogram,
  scatter: drawScatter,
  reliability: drawReliability,
};
