// Where inputs come from: the pad, image files, test data, and rows of numbers. Each gives one raw row.

import { byId, html } from "./elements.js";
import { framed, fromFile, resampled, show, toRaw } from "./image.js";
import { parseRow, short } from "./rows.js";
import { Sketch } from "./sketch.js";

const SMALL_SIDE = 16;

/** Whether the page can show an input as a picture. */
export const isImage = ({ input_shape: shape }) => shape.length === 3 && (shape[0] === 1 || shape[0] === 3);

/** Set up the part of the page that reads inputs; `give(row)` takes each, null where there is none. */
export function readInputs(manifest, give, fail) {
  const checked = (read) => async (...given) => {
    try {
      give(await read(...given));
    } catch (error) {
      fail(error.message);
    }
  };
  const image = isImage(manifest) ? imageInput(manifest, give, checked) : null;
  const row = image ? null : rowInput(manifest, checked);
  offerExamples(manifest, (example) => {
    const raw = Float32Array.from(example.row);
    image?.show(raw);
    row?.show(raw);
    give(raw);
  });
  return { start: () => row?.start() };
}

function imageInput(manifest, give, checked) {
  const { input_shape: shape, range } = manifest, [channels, rows, columns] = shape;
  byId("image-input").hidden = false;
  byId("seen-size").textContent = `${columns} × ${rows}`;
  const display = (raw) => { show(byId("seen"), raw, shape, range); byId("hint").hidden = true; };
  const small = Math.max(rows, columns) <= SMALL_SIDE;
  const coloured = channels === 3;
  const sketch = new Sketch(byId("pad"), coloured ? 0 : small ? 30 : 22, () => drawn());
  const drawn = () => {
    const { width, height } = sketch.canvas, ink = sketch.ink();
    // digits of few pixels fill their frame, those of MNIST 20 of 28.
    const box = byId("centred").checked ? framed(ink, width, height, small ? 1 : 20 / 28) : { x: 0, y: 0, width, height };
    if (!box) return;
    const raw = toRaw([resampled(ink, width, height, box, columns, rows)], range);
    display(raw);
    give(raw);
  };
  if (coloured) {
    byId("pad").classList.add("still");
    byId("pad").removeAttribute("tabindex");
    byId("pad").setAttribute("aria-label", "The image");
    byId("centred-label").hidden = true;
    byId("hint").textContent = "Drop an image here";
  }
  let last = null;
  const fromPicture = async (file) => {
    const raw = toRaw(await fromFile(file, shape, byId("inverted").checked), range);
    last = file;
    display(raw);
    sketch.show(byId("seen"));
    return raw;
  };
  const read = checked(fromPicture);
  const blank = () => {
    sketch.clear();
    last = null;
    show(byId("seen"), new Float32Array(channels * rows * columns).fill(range[0]), shape, range);
    byId("hint").hidden = false;
    give(null);
  };
  byId("clear").addEventListener("click", blank);
  byId("centred").addEventListener("change", () => { if (!sketch.empty) drawn(); });
  byId("inverted").addEventListener("change", () => { if (last) read(last); });
  byId("choose").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", ({ target }) => {
    if (target.files[0]) read(target.files[0]);
    target.value = "";
  });
  takeDrops(read);
  blank();
  return { show: (raw) => { last = null; display(raw); sketch.show(byId("seen")); } };
}

/** Files may be dropped anywhere, or pasted: a browser would leave the page to show them. */
function takeDrops(read) {
  document.addEventListener("dragover", (event) => { event.preventDefault(); byId("drop").classList.add("over"); });
  document.addEventListener("dragleave", () => byId("drop").classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    byId("drop").classList.remove("over");
    if (event.dataTransfer.files[0]) read(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => {
    const [file] = event.clipboardData?.files ?? [];
    if (file) read(file);
  });
}

function rowInput(manifest, checked) {
  const count = manifest.input_shape.reduce((a, b) => a * b, 1), field = byId("row");
  byId("row-input").hidden = false;
  byId("row-note").textContent = `${count} numbers in the units of the training data, separated by commas, tabs or spaces.`;
  const read = checked(() => parseRow(field.value, count));
  byId("answer-row").addEventListener("click", read);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); read(); }
  });
  field.addEventListener("paste", () => setTimeout(read));
  const put = (raw) => { field.value = Array.from(raw, (v) => short(v, 6)).join(", "); };
  const centre = Float32Array.from({ length: count }, (_, at) => manifest.centre[Math.floor(at / (count / manifest.centre.length))]);
  const start = () => { put(centre); return read(); };
  byId("mean-row").addEventListener("click", start);
  return { show: put, start };
}

function offerExamples({ examples, input_shape: shape, range, ...manifest }, choose) {
  if (!examples.length) return;
  byId("examples").hidden = false;
  const pictures = isImage({ input_shape: shape });
  byId("example-list").append(...examples.map((example, at) => {
    const name = example.answer || `row ${at + 1}`;
    const told = manifest.kind === "regression" ? `Test row ${at + 1}, true answer ${name}` : `Test input ${at + 1}: ${name}`;
    const button = html("button", { type: "button", "aria-label": told, title: told, onclick: () => choose(example) });
    if (pictures) {
      const canvas = html("canvas", { "aria-hidden": "true" });
      show(canvas, example.row, shape, range);
      button.append(canvas);
    }
    button.append(html("span", {}, manifest.kind === "regression" ? `true: ${name}` : name));
    return button;
  }));
}
