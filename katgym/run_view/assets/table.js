// A list with a filter: many rows, of which those that are looked at are drawn.

const FIRST_ROWS = 14, MORE_ROWS = 60;
const COMPARISON = /^(\w+)(<=|>=|<|>|=|:)(.+)$/;
const COMPARE = {
  "<": (one, other) => one < other, ">": (one, other) => one > other, "<=": (one, other) => one <= other,
  ">=": (one, other) => one >= other, "=": (one, other) => one === other, ":": (one, other) => one === other,
};

// Returns a test of rows: words in `row.text`, and comparisons such as turns>10, errors>0, env:Math.
function matcher(query) {
  const tests = query.trim().split(/\s+/).filter(Boolean).map((word) => {
    const [, name, sign, value] = COMPARISON.exec(word) || [];
    const wanted = Number(value);
    return (row) => {
      const own = name && row[name];
      if (typeof own === "number" && !Number.isNaN(wanted)) return COMPARE[sign](own, wanted);
      if (typeof own === "string" && (sign === ":" || sign === "=")) return own.toLowerCase().includes(value.toLowerCase());
      if (name && name in row) return false;
      return row.text.includes(word.toLowerCase());
    };
  });
  return (row) => tests.every((test) => test(row));
}

// columns: {title, name: of the row's value that sorts it, isText, css, cell(row)}; href(row) leads on.
class ListTable {
  constructor({label, noun, columns, href, onDraw}) {
    Object.assign(this, {label, noun, columns, href, onDraw, rows: [], shown: [], num: 0, at: -1});
    this.body = make("tbody", {});
    this.status = make("p", {class: "status", role: "status"});
    const heads = columns.map((column) => make("th", {scope: "col", class: column.css},
      column.name ? make("button", {type: "button", onclick: () => this.sort(column)}, column.title) : column.title));
    this.heads = heads;
    this.more = make("button", {type: "button", class: "more", onclick: () => this.draw(MORE_ROWS)});
    this.element = make("div", {}, this.status,
      make("div", {class: "scroll"}, make("table", {class: "list", "aria-label": label}, make("thead", {}, make("tr", {}, heads)), this.body)),
      this.more);
    new IntersectionObserver(([seen]) => {
      if (seen.isIntersecting && this.num < this.shown.length) this.draw(MORE_ROWS);
    }).observe(this.more);
  }

  set(rows, test) {
    this.rows = rows;
    this.filter(test);
  }

  filter(test) {
    this.test = test || this.test;
    this.shown = this.rows.filter(this.test);
    const all = told();
    const column = this.columns.find((one) => one.name && one.name === (all.get("s") || "").replace("-", ""));
    if (column) {
      const sign = (all.get("s") || "").startsWith("-") ? -1 : 1;
      const missing = (value) => value === null || value === undefined || value === "";
      this.shown.sort((one, other) => {
        const [a, b] = [one[column.name], other[column.name]];
        if (missing(a) || missing(b)) return missing(a) - missing(b);
        return sign * (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", {numeric: true}));
      });
    }
    this.columns.forEach((one, place) => {
      if (one === column) this.heads[place].setAttribute("aria-sort", (all.get("s") || "").startsWith("-") ? "descending" : "ascending");
      else this.heads[place].removeAttribute("aria-sort");
    });
    this.status.textContent = this.shown.length === this.rows.length
      ? count(this.rows.length, this.noun) : `${this.shown.length.toLocaleString("en")} of ${count(this.rows.length, this.noun)}`;
    const before = this.num;
    this.body.replaceChildren();
    this.num = 0;
    this.at = -1;
    this.draw(Math.max(FIRST_ROWS, before));
  }

  sort(column) {
    const now = told().get("s");
    const first = column.isText ? column.name : `-${column.name}`;
    const other = column.isText ? `-${column.name}` : column.name;
    remember({s: now === first ? other : first});
    this.num = 0;
    this.filter();
  }

  draw(num) {
    const some = this.shown.slice(this.num, this.num + num);
    this.body.append(...some.map((row) => make("tr", {}, this.columns.map((column, place) =>
      make(place === 0 ? "th" : "td", {class: column.css, "data-label": column.title, scope: place === 0 ? "row" : null},
        ...[column.cell ? column.cell(row) : number(row[column.name])].flat())))));
    this.num += some.length;
    this.more.hidden = this.num >= this.shown.length;
    this.more.textContent = `show more of ${count(this.shown.length, this.noun)}`;
    if (this.onDraw) this.onDraw();
  }

  // Goes to another row; its link has the focus, so that Enter opens it.
  step(by) {
    if (!this.shown.length) return;
    const at = Math.min(this.shown.length - 1, Math.max(0, this.at + by));
    if (at >= this.num) this.draw(at - this.num + MORE_ROWS);
    this.body.rows[this.at]?.classList.remove("here");
    this.at = at;
    const row = this.body.rows[at];
    row.classList.add("here");
    (row.querySelector("a") || row).focus();
  }

  get row() {
    return this.shown[this.at] || null;
  }
}

function dots(rewards, range) {
  const shown = rewards.slice(0, 64);
  const width = Math.max(9, 9 * shown.length - 2);
  return draw("svg", {class: "dots", width, height: 18, viewBox: `0 0 ${width} 18`, role: "img",
    "aria-label": `rewards ${shown.map((value) => value === null ? "invalid" : number(value, 2)).join(", ")}`},
  shown.map((value, place) => {
    const share = value === null || range[1] <= range[0] ? 1 : (value - range[0]) / (range[1] - range[0]);
    const height = 3 + 15 * share;
    return draw("rect", {class: value === null ? "invalid" : "reward", shade: shadeOf(value, range), x: 9 * place,
      y: (18 - height).toFixed(1), width: 7, height: height.toFixed(1), rx: 1.5});
  }));
}
