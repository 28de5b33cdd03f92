// The drawing area: pen by mouse, finger or keyboard, and what it drew as ink from 0 to 1. It also shows pictures.

export class Sketch {
  /** `pen` is its width; without one, pictures can be shown and nothing drawn. */
  constructor(canvas, pen, changed) {
    Object.assign(this, { canvas, pen, changed, at: [canvas.width / 2, canvas.height / 2], down: false, empty: true });
    this.context = canvas.getContext("2d", { willReadFrequently: true });
    this.clear();
    if (!pen) return;
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { this.down = false; });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  clear() {
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.empty = true;
    this.shows = false;
  }

  /** A picture of few pixels, enlarged; the next line begins on an empty area. */
  show(picture) {
    this.clear();
    this.context.imageSmoothingEnabled = false;
    const scale = Math.min(this.canvas.width / picture.width, this.canvas.height / picture.height);
    const [width, height] = [picture.width * scale, picture.height * scale];
    this.context.drawImage(picture, (this.canvas.width - width) / 2, (this.canvas.height - height) / 2, width, height);
    this.shows = true;
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.canvas.width;
    return [x, ((event.clientY - box.top) / box.height) * this.canvas.height];
  }

  begin(event) {
    event.preventDefault();
    this.canvas.focus();
    this.canvas.setPointerCapture(event.pointerId);
    this.down = true;
    this.at = this.place(event);
    this.line(this.at);
  }

  drag(event) {
    if (!this.down) return;
    const passed = event.getCoalescedEvents?.() ?? [];
    for (const step of passed.length ? passed : [event]) this.line(this.place(step));
  }

  line(to) {
    if (this.shows) this.clear();
    Object.assign(this.context, { strokeStyle: "#fff", lineWidth: this.pen, lineCap: "round", lineJoin: "round" });
    this.context.beginPath();
    this.context.moveTo(...this.at);
    this.context.lineTo(to[0], to[1] + 0.01);
    this.context.stroke();
    this.at = to;
    this.empty = false;
    this.changed();
  }

  key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === " ") {
      event.preventDefault();
      this.down = !this.down;
      if (this.down) this.line(this.at);
    }
    if (!(event.key in steps)) return;
    event.preventDefault();
    const to = this.at.map((v, axis) => Math.min(this.canvas.width, Math.max(0, v + 10 * steps[event.key][axis])));
    if (this.down) this.line(to); else this.at = to;
  }

  /** The drawing, one number a pixel. */
  ink() {
    const { width, height } = this.canvas, pixels = this.context.getImageData(0, 0, width, height).data;
    return Float32Array.from({ length: width * height }, (_, at) => pixels[4 * at] / 255);
  }
}
