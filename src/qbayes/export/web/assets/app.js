// The page: loads the models, takes an input, lets every model draw, and shows what the draws say.

import { classBars, densityPlot, drawPlate, drawStrip, splitBar } from "./charts.js";
import { byId, html } from "./elements.js";
import { isImage, readInputs } from "./inputs.js";
import { canCheck, Model, readManifest } from "./models.js";
import { short } from "./rows.js";
import { classification, mean, regression } from "./statistics.js";
import { fillTable } from "./table.js";

const METHODS = { mcd: "MC dropout", bbb: "Bayes-by-Backprop", sghmc: "SGHMC", pointwise: "Point estimates" };
const PAINT_EVERY_MS = 40;
const state = { manifest: null, lines: [], shown: "", row: null, seed: 0, count: 20, run: 0, driver: null };

function tell(text) {
  byId("message").textContent = text ?? "";
  byId("message").hidden = !text;
}

/** Wait for the browser to paint and to take what the user does. */
const breath = () => new Promise((resume) => { setTimeout(resume); });

/** Answer the newest input: a run under way gives up for it, so that sessions run one at a time. */
function answer() {
  state.run += 1;
  state.driver ??= drive().finally(() => { state.driver = null; });
  return state.driver;
}

async function drive() {
  document.body.dataset.state = "drawing";
  let done;
  do {
    done = await drawAll(state.run);
  } while (!done);
  document.body.dataset.state = "ready";
}

/** Let every model make its draws, the one that is shown first; false if there was something newer. */
async function drawAll(run) {
  const order = [...state.lines].sort((a, b) => (b.name === state.shown) - (a.name === state.shown));
  let painted = performance.now();
  for (const line of order) {
    while (line.model && state.row && line.made.length < state.count) {
      await more(line);
      if (performance.now() - painted > PAINT_EVERY_MS) {
        paint();
        await breath();
        painted = performance.now();
      }
      if (run !== state.run) return false;
    }
  }
  paint();
  return true;
}

/** One more draw of each member. A model without noise repeats its members. */
async function more(line) {
  const members = line.entry.members, first = line.made.length;
  if (line.entry.noise.length === 0 && first >= members) {
    line.made.push(line.made[first % members]);
    return;
  }
  const { row, seed, run } = state;
  try {
    const { found, milliseconds } = await line.model.draws(row, seed, first);
    if (run !== state.run) return;
    line.made.push(...found);
    line.times.push(milliseconds / members);
  } catch (error) {
    line.model = null;
    line.problem = `It failed: ${String(error.message ?? error).split("\n")[0].slice(0, 160)}`;
  }
}

function restart() {
  for (const line of state.lines) Object.assign(line, { made: [], times: [] });
  return answer();
}

/** What the first draws of a line say. */
function summary(line) {
  const used = line.made.slice(0, state.count);
  line.draws = used.map((draw) => draw.answer);
  if (used.length === 0) line.stats = null;
  else if (state.manifest.kind === "classification") line.stats = classification(line.draws);
  else line.stats = regression(line.draws.map((d) => d[0]), used.map((d) => d.variances[0]));
  // the first run also warms up.
  const times = line.times.length > 1 ? line.times.slice(1) : line.times;
  line.milliseconds = times.length ? mean(times) : null;
}

function paint() {
  state.lines.forEach(summary);
  const line = state.lines.find((one) => one.name === state.shown);
  byId("shown-name").textContent = `of ${line.name}, ${line.draws.length} ${line.draws.length === 1 ? "draw" : "draws"}`;
  byId("empty").hidden = Boolean(line.stats);
  byId("result").hidden = !line.stats;
  byId("count-told").textContent = state.count;
  if (line.stats) (state.manifest.kind === "classification" ? paintClasses : paintNumber)(line);
  else byId("draws").replaceChildren();
  fillTable(byId("models"), state.manifest, state.lines, state.shown, (name) => { state.shown = name; answer(); });
}

function paintClasses({ stats, draws }) {
  const { labels } = state.manifest;
  byId("verdict").replaceChildren(html("b", {}, labels[stats.best]), ` with probability ${stats.confidence.toFixed(2)}`);
  byId("distribution").replaceChildren(classBars(labels, stats, draws));
  const parts = ["in the data", "about the model"];
  byId("split").replaceChildren(splitBar(stats.data, stats.model, Math.log(labels.length), "nats", parts));
  byId("draws").className = "plates";
  byId("draws").replaceChildren(...draws.map((draw, at) => drawPlate(labels, draw, at, stats.best)));
}

function paintNumber(line) {
  const { stats, draws } = line, [label] = state.manifest.labels;
  const variances = line.made.slice(0, state.count).map((draw) => draw.variances[0]), means = draws.map((d) => d[0]);
  const interval = `90 % between ${short(stats.low)} and ${short(stats.high)}`;
  byId("verdict").replaceChildren(html("b", {}, short(stats.mean)), ` for ${label}, ${interval}`);
  byId("distribution").replaceChildren(densityPlot(stats, means, variances, label));
  const parts = ["noise in the data", "spread of the models"];
  byId("split").replaceChildren(splitBar(stats.data, stats.model, stats.variance, "variance", parts));
  byId("draws").className = "";
  byId("draws").replaceChildren(drawStrip(means, variances));
}

function describe({ task, models, kind, input_shape: shape, version, labels }) {
  document.title = `${task} · qbayes`;
  byId("crumb").textContent = `qbayes / ${task}`;
  byId("name").textContent = task;
  const method = METHODS[models[0].method] ?? models[0].method, names = models.map((one) => one.name).join(", ");
  const members = models[0].members > 1 ? ` of ${models[0].members} members` : "";
  const varied = models.some((one) => one.members > 1 || one.noise.length > 0);
  const meaning = varied
    ? "Each draw is another network that fits the data; where they disagree, it is the model that does not know."
    : "There is nothing random in it: all draws are the same, and it cannot doubt itself.";
  byId("about").textContent = `${method}${members}, as ${names}. ${meaning}`;
  byId("compare-note").textContent = [
    "The noise of a draw is keyed by the seed: the same seed gives the same draws in Python",
    "(predict(x, draws, seed)) and for every model here. Times are of this browser, on one thread.",
    kind === "regression" && labels.length > 1 ? `Of ${labels.length} targets the first is shown.` : "",
    canCheck() ? "" : "The files were not checked: a browser can do that on https or on its own machine only.",
  ].join(" ");
  byId("foot").textContent = `Made by qbayes ${version}; ONNX Runtime Web under its MIT licence.`;
  if (!isImage({ input_shape: shape })) byId("row-label").textContent = "A row of numbers";
}

function listen() {
  const count = byId("count"), seed = byId("seed");
  count.max = Math.max(100, state.manifest.draws);
  count.value = state.count = state.manifest.draws;
  count.addEventListener("input", () => { state.count = Number(count.value); answer(); });
  seed.addEventListener("change", () => {
    const given = Number(seed.value);
    if (!Number.isSafeInteger(given) || given < 0 || seed.value === "") {
      tell("The seed must be a whole number from 0 to 2⁵³ − 1.");
      return;
    }
    tell(null);
    state.seed = given;
    restart();
  });
  byId("again").addEventListener("click", () => {
    state.seed = crypto.getRandomValues(new Uint32Array(1))[0];
    seed.value = state.seed;
    restart();
  });
}

function themes() {
  const button = byId("theme"), dark = matchMedia("(prefers-color-scheme: dark)");
  let theme = dark.matches ? "dark" : "light";
  const set = () => { document.documentElement.dataset.theme = theme; button.textContent = theme === "dark" ? "Light" : "Dark"; };
  button.addEventListener("click", () => { theme = theme === "dark" ? "light" : "dark"; set(); });
  dark.addEventListener("change", () => { theme = dark.matches ? "dark" : "light"; set(); });
  set();
}

async function start() {
  themes();
  state.manifest = await readManifest();
  for (const entry of state.manifest.models) {
    byId("progress").textContent = `Loading ${entry.name} …`;
    const line = { name: entry.name, entry, model: null, problem: null, made: [], times: [], draws: [], stats: null };
    try {
      line.model = await Model.load(entry, state.manifest);
    } catch (error) {
      line.problem = error.message;
    }
    state.lines.push(line);
  }
  const working = state.lines.find((line) => line.model && line.name !== "float") ?? state.lines.find((line) => line.model);
  const problems = state.lines.filter((line) => line.problem).map((line) => line.problem);
  if (problems.length) tell(problems.join(" "));
  if (!working) throw new Error(problems.join(" "));
  state.shown = working.name;
  describe(state.manifest);
  listen();
  byId("waiting").hidden = true;
  byId("page").hidden = false;
  const inputs = readInputs(state.manifest, (row) => { if (row) tell(null); state.row = row; restart(); }, tell);
  await inputs.start();
  await answer();
}

/** For tests, and for whoever opens the console: the input, and every model's draws and statistics. */
globalThis.qbayesPage = {
  state: () => document.body.dataset.state,
  input: () => state.row && Array.from(state.row),
  answers: () => Object.fromEntries(state.lines.map(({ name, draws, stats }) => [name, { draws, stats }])),
};

start().catch((error) => {
  byId("waiting").hidden = true;
  document.body.dataset.state = "failed";
  tell(error.message);
});
