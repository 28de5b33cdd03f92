// The library's noise: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011), keyed by seed, draw, site, row.
// The same seed gives the same bits here and in Python, so that answers can be compared draw by draw.

const WORD = 0x100000000;
const ROUNDS = 10;

// Loops over typed arrays and 32-bit integers only: a Gaussian network draws a million numbers a draw.

/** The upper 32 bits of a · b, of which b comes in halves; no sum of these leaves 32 bits. */
function high(a, b0, b1) {
  const a0 = a & 0xffff, a1 = a >>> 16;
  const middle = (Math.imul(a1, b0) + (Math.imul(a0, b0) >>> 16)) >>> 0;
  const other = (Math.imul(a0, b1) + (middle & 0xffff)) >>> 0;
  return (Math.imul(a1, b1) + (middle >>> 16) + (other >>> 16)) | 0;
}

/** `count` random words at (site, draw, row), elements in order. */
export function words(seed, site, draw, row, count) {
  const out = new Uint32Array(Math.ceil(count / 4) * 4);
  const first = (seed % WORD) | 0, second = Math.floor(seed / WORD) | 0;
  for (let at = 0; at < count; at += 4) {
    let c0 = site | 0, c1 = draw | 0, c2 = row | 0, c3 = at >>> 2, k0 = first, k1 = second;
    for (let round = 0; round < ROUNDS; round++) {
      const h0 = high(c0, 0x1f53, 0xd251), l0 = Math.imul(c0, 0xd2511f53);
      const h1 = high(c2, 0x8d57, 0xcd9e), l1 = Math.imul(c2, 0xcd9e8d57);
      c0 = h1 ^ c1 ^ k0;
      c1 = l1;
      c2 = h0 ^ c3 ^ k1;
      c3 = l0;
      k0 = (k0 + 0x9e3779b9) | 0;
      k1 = (k1 + 0xbb67ae85) | 0;
    }
    out[at] = c0;
    out[at + 1] = c1;
    out[at + 2] = c2;
    out[at + 3] = c3;
  }
  return out.subarray(0, count);
}

/** 1 where an element is kept: the upper 16 bits of its word reach the threshold. */
export function masks(seed, site, draw, row, count, threshold) {
  const drawn = words(seed, site, draw, row, count), out = new Uint8Array(count);
  for (let at = 0; at < count; at++) out[at] = (drawn[at] >>> 16) >= threshold ? 1 : 0;
  return out;
}

/** Codes of ε: the table is odd, its upper half is given. */
export function codes(seed, site, draw, count, upper) {
  const half = upper.length, shift = 32 - Math.log2(2 * half);
  const table = Int8Array.from({ length: 2 * half }, (_, at) => (at >= half ? upper[at - half] : -upper[half - 1 - at]));
  const drawn = words(seed, site, draw, 0, count), out = new Int8Array(count);
  for (let at = 0; at < count; at++) out[at] = table[drawn[at] >>> shift];
  return out;
}

/** ε of the float network: Φ⁻¹ of the upper 23 bits. */
export function gaussians(seed, site, draw, count) {
  const drawn = words(seed, site, draw, 0, count), out = new Float32Array(count);
  for (let at = 0; at < count; at++) out[at] = normal(((drawn[at] >>> 9) + 0.5) / 0x800000);
  return out;
}

const CENTRE = [
  [3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
    45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727],
  [1, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077, 21213.794301586595867,
    39307.895800092710610, 28729.085735721942674, 5226.4952788528545610],
];
const TAIL = [
  [1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
    1.27045825245236838258, 0.241780725177450611770, 0.0227238449892691845833, 0.000774545014278341407640],
  [1, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550, 0.148103976427480074590,
    0.0151986665636164571966, 0.000547593808499534494600, 1.05075007164441684324e-9],
];

/** A quotient of two polynomials of degree 7. */
function ratio(parts, x) {
  const [top, bottom] = parts;
  let above = top[7], below = bottom[7];
  for (let at = 6; at >= 0; at--) {
    above = above * x + top[at];
    below = below * x + bottom[at];
  }
  return above / below;
}

/** Φ⁻¹(p) by Wichura's AS 241 (Applied Statistics 37, 1988), for p between 1e-11 and 1 − 1e-11. */
export function normal(p) {
  const q = p - 0.5;
  if (Math.abs(q) <= 0.425) return q * ratio(CENTRE, 0.180625 - q * q);
  const r = Math.sqrt(-Math.log(q < 0 ? p : 1 - p));
  return Math.sign(q) * ratio(TAIL, r - 1.6);
}
