// The answer as pictures: bars of classes with a tick for each draw, densities, the split of the uncertainty.

import { html, svg } from "./elements.js";
import { short } from "./rows.js";
import { density } from "./statistics.js";

const percent = (p) => `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;
const MOST_CLASSES = 12;

/** Classes as rows: the mean as a bar, every draw as a tick on it. */
export function classBars(labels, stats, draws) {
  let order = labels.map((_, at) => at);
  if (labels.length > MOST_CLASSES) order = order.sort((a, b) => stats.mean[b] - stats.mean[a]).slice(0, MOST_CLASSES);
  const rows = order.map((at) => html("div", { class: at === stats.best ? "class best" : "class" },
    html("span", { class: "label" }, labels[at]),
    html("span", { class: "track" },
      html("span", { class: "fill", style: { width: `${100 * stats.mean[at]}%` } }),
      ...draws.map((draw) => html("span", { class: "tick", style: { left: `${100 * draw[at]}%` } }))),
    html("span", { class: "value" }, percent(stats.mean[at]))));
  const told = `Probabilities: ${order.map((at) => `${labels[at]} ${percent(stats.mean[at])}`).join(", ")}`;
  const left = labels.length - order.length;
  return html("div", { class: "bars", role: "img", "aria-label": told }, ...rows,
    left > 0 ? html("p", { class: "note" }, `and ${left} more classes`) : null);
}

/** Two parts of a whole on a track whose full length is `most`. */
export function splitBar(data, model, most, unit, words) {
  const share = (part) => `${(100 * part) / most}%`;
  const told = `${words[0]} ${short(data, 3)}, ${words[1]} ${short(model, 3)} ${unit}`;
  const bar = html("div", { class: "split", role: "img", "aria-label": told },
    html("span", { class: "data", style: { width: share(data) } }),
    html("span", { class: "model", style: { width: share(model) } }));
  const item = (kind, text, value) => html("li", {}, html("span", { class: `key ${kind}` }),
    html("b", {}, value.toFixed(value < 10 ? 3 : 1)), ` ${text}`);
  const limit = most === data + model ? "" : `, of at most ${most.toFixed(2)}`;
  return html("div", {}, bar, html("ul", { class: "legend" }, item("data", words[0], data), item("model", words[1], model),
    html("li", { class: "quiet" }, `${unit}${limit}`)));
}

/** One draw of a classifier: thin bars, and the class it would choose. */
export function drawPlate(labels, draw, at, agreed) {
  const best = draw.indexOf(Math.max(...draw)), width = 100 / draw.length;
  const bars = draw.map((p, k) => svg("rect", {
    x: (k + 0.12) * width, y: 40 * (1 - p), width: 0.76 * width, height: 40 * p, class: k === best ? "best" : "",
  }));
  const told = `Draw ${at + 1}: ${labels[best]}, ${percent(draw[best])}`;
  return html("figure", { class: agreed === best ? "draw" : "draw apart", role: "img", "aria-label": told },
    svg("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none" }, ...bars),
    html("figcaption", {}, html("b", {}, labels[best]), html("span", {}, percent(draw[best]))));
}

function ticksBetween(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) ticks.push(Number(at.toPrecision(10)));
  return ticks;
}

const WIDE = 640, TALL = 230, FOOT = 26;

/** The mixture as an area, each draw's Gaussian as a thin line, the 90 % interval below. */
export function densityPlot(stats, means, variances, label) {
  const spread = Math.sqrt(stats.variance);
  const reach = [Math.min(stats.low, stats.mean - 2.8 * spread), Math.max(stats.high, stats.mean + 2.8 * spread)];
  const x = (y) => ((y - reach[0]) / (reach[1] - reach[0])) * WIDE;
  const points = Array.from({ length: 161 }, (_, at) => reach[0] + ((reach[1] - reach[0]) * at) / 160);
  const curves = means.map((m, at) => points.map((y) => density(y, m, variances[at])));
  const mixture = points.map((_, at) => curves.reduce((sum, curve) => sum + curve[at], 0) / curves.length);
  const top = Math.max(...curves.flat()) * 1.05, floor = TALL - FOOT - 12;
  const place = (v, at) => `${x(points[at]).toFixed(1)} ${(floor * (1 - v / top) + 4).toFixed(1)}`;
  const path = (values) => `M${values.map(place).join("L")}`;
  const axis = ticksBetween(reach[0], reach[1], 6).flatMap((at) => [
    svg("line", { class: "gridline", x1: x(at), x2: x(at), y1: 4, y2: floor + 4 }),
    svg("text", { x: x(at), y: TALL - 6, "text-anchor": "middle" }, short(at))]);
  const told = `${label}: mean ${short(stats.mean)}, 90 % between ${short(stats.low)} and ${short(stats.high)}`;
  return svg("svg", { class: "plot", viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": told },
    ...axis, svg("path", { class: "area", d: `${path(mixture)}L${WIDE} ${floor + 4}L0 ${floor + 4}Z` }),
    ...curves.map((curve) => svg("path", { class: "curve", d: path(curve) })),
    svg("path", { class: "line", d: path(mixture) }),
    svg("line", { class: "interval", x1: x(stats.low), x2: x(stats.high), y1: floor + 8, y2: floor + 8 }),
    svg("circle", { class: "centre", cx: x(stats.mean), cy: floor + 8, r: 4.5 }));
}

/** The mean of each draw in turn, with one deviation of its noise. */
export function drawStrip(means, variances) {
  const low = Math.min(...means.map((m, at) => m - Math.sqrt(variances[at])));
  const high = Math.max(...means.map((m, at) => m + Math.sqrt(variances[at])));
  const y = (v) => 8 + (1 - (v - low) / (high - low)) * 144, left = 46;
  const x = (at) => left + ((at + 0.5) / means.length) * (WIDE - left);
  const axis = ticksBetween(low, high, 4).flatMap((v) => [
    svg("line", { class: "gridline", x1: left, x2: WIDE, y1: y(v), y2: y(v) }),
    svg("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, short(v))]);
  const mark = (m, at) => {
    const noise = Math.sqrt(variances[at]);
    return svg("g", {}, svg("line", { class: "whisker", x1: x(at), x2: x(at), y1: y(m - noise), y2: y(m + noise) }),
      svg("circle", { class: "centre", cx: x(at), cy: y(m), r: 3.4 }));
  };
  const told = `Means of ${means.length} draws, from ${short(Math.min(...means))} to ${short(Math.max(...means))}`;
  return svg("svg", { class: "plot", viewBox: `0 0 ${WIDE} 160`, role: "img", "aria-label": told }, ...axis, ...means.map(mark));
}
