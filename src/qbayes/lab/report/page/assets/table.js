/* The table of runs: columns as they came, sorted and filtered by an index of rows, a few lines at a time. */

const PAGE = 25;
const TERM = /^(.+?)(<=|>=|<|>|=)(.+)$/;

/** A number as it stands in the page's data. */
const asNumber = (value) => (typeof value === "string" ? NOT_FINITE[value] : value);

/** Where a value stands whichever way a column is sorted: numbers, then what is not one, then what is missing. */
const rankOf = (value) => (value === null ? 2 : Number.isNaN(value) ? 1 : 0);

/** All runs, of which a page is in the document. */
class RunTable {
  constructor(place, data) {
    this.columns = data.columns.map((column) => (column.words ? column : { ...column, values: column.values.map(asNumber) }));
    this.rows = data.rows;
    this.all = Uint32Array.from({ length: data.rows }, (_, k) => k);
    this.order = this.all;
    this.sorted = null;
    this.page = 0;
    this.wide = false;
    this.build(place);
    this.update();
  }

  build(place) {
    this.filter = element("input", { type: "search", placeholder: "mcd W8A7 ece<0.05", "aria-label": "Filter runs", spellcheck: "false" });
    this.count = element("span", { class: "count", role: "status" });
    this.back = element("button", { type: "button" }, "Previous");
    this.next = element("button", { type: "button" }, "Next");
    this.more = element("button", { type: "button", "aria-pressed": "false" }, "All columns");
    this.head = element("thead", {});
    this.body = element("tbody", {});
    const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Results, one line a run" },
      element("table", {}, this.head, this.body));
    place.append(element("div", { class: "tools" }, this.filter, this.more, this.back, this.next, this.count), scroll);
    let waiting = 0;
    this.filter.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => { this.page = 0; this.update(); }, 120); });
    this.back.addEventListener("click", () => { this.page -= 1; this.draw(); });
    this.next.addEventListener("click", () => { this.page += 1; this.draw(); });
    this.more.addEventListener("click", () => {
      this.wide = !this.wide;
      this.more.setAttribute("aria-pressed", String(this.wide));
      this.draw();
    });
  }

  /** A cell: a number, or the word that its code stands for. */
  value(column, row) {
    const found = column.values[row];
    return column.words && found !== null ? column.words[found] : found;
  }

  /** Filter, then sort: ties keep the order of the runs. */
  update() {
    const tests = this.filter.value.trim().split(/\s+/).filter(Boolean).map((term) => this.test(term));
    const kept = this.all.filter((row) => tests.every((test) => test(row)));
    if (this.sorted) {
      const { column, down } = this.sorted;
      const { values } = column; // words are sorted, so that their codes are in order
      const sign = down ? -1 : 1;
      // two infinities of one sign differ by NaN, which is as good as 0 here.
      kept.sort((a, b) => rankOf(values[a]) - rankOf(values[b]) || sign * (values[a] - values[b]) || a - b);
    }
    this.order = kept;
    this.draw();
  }

  /** A term is a comparison with a column (ece<0.05, method=mcd), or a word that a text column contains. */
  test(term) {
    const [, name, sign, value] = TERM.exec(term) ?? [];
    const column = name && this.columns.find((one) => [one.name, one.label].some((word) => word.toLowerCase() === name.toLowerCase()));
    if (column) return this.comparison(column, sign, value);
    const word = term.toLowerCase();
    const hits = this.columns.filter((one) => one.words).map((one) => [one.values, one.words.map((text) => text.toLowerCase().includes(word))]);
    return (row) => hits.some(([codes, hit]) => codes[row] !== null && hit[codes[row]]);
  }

  comparison(column, sign, text) {
    const share = text.endsWith("%") ? 100 : 1;
    const plain = text.toLowerCase().replace("−", "-").replace("∞", "inf");
    const number = Object.hasOwn(NOT_FINITE, plain) ? NOT_FINITE[plain] : parseFloat(plain) / share;
    const compare = {
      "<": (value) => value < number,
      ">": (value) => value > number,
      "<=": (value) => value <= number,
      ">=": (value) => value >= number,
      "=": (value) => (column.words ? value.toLowerCase() === text.toLowerCase() : value === number || (plain === "nan" && Number.isNaN(value))),
    }[sign];
    return (row) => {
      const value = this.value(column, row);
      return value !== null && compare(value);
    };
  }

  draw() {
    const shown = this.columns.filter((column) => this.wide || column.main);
    const pages = Math.max(1, Math.ceil(this.order.length / PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const first = this.page * PAGE;
    const rows = [...this.order.slice(first, first + PAGE)];
    this.head.replaceChildren(element("tr", {}, ...shown.map((column) => this.header(column))));
    this.body.replaceChildren(...rows.map((row) => element("tr", {}, ...shown.map((column) => this.cell(column, row)))));
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page >= pages - 1;
    const range = rows.length ? `${first + 1}–${first + rows.length} of ` : "";
    const of = this.order.length === this.rows ? "" : ` (of ${this.rows})`;
    this.count.textContent = `${range}${this.order.length} run${this.order.length === 1 ? "" : "s"}${of}`;
  }

  header(column) {
    const button = element("button", { type: "button" }, column.label);
    button.addEventListener("click", () => {
      const down = this.sorted?.column === column ? !this.sorted.down : false;
      this.sorted = { column, down };
      this.page = 0;
      this.update();
      this.head.querySelector("[aria-sort] button")?.focus();
    });
    const cell = element("th", { scope: "col", class: column.words ? "" : "n" }, button);
    if (this.sorted?.column === column) cell.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
    return cell;
  }

  cell(column, row) {
    const value = this.value(column, row);
    if (column.words) return element("td", {}, value ?? "");
    const words = column.percent && Number.isFinite(value) ? `${(100 * value).toFixed(2)} %` : plainNumber(value);
    return element("td", { class: "n" }, words);
  }
}

function startTable(data) {
  const place = document.getElementById("table");
  if (data.rows) new RunTable(place, data);
  else place.append(element("p", { class: "note" }, "No run is done yet."));
}
