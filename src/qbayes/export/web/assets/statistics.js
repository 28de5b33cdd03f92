// What the draws say together, as the library's Predictive defines it; entropies in nats.

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
export const mean = (numbers) => sum(numbers) / numbers.length;

/** −Σ p ln p. */
export function entropy(probabilities) {
  return sum(probabilities.map((p) => (p > 0 ? -p * Math.log(p) : 0)));
}

/** Of class probabilities, one list a draw. */
export function classification(draws) {
  const average = draws[0].map((_, at) => mean(draws.map((draw) => draw[at])));
  const total = entropy(average), data = mean(draws.map(entropy));
  const best = average.indexOf(Math.max(...average));
  // what rounding leaves of equal draws is no doubt.
  const model = total - data > 1e-7 * (1 + Math.abs(total)) ? total - data : 0;
  return { mean: average, best, confidence: average[best], entropy: total, data: total - model, model };
}

/** Of one target of a regression: each draw a Gaussian, the prediction their mixture. */
export function regression(means, variances) {
  const centre = mean(means), data = mean(variances);
  const squares = sum(means.map((m) => (m - centre) ** 2));
  const model = means.length > 1 ? squares / (means.length - 1) : 0;
  const low = quantile(0.05, means, variances), high = quantile(0.95, means, variances);
  return { mean: centre, variance: data + model, data, model, low, high };
}

/** Φ((y − μ)/σ), averaged over the draws. */
function cdf(y, means, variances) {
  return mean(means.map((m, at) => 0.5 * erfc(-(y - m) / Math.sqrt(2 * variances[at]))));
}

/** Where the mixture's cdf reaches q, by halving. */
export function quantile(q, means, variances) {
  const reach = means.map((_, at) => 9 * Math.sqrt(variances[at]));
  let low = Math.min(...means.map((m, at) => m - reach[at])), high = Math.max(...means.map((m, at) => m + reach[at]));
  for (let step = 0; step < 60; step++) {
    const middle = (low + high) / 2;
    if (cdf(middle, means, variances) < q) low = middle; else high = middle;
  }
  return (low + high) / 2;
}

/** The density of each draw at y. */
export const density = (y, m, variance) => Math.exp((-0.5 * (y - m) ** 2) / variance) / Math.sqrt(2 * Math.PI * variance);

/** 2/√π ∫ₓ^∞ e^(−t²) dt: a series near 0, a continued fraction (Lentz) beyond. */
export function erfc(x) {
  const z = Math.abs(x);
  if (z > 6) return x > 0 ? 0 : 2;
  let value;
  if (z < 2) {
    let term = z, series = z;
    for (let n = 1; Math.abs(term) > 1e-17; n++) {
      term *= (-z * z) / n;
      series += term / (2 * n + 1);
    }
    value = 1 - (2 / Math.sqrt(Math.PI)) * series;
  } else {
    let fraction = 0;
    for (let n = 60; n > 0; n--) fraction = n / 2 / (z + fraction);
    value = Math.exp(-z * z) / Math.sqrt(Math.PI) / (z + fraction);
  }
  return x >= 0 ? value : 2 - value;
}
