// Pictures as the network sees them: few pixels, each the mean of what it covers, in the raw units of the data.

/** A window of an image on a grid of rows × columns: the mean over the area of each cell, outside is 0. */
export function resampled(source, width, height, box, columns, rows) {
  const out = new Float32Array(columns * rows);
  const dx = box.width / columns, dy = box.height / rows;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const left = box.x + column * dx, top = box.y + row * dy;
      out[row * columns + column] = areaMean(source, width, height, left, top, left + dx, top + dy);
    }
  }
  return out;
}

function areaMean(source, width, height, left, top, right, bottom) {
  let total = 0;
  for (let y = Math.max(0, Math.floor(top)); y < Math.min(height, Math.ceil(bottom)); y++) {
    const tall = Math.min(y + 1, bottom) - Math.max(y, top);
    for (let x = Math.max(0, Math.floor(left)); x < Math.min(width, Math.ceil(right)); x++) {
      total += source[y * width + x] * tall * (Math.min(x + 1, right) - Math.max(x, left));
    }
  }
  return total / ((right - left) * (bottom - top));
}

/** The square window that shows a drawing as MNIST does: scaled to `fill` of the side, its centre of mass in the middle. */
export function framed(ink, width, height, fill) {
  let left = width, right = -1, top = height, bottom = -1, mass = 0, mx = 0, my = 0;
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const value = ink[y * width + x];
      if (value <= 0.02) continue;
      left = Math.min(left, x); right = Math.max(right, x);
      top = Math.min(top, y); bottom = Math.max(bottom, y);
      mass += value; mx += value * (x + 0.5); my += value * (y + 0.5);
    }
  }
  if (mass === 0) return null;
  const side = Math.max(right - left + 1, bottom - top + 1) / fill;
  // where the drawing fills the frame, its box is centred: by its mass a part would be cut off.
  const centre = fill < 1 ? [mx / mass, my / mass] : [(left + right + 1) / 2, (top + bottom + 1) / 2];
  return { x: centre[0] - side / 2, y: centre[1] - side / 2, width: side, height: side };
}

/** The channels of an image file, each from 0 to 1, cut to the middle window of the wanted shape. */
export async function fromFile(file, [channels, rows, columns], inverted) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`“${file.name.slice(0, 60)}” cannot be read as an image: give a PNG, JPEG, GIF or WebP file.`);
  }
  const { width, height } = bitmap;
  const canvas = new OffscreenCanvas(width, height);
  const pen = canvas.getContext("2d");
  pen.drawImage(bitmap, 0, 0);
  const pixels = pen.getImageData(0, 0, width, height).data;
  const scale = Math.min(width / columns, height / rows);
  const box = { width: columns * scale, height: rows * scale, x: (width - columns * scale) / 2, y: (height - rows * scale) / 2 };
  const planes = channels === 1 ? [luma(pixels)] : [0, 1, 2].map((c) => plane(pixels, c));
  return planes.map((one) => resampled(one, width, height, box, columns, rows).map((v) => (inverted ? 1 - v : v)));
}

/** One channel; what is transparent shows the black behind it. */
function plane(pixels, channel) {
  return Float32Array.from({ length: pixels.length / 4 }, (_, at) => (pixels[4 * at + channel] * pixels[4 * at + 3]) / 65025);
}

/** Brightness of sRGB by ITU-R BT.601, as image libraries turn colours to grey. */
function luma(pixels) {
  const [red, green, blue] = [0, 1, 2].map((channel) => plane(pixels, channel));
  return red.map((r, at) => 0.299 * r + 0.587 * green[at] + 0.114 * blue[at]);
}

/** Values from 0 to 1 in raw units, all channels in one row. */
export function toRaw(planes, [low, high]) {
  return Float32Array.from(planes.flatMap((one) => Array.from(one, (v) => low + v * (high - low))));
}

/** Show a raw row on a canvas, a pixel each. */
export function show(canvas, raw, [channels, rows, columns], [low, high]) {
  canvas.width = columns;
  canvas.height = rows;
  const pen = canvas.getContext("2d"), image = pen.createImageData(columns, rows), area = rows * columns;
  for (let at = 0; at < area; at++) {
    for (let c = 0; c < 3; c++) {
      image.data[4 * at + c] = 255 * ((raw[(channels === 1 ? 0 : c) * area + at] - low) / (high - low));
    }
    image.data[4 * at + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
}
