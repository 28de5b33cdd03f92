"use strict";
/* Scales and ticks: from numbers to pixels, and the round numbers that stand beside an axis. */

/** Round numbers that divide [low, high] into about `count` parts: 1, 2 or 5 times a power of ten. */
function niceTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) ticks.push(k * step);
  return ticks;
}

/** Powers of ten between the ends, with 2 and 5 times them where there is room. */
function logTicks(low, high, room) {
  const all = (factors) => {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)) - 1; 10 ** power <= high; power += 1) {
      for (const factor of factors) {
        const tick = factor * 10 ** power;
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      }
    }
    return ticks;
  };
  return [[1, 2, 5], [1, 3], [1]].map(all).find((ticks) => ticks.length <= room) ?? all([1]).filter((_, k) => k % 2 === 0);
}

/** A short number: enough digits to tell ticks apart, a true minus sign, k and M for large ones. */
function shortNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size >= 1e15) text = value.toExponential(1);
  else if (size >= 1e9) text = `${trimmed(value / 1e9)}G`;
  else if (size >= 1e6) text = `${trimmed(value / 1e6)}M`;
  else if (size >= 1e4) text = `${trimmed(value / 1e3)}k`;
  else if (size < 1e-4) text = value.toExponential(0);
  else text = trimmed(value);
  return text.replace("-", "−");
}

function trimmed(value) {
  return String(Number(value.toPrecision(5)));
}

/** JSON has no such numbers: these words stand for them. */
const NOT_FINITE = { inf: Infinity, "-inf": -Infinity, nan: NaN };

/** A number for people who read values: four significant digits. */
function plainNumber(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(2).replace("-", "−");
  const digits = Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(4));
  return String(digits).replace("-", "−");
}

/** How an axis maps numbers: linear, logarithmic, or by the square root. */
const MAPS = {
  linear: (value) => value,
  log: (value) => Math.log10(value),
  root: (value) => Math.sqrt(Math.max(0, value)),
};

/** The scale from [low, high] to the pixels [from, to]; `ticks` are its round numbers. */
function makeScale(kind, low, high, from, to, room) {
  const map = MAPS[kind];
  const [start, end] = [map(low), map(high)];
  const scale = (value) => from + ((map(value) - start) / (end - start || 1)) * (to - from);
  scale.ticks = kind === "log" ? logTicks(low, high, room) : niceTicks(low, high, room);
  return scale;
}

/** Ends of an axis for the values: some air, and zero where it is near. */
function axisEnds(values, kind) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (kind === "log") return [low / 1.25, high * 1.25];
  if (kind === "root") return [0, high * 1.08 || 1];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const air = (high - low) * 0.06;
  if (low >= 0 && low < 0.45 * high) return [0, high + air];
  low -= air;
  high += air;
  return [low, high];
}
