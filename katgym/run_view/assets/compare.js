// Two runs, task by task; a task's rollouts side by side: #a=SLUG&b=SLUG&t=TASK&i=1&j=2.

screens.compare = async () => {
  const main = document.getElementById("compare");
  const sides = ["a", "b"].map((name) => ({name, base: `runs/${told().get(name)}/`}));
  for (const side of sides) side.list = await load(`${side.base}list.js`);
  const names_ = sides.map((side) => side.list.name);
  document.title = `${names_.join(" and ")} - katgym`;
  const byTask = sides.map((side) => {
    const found = new Map();
    for (const row of groupRows(side.list)) {
      const key = `${row.env} ${row.task}`;
      if (!found.has(key)) found.set(key, row);
    }
    return found;
  });
  const keys_ = [...new Set([...byTask[0].keys(), ...byTask[1].keys()])];
  const rows = keys_.map((key) => {
    const [a, b] = byTask.map((found) => found.get(key) || null);
    const known = a && b && a.reward !== null && b.reward !== null;
    const any = a || b;
    return {key, a, b, group: any.group, task: any.task, env: any.env, first: a && a.reward, second: b && b.reward,
      difference: known ? b.reward - a.reward : null, text: `${any.task} ${any.env}`.toLowerCase()};
  });
  const side = (row, name) => row[name] ? [number(row[name].reward, 3), make("small", {}, `${percent(row[name].pass)} of ${row[name].rollouts}`)] : ["–", make("small", {}, "not played")];
  const table = new ListTable({label: "Tasks of both runs", noun: "task", columns: [
    {title: "Task", name: "task", isText: true, cell: (row) => [
      make("a", {href: `#${new URLSearchParams({...Object.fromEntries(told()), t: row.key})}`}, row.task), make("small", {}, row.env)]},
    {title: names_[0], name: "first", css: "n", cell: (row) => side(row, "a")},
    {title: names_[1], name: "second", css: "n", cell: (row) => side(row, "b")},
    {title: "Difference", name: "difference", css: "n", cell: (row) => row.difference === null ? "–"
      : [row.difference ? `${row.difference > 0 ? "▲" : "▼"} ${signed(row.difference)}` : "="]},
  ]});
  const say = make("input", {type: "search", "aria-label": "Search", placeholder: "task, difference>0, first<0.5"});
  const differing = make("input", {type: "checkbox"});
  const apply = () => {
    const fits = matcher(say.value);
    table.filter((row) => fits(row) && (!differing.checked || row.difference !== 0));
  };
  const form = make("form", {class: "filter", role: "search", onsubmit: (event) => event.preventDefault(), oninput: apply},
    say, make("label", {}, differing, "only where they differ"));
  const known = rows.filter((row) => row.difference !== null);
  const header = make("header", {}, make("nav", {class: "crumbs", "aria-label": "Where this is"},
    make("a", {href: "index.html", id: "up"}, "runs"), make("span", {}, "two runs by task")),
  make("h1", {}, `${names_[0]} and ${names_[1]}`),
  facts([["tasks in both", String(known.length)], [`better in ${names_[1]}`, String(known.filter((row) => row.difference > 0).length)],
    [`better in ${names_[0]}`, String(known.filter((row) => row.difference < 0).length)],
    ["mean difference", known.length ? signed(mean(known.map((row) => row.difference))) : "–"]]));
  const body = make("div", {});
  main.replaceChildren(header, body);
  table.set(rows, () => true);
  let views = [];

  async function show() {
    const key = told().get("t"), mine = [];
    views = mine;
    if (!key) {
      body.replaceChildren(form, table.element);
      return;
    }
    const row = rows.find((one) => one.key === key);
    if (!row) {
      body.replaceChildren(notes([`Neither run played ${key}.`]), form, table.element);
      return;
    }
    const at = rows.indexOf(row);
    const to = (by) => rows[at + by] && `#${new URLSearchParams({a: told().get("a"), b: told().get("b"), t: rows[at + by].key})}`;
    const columns = make("div", {class: "pair-of-runs"});
    body.replaceChildren(make("nav", {class: "crumbs", "aria-label": "Tasks"}, make("a", {href: `#${new URLSearchParams({a: told().get("a"), b: told().get("b")})}`, id: "tasks"}, "all tasks"),
      make("span", {}, `${row.env} ${row.task}`),
      make("span", {class: "right"}, to(-1) ? make("a", {rel: "prev", href: to(-1)}, "previous task") : null, to(1) ? make("a", {rel: "next", href: to(1)}, "next task") : null)), columns);
    for (const [place, {name, base, list}] of sides.entries()) {
      const root = make("section", {id: `side-${name}`, "aria-label": list.name});
      const choose = make("select", {"aria-label": `Rollout of ${list.name}`});
      columns.append(make("div", {}, make("h2", {}, list.name), choose, root));
      const own = row[name];
      if (!own || !own.file) {
        choose.hidden = true;
        root.append(make("p", {class: "notes"}, own ? "This group has no page here." : "This run did not play the task."));
        continue;
      }
      const group = await Group.read(own.file, base);
      if (views !== mine) return;  // another task is shown
      const view = new RolloutView(root, group, {onPick: () => {}, onTurn: () => {}, hasColors: false});
      choose.append(...group.rollouts.map((one, number_) => make("option", {value: number_},
        `rollout ${number_ + 1}: ${one.reward === null ? "invalid" : `reward ${number(one.reward, 3)}`}`)));
      const read = () => view.show(Number(choose.value), "none");
      choose.addEventListener("change", () => {
        remember({[place ? "j" : "i"]: Number(choose.value) + 1});
        read();
      });
      choose.value = String(Math.min(group.rollouts.length, Number(told().get(place ? "j" : "i")) || 1) - 1);
      if (group.rollouts.length) read();
      mine.push(view);
    }
  }
  addEventListener("hashchange", show);
  await show();
  bindRollout(() => views);
  const rowOr = (by) => views.length ? views.forEach((view) => view.step(by)) : table.step(by);
  bind("j", "next task, or turn of both", () => rowOr(1));
  bind("k", "previous task, or turn of both", () => rowOr(-1));
  bind("/", "search", () => (views[0] ? views[0].root.querySelector(".find") : say).focus());
  bind("]", "next task", () => document.querySelector("[rel=next]")?.click());
  bind("[", "previous task", () => document.querySelector("[rel=prev]")?.click());
  bind("u", "all tasks, or all runs", () => (document.getElementById("tasks") || document.getElementById("up")).click());
};
