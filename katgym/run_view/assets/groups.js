// The table of groups: filtered and sorted.

const table = document.getElementById("group-table");

if (table) {
  const body = table.tBodies[0];
  const rowsOfTable = [...body.rows];
  const form = document.getElementById("filter");
  const told = document.getElementById("shown");
  const all = told.textContent;

  const fits = (row, words, stepWanted) =>
    words.every((word) => row.dataset.text.includes(word))
    && (stepWanted === null || row.cells[0].dataset.value === stepWanted)
    && (!form.mixed.checked || row.dataset.mixed === "1")
    && (!form.invalid.checked || row.dataset.invalid !== "0");

  const filter = () => {
    const text = form.text.value.trim().toLowerCase();
    const step = /^step (\d+)$/.exec(text);
    const words = step ? [] : text.split(/\s+/).filter(Boolean);
    let num = 0;
    for (const row of rowsOfTable) {
      row.hidden = !fits(row, words, step ? step[1] : null);
      num += !row.hidden;
    }
    told.textContent = num === rowsOfTable.length ? all : `${num} of ${rowsOfTable.length} groups shown`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());

  const value = (row, place, kind) => {
    const text = row.cells[place].dataset.value;
    return kind === "number" ? (text === "" ? -Infinity : Number(text)) : text;
  };
  const compare = (one, other) => typeof one === "number"
    ? one - other || 0 : one.localeCompare(other, "en", {numeric: true});

  [...table.tHead.rows[0].cells].forEach((head, place) => {
    head.querySelector("button").addEventListener("click", () => {
      const kind = head.dataset.sort;
      const isDown = head.getAttribute("aria-sort") !== (kind === "number" ? "descending" : "ascending");
      const sign = (kind === "number") === isDown ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
      const sorted = [...rowsOfTable].sort((a, b) => sign * compare(value(a, place, kind), value(b, place, kind)));
      body.append(...sorted);
    });
  });

  document.addEventListener("step", (event) => {
    form.text.value = `step ${event.detail}`;
    filter();
    form.scrollIntoView({block: "start"});
  });
}
