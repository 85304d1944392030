// The lists: a run's rollouts and groups, and the runs of a folder.

const ROLLOUT = ["reward", "isSuccess", "status", "failure", "turns", "calls", "parallel", "errors", "tokens", "seconds"];

function rolloutRows(list) {
  return list.groups.flatMap((group) => group.rollouts.map((row, place) => {
    const one = Object.fromEntries(ROLLOUT.map((name, at) => [name, row[at]]));
    one.outcome = one.reward === null ? one.status === "open" ? "open" : "invalid" : one.isSuccess ? "success" : "no success";
    return Object.assign(one, {
      group, place, file: group.file, task: group.task, env: group.env, step: group.step, rollout: place + 1,
      text: [group.task, group.env, group.id, group.untrained, one.status, words(one.failure), one.outcome].join(" ").toLowerCase(),
    });
  }));
}

function groupRows(list) {
  return list.groups.map((group) => {
    const rewards = group.rollouts.map((row) => row[0]);
    const valid = group.rollouts.filter((row) => row[0] !== null);
    const known = valid.map((row) => row[0]);
    return {
      group, file: group.file, task: group.task, env: group.env, step: group.step,
      rewards: [...rewards].sort((a, b) => (a === null) - (b === null) || b - a),
      reward: mean(known), pass: mean(valid.map((row) => row[1])), turns: mean(valid.map((row) => row[4])),
      parallel: mean(valid.map((row) => row[6])), tokens: mean(valid.map((row) => row[8])),
      errors: group.rollouts.reduce((sum, row) => sum + row[7], 0),
      invalid: rewards.length - known.length, isMixed: new Set(known).size > 1, rollouts: rewards.length,
      text: [group.task, group.env, group.id, group.untrained].join(" ").toLowerCase(),
    };
  });
}

function groupLink(row, run = "") {
  if (!row.file) return null;
  return `${run}group.html#g=${encodeURIComponent(row.file)}${row.place === undefined ? "" : `&r=${row.place + 1}`}`;
}

function taskCell(row, told_, run = "") {
  const href = groupLink(row, run);
  return [href ? make("a", {href}, row.task) : make("span", {title: "has no page here"}, row.task),
    make("small", {}, [row.env, row.group.untrained, ...told_, href ? "" : "no page here"].filter(Boolean).join(", "))];
}

function rewardCell(row, range) {
  const name = {success: "✓ success", "no success": "✗ no success", invalid: "invalid", open: "open"}[row.outcome];
  return [make("span", {class: "reward-text"}, make("span", {class: `swatch ${row.reward === null ? "invalid" : "reward"}`, shade: shadeOf(row.reward, range)}),
    row.reward === null ? "–" : number(row.reward, 3)), make("small", {}, row.failure ? words(row.failure) : name)];
}

screens.run = async () => {
  const place = document.getElementById("lists");
  let list = await load("list.js");
  const hasSteps = list.groups.some((group) => group.step !== null);
  const step = hasSteps ? [{title: "Step", name: "step", css: "n"}] : [];
  const tables = {
    rollouts: new ListTable({label: "Rollouts", noun: "rollout", columns: [
      {title: "Task", name: "task", isText: true, cell: (row) => taskCell(row, [`rollout ${row.place + 1}`])},
      ...step,
      {title: "Reward", name: "reward", css: "n", cell: (row) => rewardCell(row, list.range)},
      {title: "Turns", name: "turns", css: "n"},
      {title: "Tool calls", name: "calls", css: "n"},
      {title: "Tool errors", name: "errors", css: "n", cell: (row) => row.errors ? make("b", {class: "alert"}, `✗ ${row.errors}`) : "0"},
      {title: "Tokens", name: "tokens", css: "n", cell: (row) => row.tokens ? number(row.tokens) : "–"},
      {title: "Seconds", name: "seconds", css: "n"},
    ]}),
    groups: new ListTable({label: "Groups", noun: "group", columns: [
      {title: "Task", name: "task", isText: true, cell: (row) => taskCell(row, [])},
      ...step,
      {title: "Rewards of siblings", name: "reward", cell: (row) => dots(row.rewards, list.range)},
      {title: "Pass", name: "pass", css: "n", cell: (row) => percent(row.pass)},
      {title: "Mean", name: "reward", css: "n"},
      {title: "Turns", name: "turns", css: "n", cell: (row) => number(row.turns, 1)},
      {title: "Parallel", name: "parallel", css: "n", cell: (row) => number(row.parallel, 1)},
      {title: "Tokens", name: "tokens", css: "n", cell: (row) => number(row.tokens, 0)},
      {title: "Invalid", name: "invalid", css: "n", cell: (row) => row.invalid ? make("b", {class: "alert"}, String(row.invalid)) : "0"},
    ]}),
  };
  const form = make("form", {class: "filter", role: "search", onsubmit: (event) => event.preventDefault()});
  const say = make("input", {type: "search", name: "q", "aria-label": "Search", placeholder: "task, failure, turns>10, errors>0, reward<0.5"});
  const env = make("select", {name: "env", "aria-label": "Env"});
  const outcome = make("select", {name: "o", "aria-label": "Outcome"});
  const errors = make("input", {type: "checkbox", name: "e"});
  const mixed = make("input", {type: "checkbox", name: "m"});
  const choices = Object.keys(tables).map((name) => make("button", {type: "button", "data-view": name, onclick: () => choose(name)}, name));
  const onlyRollouts = make("label", {}, errors, "tool errors"), onlyGroups = make("label", {}, mixed, "mixed rewards");
  form.append(make("span", {class: "segments", role: "group", "aria-label": "List of"}, choices), say, env, outcome, onlyRollouts, onlyGroups);
  const body = make("div", {});
  place.append(form, body);
  let table = null;

  const names = (select, values, all) => select.replaceChildren(
    make("option", {value: ""}, all), ...values.map((value) => make("option", {value}, words(value))));
  const apply = () => {
    const fits = matcher(say.value);
    table.filter((row) => fits(row) && (!env.value || row.env === env.value)
      && (table !== tables.rollouts || ((!outcome.value || row.outcome === outcome.value || row.failure === outcome.value || row.status === outcome.value)
        && (!errors.checked || row.errors > 0)))
      && (table !== tables.groups || ((!mixed.checked || row.isMixed) && (outcome.value !== "invalid" || row.invalid > 0))));
  };
  const fillRows = () => {
    const rows = rolloutRows(list);
    names(env, [...new Set(rows.map((row) => row.env))].sort(), "all envs");
    env.hidden = env.options.length <= 2;
    const kinds = new Set(rows.flatMap((row) => [row.outcome, row.status, row.failure]).filter(Boolean));
    names(outcome, [...kinds].sort(), "all outcomes");
    tables.rollouts.rows = rows;
    tables.groups.rows = groupRows(list);
    const all = told();
    say.value = all.get("q") || "";
    env.value = all.get("env") || "";
    outcome.value = all.get("o") || "";
    errors.checked = all.has("e");
    mixed.checked = all.has("m");
    show();
  };
  const show = () => {
    table = tables[told().get("v") === "groups" ? "groups" : "rollouts"];
    for (const choice of choices) choice.setAttribute("aria-pressed", String(tables[choice.dataset.view] === table));
    onlyRollouts.hidden = table !== tables.rollouts;
    onlyGroups.hidden = table !== tables.groups;
    if (body.firstChild !== table.element) body.replaceChildren(table.element);
    apply();
  };
  const choose = (name) => {
    remember({v: name === "rollouts" ? "" : name});
    show();
  };
  form.addEventListener("input", () => {
    remember({q: say.value, env: env.value, o: outcome.value, e: errors.checked ? 1 : "", m: mixed.checked ? 1 : ""});
    table.num = 0;
    apply();
  });
  addEventListener("hashchange", fillRows);
  document.addEventListener("step", (event) => {
    remember({q: `step:${event.detail}`, v: "groups"});
    fillRows();
    form.scrollIntoView({block: "start"});
  });
  fillRows();
  bind("j", "next row; Enter opens it", () => table.step(1));
  bind("k", "previous row", () => table.step(-1));
  bind("/", "search", () => say.focus());
  bind("g", "rollouts or groups", () => choose(table === tables.rollouts ? "groups" : "rollouts"));
  bind("e", "only rollouts with tool errors, or all", () => {
    errors.checked = !errors.checked;
    form.dispatchEvent(new Event("input"));
  });
  if (document.querySelector(".crumbs a")) bind("u", "all runs", () => document.querySelector(".crumbs a").click());
  startCharts();
  whenNew(["list.js"], async () => {
    startCharts();
    const fresh = await load("list.js", true);
    if (JSON.stringify(fresh) === JSON.stringify(list)) return;
    list = fresh;
    fillRows();
  });
};

screens.runs = async () => {
  const place = document.getElementById("lists");
  let data = await load("runs.js");
  const chosen = new Set();
  const compare = make("a", {class: "button"});
  const retell = () => {
    const [a, b] = chosen;
    compare.textContent = chosen.size === 2 ? "compare the two runs" : `choose ${2 - chosen.size} of them to compare`;
    if (chosen.size === 2) compare.setAttribute("href", `compare.html#a=${a}&b=${b}`);
    else compare.removeAttribute("href");
    for (const box of place.querySelectorAll("[data-slug]")) box.checked = chosen.has(box.dataset.slug);
  };
  const toggle = (slug) => {
    if (!chosen.delete(slug)) chosen.add(slug);
    if (chosen.size > 2) chosen.delete(chosen.values().next().value);
    retell();
  };
  const table = new ListTable({label: "Runs", noun: "run", onDraw: retell, columns: [
    {title: "Run", name: "name", isText: true, cell: (row) => [row.problem ? make("span", {}, row.name) : make("a", {href: `runs/${row.slug}/index.html`}, row.name),
      make("small", {}, row.problem ? `cannot be read: ${row.problem}` : [row.kind, row.begun].filter(Boolean).join(", "))]},
    {title: "Policy or model", name: "model", isText: true, css: "long", cell: (row) => [row.model || "–", make("small", {}, row.envs || "")]},
    {title: "Rollouts", name: "rollouts", css: "n", cell: (row) => [number(row.rollouts),
      make("small", {}, row.planned && row.rollouts < row.planned ? `of ${row.planned}: not finished` : row.step ? `step ${row.step}` : "")]},
    {title: "Success", name: "success", css: "n", cell: (row) => percent(row.success, 1)},
    {title: "Mean reward", name: "reward", css: "n"},
    {title: "Invalid", name: "invalid", css: "n", cell: (row) => row.invalid ? make("b", {class: "alert"}, String(row.invalid)) : "0"},
    {title: "Verified", name: "verified", isText: true, cell: (row) => row.verified || "–"},
    {title: "Compare", cell: (row) => make("input", {type: "checkbox", "data-slug": row.slug, "aria-label": `compare ${row.name}`, onchange: () => toggle(row.slug)})},
  ]});
  const say = make("input", {type: "search", "aria-label": "Search", placeholder: "run, policy, env, success>0.5"});
  const form = make("form", {class: "filter", role: "search", onsubmit: (event) => event.preventDefault()}, say, compare);
  const fillRows = () => {
    const rows = data.runs.map((row) => ({...row, text: [row.name, row.kind, row.model, row.envs, row.verified].join(" ").toLowerCase()}));
    const kinds = new Set(rows.map((row) => row.kind));
    form.replaceChildren(say, compare,
      ...(rows.some((row) => row.kind === "evaluation run" && row.rollouts) ? [make("a", {href: "leaderboard.html"}, "leaderboard")] : []),
      ...(kinds.has("training run") ? [make("a", {href: "curves.html"}, "curves of training runs")] : []));
    say.value = told().get("q") || "";
    table.set(rows, matcher(say.value));
    retell();
  };
  place.append(form, table.element);
  say.addEventListener("input", () => {
    remember({q: say.value});
    table.filter(matcher(say.value));
  });
  fillRows();
  if (!data.runs.length) place.append(notes(["There is no run below this folder yet; katgym eval and katgym train make some."]));
  bind("j", "next run; Enter opens it", () => table.step(1));
  bind("k", "previous run", () => table.step(-1));
  bind("x", "choose the run for a comparison", () => table.row && toggle(table.row.slug));
  bind("c", "compare the two that are chosen", () => compare.hasAttribute("href") && compare.click());
  bind("/", "search", () => say.focus());
  whenNew(["runs.js"], async () => {
    const fresh = await load("runs.js", true);
    if (JSON.stringify(fresh) === JSON.stringify(data)) return;
    data = fresh;
    fillRows();
  });
};

screens.curves = () => {
  const apply = () => {
    const off = new Set([...document.querySelectorAll("[data-curve]")].filter((box) => !box.checked).map((box) => box.dataset.curve));
    for (const part of document.querySelectorAll("[data-series]")) part.classList.toggle("gone", off.has(part.dataset.series));
  };
  document.querySelector("form").addEventListener("input", apply);
  bind("u", "all runs", () => document.querySelector(".crumbs a").click());
  startCharts();
  whenNew([], () => {
    startCharts();
    apply();
  });
};

// From a server: looks for what is new, and puts in place the parts of the page that have changed.
function whenNew(urls, refresh) {
  if (!("isLive" in document.body.dataset)) return;
  let seen = "";  // nothing at first: something may have come between the page and this
  const look = async () => {
    setTimeout(look, 1000);
    if (document.hidden) return;
    const answers = await Promise.all([location.pathname, ...urls].map((url) => fetch(url, {cache: "no-cache"}))).catch(() => null);
    document.body.classList.toggle("gone-away", !answers);
    if (!answers || answers.some((answer) => !answer.ok)) return;
    const now = answers.map((answer) => answer.headers.get("ETag")).join();
    if (now === seen) return;
    replaceLive(await answers[0].text());
    await refresh();
    seen = now;
  };
  look();
}

function replaceLive(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (other && other.outerHTML !== part.outerHTML) part.replaceWith(document.importNode(other, true));
  }
}
