/* Figures: switches choose charts, panels draw them when they come into sight, pointers and keys read them. */

const ALL = "\u0000all"; // no choice is called so
const hidden = new Set(); // groups that are switched off, in all figures
const shared = {}; // choices that hold for all figures: the task
const plates = [];
const tip = document.getElementById("tip");

/** One figure of the page: what is chosen, and how it is drawn. */
class PlateView {
  constructor(figure) {
    this.figure = figure;
    this.chosen = {};
    this.spread = ALL;
    this.scale = "auto";
    this.seen = false;
    this.node = element("article", { class: "plate", id: `figure-${figure.name}`, "aria-label": figure.title });
    this.switches = element("div", { class: "switches", role: "group", "aria-label": `Switches of ${figure.title}` });
    this.panels = element("div", { class: "panels" });
    this.node.append(element("h3", {}, figure.title), element("p", {}, figure.caption), this.switches, this.panels);
  }

  /** The charts that agree with the choices made; a choice that is not on offer falls back to the first. */
  select() {
    let left = this.figure.charts;
    const offers = [];
    const keys = [...new Set(left.flatMap((chart) => Object.keys(chart.choices)))].filter((key) => key !== this.figure.beside);
    for (const key of keys) {
      const values = [...new Set(left.map((chart) => chart.choices[key]))];
      const wanted = key in shared ? shared[key] : this.chosen[key];
      if (key in shared && !values.includes(wanted)) return { offers: [], charts: [] };
      const value = values.includes(wanted) ? wanted : values[0];
      if (!(key in shared) && values.length > 1) offers.push({ key, values, value });
      left = left.filter((chart) => chart.choices[key] === value);
    }
    return { offers, charts: left };
  }

  draw() {
    if (!this.seen) return;
    tip.hidden = true;
    const { offers, charts } = this.select();
    const beside = this.figure.beside;
    const names = [...new Set(charts.map((chart) => chart.choices[beside]))];
    if (this.spread !== ALL && !names.includes(this.spread)) this.spread = ALL;
    const shown = charts.filter((chart) => (this.spread === ALL ? chart.main : chart.choices[beside] === this.spread));
    this.drawSwitches(offers, names, shown, charts);
    this.drawPanels(shown.length ? shown : charts.slice(0, 1));
  }

  drawSwitches(offers, names, shown, charts) {
    const focused = document.activeElement?.dataset?.key;
    const nodes = offers.map(({ key, values, value }) =>
      chooser(key, values.map((one) => [one, one]), value, (next) => { this.chosen[key] = next; this.draw(); }));
    if (names.length > 1) {
      const options = [[ALL, charts.every((chart) => chart.main) ? "all" : "the main ones"], ...names.map((name) => [name, name])];
      nodes.push(chooser(this.figure.beside, options, this.spread, (next) => { this.spread = next; this.draw(); }));
    }
    if (shown.some(canLog)) {
      const options = [["auto", "automatic"], ["linear", "linear"], ["log", "logarithmic"]];
      nodes.push(chooser("y axis", options, this.scale, (next) => { this.scale = next; this.draw(); }));
    }
    this.switches.replaceChildren(...nodes);
    if (focused && this.node.contains(document.activeElement) === false) this.switches.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  drawPanels(charts) {
    this.node.classList.toggle("bare", !charts.length);
    this.panels.className = `panels${charts.length === 1 ? " one" : charts.length === 2 || charts.length === 4 ? " two" : ""}`;
    if (!charts.length) {
      const tasks = [...new Set(this.figure.charts.map((chart) => chart.choices.task))].join(", ");
      this.panels.replaceChildren(element("p", { class: "note" }, `The study has no such runs of ${shared.task}, only of ${tasks}.`));
      return;
    }
    const visible = charts.map((chart) => ({ ...chart, series: chart.series.filter((series) => !hidden.has(series.group)) }));
    const nodes = visible.map(() => element("figure", { class: "panel" }));
    this.panels.replaceChildren(...nodes);
    const kinds = visible.map((chart) => this.kindOf(chart));
    const together = this.figure.same_y && new Set(visible.map((chart) => chart.y)).size === 1;
    const kind = kinds.every((one) => one === kinds[0]) ? kinds[0] : "linear";
    visible.forEach((chart, k) => {
      const ends = together ? endsOf(visible, kind) : endsOf([chart], kinds[k]);
      fillPanel(nodes[k], chart, this.figure.beside, ends, together ? kind : kinds[k]);
    });
  }

  kindOf(chart) {
    if (chart.root_y) return "root";
    const wanted = this.scale === "auto" ? Boolean(chart.log_y) : this.scale === "log";
    return wanted && canLog(chart) ? "log" : "linear";
  }
}

/** A labelled select. */
function chooser(key, options, value, change) {
  const select = element("select", { "data-key": key }, ...options.map(([name, words]) => {
    const option = element("option", { value: name }, words);
    option.selected = name === value;
    return option;
  }));
  select.addEventListener("change", () => change(select.value));
  return element("label", {}, key, select);
}

function fillPanel(node, chart, beside, ends, kind) {
  if (!ends) {
    node.replaceChildren(element("p", { class: "note" }, "All methods are switched off."));
    return;
  }
  const named = chart.choices[beside];
  const head = !named || beside === "metric" || beside === "measure" ? chart.y : named;
  const panel = drawPanel(chart, Math.max(220, Math.floor(node.clientWidth)), head, ends, kind);
  const saves = element("div", { class: "saves" },
    saver("SVG", `${chart.title} as SVG`, () => save(`${chart.name}.svg`, "image/svg+xml", svgText(panel))),
    saver("CSV", `${chart.title} as CSV`, () => save(`${chart.name}.csv`, "text/csv", csvText(chart))));
  node.replaceChildren(panel.svg, saves);
  if (chart.note) node.append(element("figcaption", {}, chart.note));
  listen(panel);
}

function saver(words, label, act) {
  const button = element("button", { type: "button", "aria-label": label }, words);
  button.addEventListener("click", act);
  return button;
}

/** Pointer and keys: both move one cursor over the panel's points. */
function listen(panel) {
  let here = null;
  const go = (point) => { here = point; showTip(panel, point); };
  const leave = () => { here = null; hideTip(panel); };
  panel.svg.addEventListener("pointermove", (event) => {
    const box = panel.svg.getBoundingClientRect();
    const point = nearestPoint(panel, event.clientX - box.left, event.clientY - box.top);
    if (point) go(point);
  });
  panel.svg.addEventListener("pointerleave", leave);
  panel.svg.addEventListener("blur", leave);
  panel.svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { leave(); return; }
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const upwards = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!sideways && !upwards) return;
    event.preventDefault();
    const next = neighbour(panel, here, sideways, upwards);
    if (next) go(next);
  });
}

/** The next point of the same series sideways, or of the series above or below. */
function neighbour(panel, here, sideways, upwards) {
  if (!here) return panel.points[0];
  const own = panel.points.filter((point) => point.series.name === here.series.name).sort((a, b) => a.x - b.x);
  if (sideways) return own[own.indexOf(here) + sideways] ?? here;
  const column = panel.points.filter((point) => Math.abs(point.x - here.x) < Math.max(10, panel.step / 2)).sort((a, b) => a.y - b.y);
  return column[column.indexOf(here) + upwards] ?? here;
}

function showTip(panel, point) {
  panel.svg.querySelector(".ring")?.remove();
  panel.svg.append(shape("circle", { class: "ring", cx: point.x.toFixed(1), cy: point.y.toFixed(1), r: 7 }));
  tip.replaceChildren(...tipLines(panel, point));
  tip.hidden = false;
  const box = panel.svg.getBoundingClientRect();
  const [x, y] = [box.left + point.x, box.top + point.y];
  const wide = document.documentElement.clientWidth;
  const left = x + 16 + tip.offsetWidth > wide ? Math.max(6, x - 16 - tip.offsetWidth) : x + 16;
  tip.style.left = `${Math.min(left, wide - tip.offsetWidth - 6) + window.scrollX}px`;
  tip.style.top = `${Math.max(6, y - tip.offsetHeight / 2) + window.scrollY}px`;
}

function hideTip(panel) {
  panel.svg.querySelector(".ring")?.remove();
  tip.hidden = true;
}

/** The point's own values, and on lines those of the others at the same place. */
function tipLines(panel, { series, k }) {
  const { chart } = panel;
  const x = chart.kind === "histogram" ? `${plainNumber(series.x[k])} to ${plainNumber(series.x[k + 1])}` : plainNumber(series.x[k]);
  const lines = [element("div", { class: "quiet" }, `${chart.x}: `, element("b", {}, x))];
  const together = chart.kind === "lines" || chart.kind === "bars" || chart.kind === "histogram";
  const rows = together
    ? panel.points.filter((point) => point.series.x[point.k] === series.x[k]).sort((a, b) => a.y - b.y)
    : [{ series, k }];
  for (const row of rows) {
    const value = plainNumber(row.series.y[row.k]);
    const spread = row.series.low && row.series.low[row.k] !== row.series.high[row.k]
      ? ` (${plainNumber(row.series.low[row.k])} … ${plainNumber(row.series.high[row.k])})` : "";
    lines.push(element("div", { class: row.series.name === series.name ? "row" : "row far" },
      swatch(row.series.group), element("span", {}, row.series.name), element("span", {}, element("b", {}, value), spread)));
  }
  lines.push(element("div", { class: "quiet" }, [chart.y, series.labels?.[k]].filter(Boolean).join(" · ")));
  return lines;
}

function swatch(group) {
  const svg = shape("svg", { width: 12, height: 12, viewBox: "-6 -6 12 12", "aria-hidden": "true" });
  svg.append(marker(group, 0, 0, 3.8));
  return svg;
}

/** The drawing with its colours written out, to stand alone: white paper, light colours. */
function svgText(panel) {
  const theme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  const copy = panel.svg.cloneNode(true);
  const [from, to] = [[panel.svg, ...panel.svg.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  const kept = ["paint-order", "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight"];
  to.forEach((node, k) => {
    const style = getComputedStyle(from[k]);
    for (const name of kept) node.setAttribute(name, style.getPropertyValue(name));
    node.removeAttribute("style");
    node.removeAttribute("class");
  });
  if (theme === undefined) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  copy.querySelectorAll("circle[r='7']").forEach((ring) => ring.remove());
  copy.setAttribute("width", panel.width);
  copy.prepend(shape("title", {}, panel.chart.title), shape("rect", { width: panel.width, height: panel.height, fill: "#ffffff" }));
  return new XMLSerializer().serializeToString(copy);
}

function csvText(chart) {
  const quote = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  const lines = [["series", chart.x, chart.y, "low", "high", "label"]];
  for (const series of chart.series) {
    series.y.forEach((y, k) => lines.push([series.name, series.x[k], y, series.low?.[k] ?? "", series.high?.[k] ?? "", series.labels?.[k] ?? ""]));
    for (const one of series.beyond ?? []) lines.push([series.name, one.x, one.y, "", "", one.label]);
  }
  return lines.map((line) => line.map(quote).join(",")).join("\n") + "\n";
}

function save(name, type, text) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The switches of all figures: the task, and the methods. */
function drawGlobal(figures) {
  const place = document.getElementById("global");
  const tasks = tasksOf(figures);
  if (tasks.length > 1) {
    shared.task = tasks[0];
    place.append(chooser("task", tasks.map((task) => [task, task]), tasks[0], (next) => { shared.task = next; drawAll(); }));
  }
  const buttons = Object.entries(GROUPS).map(([name, group]) => {
    const button = element("button", { type: "button", "aria-pressed": "true", "data-group": name }, swatch(name), group.label);
    button.addEventListener("click", () => {
      const off = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!off));
      if (off) hidden.add(name);
      else hidden.delete(name);
      drawAll();
    });
    return button;
  });
  if (buttons.length) place.append(element("div", { class: "groups", role: "group", "aria-label": "Methods" }, ...buttons));
}

/** The tasks of all figures, those first that most figures show. */
function tasksOf(figures) {
  const counts = new Map();
  for (const figure of figures) {
    const own = new Set(figure.charts.map((chart) => chart.choices.task).filter(Boolean));
    for (const task of own) counts.set(task, (counts.get(task) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1]).map(([task]) => task);
}

const drawAll = () => plates.forEach((plate) => plate.draw());

/** Put every figure in its place; each is drawn when it comes near the window. */
function startFigures(figures) {
  if (!figures.length) return;
  drawGlobal(figures);
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      watch.unobserve(entry.target);
      reveal(plates.find((plate) => plate.node === entry.target));
    }
  }, { rootMargin: "600px" });
  for (const figure of figures) {
    const plate = new PlateView(figure);
    plates.push(plate);
    document.getElementById("plates").append(plate.node);
    watch.observe(plate.node);
  }
  let wide = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === wide) return; // a phone's address bar changes the height alone
    wide = window.innerWidth;
    drawAll();
  });
  window.addEventListener("beforeprint", () => plates.forEach(reveal));
}

function reveal(plate) {
  plate.seen = true;
  plate.draw();
}
