// The library's noise: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011), keyed by seed, draw, site, row.
// The same seed gives the same bits here and in Python, so that answers can be compared draw by draw.

const WORD = 0x100000000;

/** The upper 32 bits of a product of two 32-bit words. */
function high(a, b) {
  const a0 = a & 0xffff, a1 = a >>> 16, b0 = b & 0xffff, b1 = b >>> 16;
  const middle = a1 * b0 + ((a0 * b0) >>> 16);
  const other = a0 * b1 + (middle & 0xffff);
  return (a1 * b1 + Math.floor(middle / 65536) + Math.floor(other / 65536)) >>> 0;
}

/** `count` random words at (site, draw, row), elements in order. */
export function words(seed, site, draw, row, count) {
  const out = new Uint32Array(Math.ceil(count / 4) * 4);
  const first = seed % WORD >>> 0, second = Math.floor(seed / WORD) >>> 0;
  for (let quad = 0; quad * 4 < count; quad++) {
    let c0 = site >>> 0, c1 = draw >>> 0, c2 = row >>> 0, c3 = quad, k0 = first, k1 = second;
    for (let round = 0; round < 10; round++) {
      const h0 = high(c0, 0xd2511f53), l0 = Math.imul(c0, 0xd2511f53) >>> 0;
      const h1 = high(c2, 0xcd9e8d57), l1 = Math.imul(c2, 0xcd9e8d57) >>> 0;
      c0 = (h1 ^ c1 ^ k0) >>> 0;
      c1 = l1;
      c2 = (h0 ^ c3 ^ k1) >>> 0;
      c3 = l0;
      k0 = (k0 + 0x9e3779b9) >>> 0;
      k1 = (k1 + 0xbb67ae85) >>> 0;
    }
    out.set([c0, c1, c2, c3], quad * 4);
  }
  return out.subarray(0, count);
}

/** 1 where an element is kept: the upper 16 bits of its word reach the threshold. */
export function masks(seed, site, draw, row, count, threshold) {
  return Uint8Array.from(words(seed, site, draw, row, count), (word) => ((word >>> 16) >= threshold ? 1 : 0));
}

/** Codes of ε: the table is odd, its upper half is given. */
export function codes(seed, site, draw, count, upper) {
  const half = upper.length, shift = 32 - Math.log2(2 * half);
  return Int8Array.from(words(seed, site, draw, 0, count), (word) => {
    const index = word >>> shift;
    return index >= half ? upper[index - half] : -upper[half - 1 - index];
  });
}

/** ε of the float network: Φ⁻¹ of the upper 23 bits. */
export function gaussians(seed, site, draw, count) {
  return Float32Array.from(words(seed, site, draw, 0, count), (word) => normal(((word >>> 9) + 0.5) / 0x800000));
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
const polynomial = (parts, x) => parts.reduceRight((sum, part) => sum * x + part, 0);
const ratio = ([top, bottom], x) => polynomial(top, x) / polynomial(bottom, x);

/** Φ⁻¹(p) by Wichura's AS 241 (Applied Statistics 37, 1988), for p between 1e-11 and 1 − 1e-11. */
export function normal(p) {
  const q = p - 0.5;
  if (Math.abs(q) <= 0.425) return q * ratio(CENTRE, 0.180625 - q * q);
  const r = Math.sqrt(-Math.log(q < 0 ? p : 1 - p));
  return Math.sign(q) * ratio(TAIL, r - 1.6);
}
