// A row of numbers as people paste it: separated by commas, tabs, semicolons or spaces.

/** The numbers, or an error that says which one is wrong. */
export function parseRow(text, count) {
  const parts = text.trim().split(/[\s,;]+/).filter((part) => part !== "");
  if (parts.length !== count) {
    throw new Error(`A row must have ${count} numbers; this one has ${parts.length}.`);
  }
  return Float32Array.from(parts, (part, at) => {
    const number = Number(part);
    if (!Number.isFinite(Math.fround(number))) {
      throw new Error(`Number ${at + 1} of the row, “${part.slice(0, 20)}”, is no finite number.`);
    }
    return number;
  });
}

/** A number in few characters. */
export function short(number, digits = 4) {
  return Number.isInteger(number) ? String(number) : String(Number(number.toPrecision(digits)));
}
