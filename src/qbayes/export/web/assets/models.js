// The models in ONNX Runtime Web: fetched, checked against the manifest, and run one draw of each member at a time.

import * as ort from "./runtime/ort.wasm.bundle.min.js";
import { codes, gaussians, masks } from "./noise.js";

ort.env.logLevel = "error";
// more threads need a server that isolates origins; one serves everywhere.
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = { wasm: new URL("./runtime/ort-wasm-simd-threaded.wasm", import.meta.url).href };

async function fetched(path) {
  let answer;
  try {
    answer = await fetch(path);
  } catch {
    throw new Error(`${path} cannot be fetched: is the server still running?`);
  }
  if (!answer.ok) {
    throw new Error(`${path} is not on the server (${answer.status}): export the page again, and copy the whole folder.`);
  }
  return answer;
}

export async function readManifest() {
  const answer = await fetched("manifest.json");
  let manifest;
  try {
    manifest = await answer.json();
  } catch {
    throw new Error("manifest.json is damaged: export the page again.");
  }
  if (manifest.format !== 1) throw new Error("manifest.json is of another version than this page: export the page again.");
  return manifest;
}

async function sha256(buffer) {
  const digest = await crypto.subtle.digest("SHA-256", buffer);
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Whether files can be checked here: browsers hash on https and on this machine only. */
export const canCheck = () => Boolean(globalThis.crypto?.subtle);

/** One model of the page, ready to run. */
export class Model {
  constructor(entry, manifest, session) {
    Object.assign(this, { entry, manifest, session, name: entry.name });
  }

  static async load(entry, manifest) {
    const buffer = await (await fetched(entry.file)).arrayBuffer();
    const whole = buffer.byteLength === entry.bytes && (!canCheck() || (await sha256(buffer)) === entry.sha256);
    if (!whole) {
      throw new Error(`${entry.file} is damaged: it is not the file that was exported. Export the page again, or copy it anew.`);
    }
    let session;
    try {
      session = await ort.InferenceSession.create(buffer, { executionProviders: ["wasm"], logSeverityLevel: 3 });
    } catch (error) {
      throw new Error(`${entry.file} cannot be run here: ${String(error.message ?? error).split("\n")[0].slice(0, 200)}`);
    }
    return new Model(entry, manifest, session);
  }

  /** The noise of draws `first`, `first + 1`, … (one of each member) for row 0, as the library draws it. */
  noise(seed, first) {
    const draws = Array.from({ length: this.entry.members }, (_, at) => first + at);
    return Object.fromEntries(this.entry.noise.map((site) => {
      const count = site.shape.reduce((a, b) => a * b, 1);
      const shape = site.kind === "mask" ? [draws.length, 1, ...site.shape] : [draws.length, ...site.shape];
      const parts = draws.map((draw) => {
        if (site.kind === "mask") return masks(seed, site.site, draw, 0, count, site.threshold);
        if (site.kind === "gaussian") return gaussians(seed, site.site, draw, count);
        return codes(seed, site.site, draw, count, this.manifest.epsilon_tables[site.bits]);
      });
      const all = new parts[0].constructor(count * parts.length);
      parts.forEach((part, at) => all.set(part, at * count));
      const type = { mask: "uint8", gaussian: "float32", codes: "int8" }[site.kind];
      return [site.name, new ort.Tensor(type, all, shape)];
    }));
  }

  /** The next draws, one of each member: `[{answer, variances}]`, and the milliseconds that the model took. */
  async draws(row, seed, first) {
    const feeds = { x: new ort.Tensor("float32", row, [1, ...this.manifest.input_shape]), ...this.noise(seed, first) };
    const begin = performance.now();
    const results = await this.session.run(feeds);
    const milliseconds = performance.now() - begin;
    const width = results.draws.size / this.entry.members;
    const part = (tensor, at) => tensor && Array.from(tensor.data.subarray(at * width, (at + 1) * width));
    const found = Array.from({ length: this.entry.members }, (_, at) => (
      { answer: part(results.draws, at), variances: part(results.draw_variances, at) }));
    Object.values(results).forEach((tensor) => tensor.dispose());
    return { found, milliseconds };
  }
}
