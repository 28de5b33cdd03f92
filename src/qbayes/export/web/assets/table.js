// All models side by side: one line each, of which one is shown in full above.

import { html } from "./elements.js";
import { short } from "./rows.js";

const size = (bytes) => (bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
const time = (ms) => (ms === null ? "–" : ms < 10 ? ms.toFixed(2) : ms.toFixed(0));

/** How many draws choose the class that the first model chooses from the same noise. */
function agreement(draws, others) {
  const best = (draw) => draw.indexOf(Math.max(...draw));
  const pairs = Math.min(draws.length, others.length);
  let same = 0;
  for (let at = 0; at < pairs; at++) same += best(draws[at]) === best(others[at]);
  return `${same} of ${pairs}`;
}

function columns(manifest, first) {
  if (manifest.kind === "regression") {
    return [
      ["mean", (line) => short(line.stats.mean, 5)],
      ["90 % interval", (line) => `${short(line.stats.low)} … ${short(line.stats.high)}`],
      ["σ of the data", (line) => short(Math.sqrt(line.stats.data), 3)],
      ["σ of the model", (line) => short(Math.sqrt(line.stats.model), 3)],
    ];
  }
  const columns = [
    ["answer", (line) => html("b", {}, manifest.labels[line.stats.best])],
    ["probability", (line) => line.stats.confidence.toFixed(3)],
    ["entropy", (line) => line.stats.entropy.toFixed(3)],
    ["data", (line) => line.stats.data.toFixed(3)],
    ["model", (line) => line.stats.model.toFixed(3)],
  ];
  if (first && manifest.models.length > 1) {
    columns.push([`agree with ${first.name}`, (line) => agreement(line.draws, first.draws)]);
  }
  return columns;
}

/** Fill the table; `lines` have {name, entry, stats, draws, milliseconds, problem}. */
export function fillTable(table, manifest, lines, shown, choose) {
  const held = document.activeElement?.closest?.("#models input")?.value;
  const wanted = columns(manifest, lines[0].stats ? lines[0] : null);
  const titles = [...wanted.map(([name]) => name), "ms a draw", "file"];
  const head = html("tr", {}, html("th", { scope: "col" }, "model"),
    ...titles.map((title) => html("th", { scope: "col", class: "n" }, title)));
  const rows = lines.map((line) => {
    const pick = html("input", {
      type: "radio", name: "model", value: line.name, disabled: Boolean(line.problem), onchange: () => choose(line.name),
    });
    pick.checked = line.name === shown;
    const cells = line.stats ? wanted.map(([, cell]) => html("td", { class: "n" }, cell(line)))
      : [html("td", { colspan: wanted.length, class: line.problem ? "long bad" : "quiet" }, line.problem ?? "–")];
    return html("tr", { class: line.name === shown ? "shown" : "" },
      html("th", { scope: "row" }, html("label", {}, pick, ` ${line.name}`)), ...cells,
      html("td", { class: "n" }, time(line.milliseconds)), html("td", { class: "n" }, size(line.entry.bytes)));
  });
  table.replaceChildren(html("thead", {}, head), html("tbody", {}, ...rows));
  if (held) table.querySelector(`input[value="${CSS.escape(held)}"]`)?.focus();
}
