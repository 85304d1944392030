// The page of a group: its siblings, their tree, and the rollout that is read.
// The address holds what is shown: #g=NAME&r=3&t=2&c=logprob.

// A group's data; the parts of its turns are loaded when they are asked for.
class Group {
  constructor(data, base) {
    Object.assign(this, data);
    this.base = base;
    this.hasTokens = data.tree.tokens;
    this.loaded = new Map(data.chunks.length ? [] : [[0, data.parts]]);
  }

  static async read(name, run = "") {
    const base = `${run}groups/${name}`;
    return new Group(await load(`${base}.js`), base);
  }

  row(rollout, turn) {
    return this.rows[this.rollouts[rollout].turns[turn]];
  }

  // What is told of a turn in a line.
  head(rollout, turn) {
    const [, answered, called] = this.row(rollout, turn);
    const [line, sampled, branch] = this.heads[answered];
    const [names_, calls, errors] = this.heads[called];
    return {line, sampled, branch, names: names_, calls, errors};
  }

  // [vertex, place in the answer at which it begins], in order.
  path(rollout, turn) {
    return this.paths[this.row(rollout, turn)[3]];
  }

  link(rollout, turn) {
    const all = told();
    all.set("r", rollout + 1);
    all.set("t", turn + 1);
    return `#${all}`;
  }

  async part(place) {
    const chunk = this.chunks.length ? this.chunks.findLastIndex((begin) => begin <= place) : 0;
    if (!this.loaded.has(chunk)) this.loaded.set(chunk, await load(`${this.base}-${chunk}.js`));
    return this.loaded.get(chunk)[place - (this.chunks[chunk] || 0)];
  }

  async turn(rollout, turn) {
    const [given_, answered, called, , took, whole, times] = this.row(rollout, turn);
    const [messages, said, calls] = [await this.part(given_), await this.part(answered), await this.part(called)];
    const rows = calls.map((call, place) => {
      const at = times[place];
      return at ? {...call, called: at[0], start: at[1], end: at[2]} : call;
    });
    return {...said, given: messages, seconds: took, lanes: {seconds: whole, rows}};
  }
}

const MOST_CHIPS = 24;

function chip(group, place, onChoose) {
  const one = group.rollouts[place];
  const mark = one.reward === null ? "invalid" : `reward ${number(one.reward, 3)} ${one.success ? "✓" : "✗"}`;
  const ended = one.status === "terminated" ? null : make("i", {}, ` ${one.status}`);
  return make("a", {href: `#r=${place + 1}`, "data-rollout": place, onclick: (event) => {
    event.preventDefault();
    onChoose(place);
  }}, make("span", {class: `swatch ${one.reward === null ? "invalid" : "reward"}`, shade: shadeOf(one.reward, group.range)}),
  make("b", {}, `rollout ${place + 1}`), ` ${mark}`, ended);
}

function chips(group, onChoose) {
  const num = group.rollouts.length;
  const element = make("nav", {class: "siblings", "aria-label": "Rollouts of the group"});
  const add = (begin, end) => element.append(...Array.from({length: end - begin}, (_, at) => chip(group, begin + at, onChoose)));
  add(0, Math.min(num, MOST_CHIPS));
  if (num > MOST_CHIPS) {
    const more = make("button", {type: "button", class: "more", onclick: () => {
      more.remove();
      add(MOST_CHIPS, num);
    }}, `show ${count(num - MOST_CHIPS, "more rollout")}`);
    element.append(more);
  }
  return element;
}

screens.group = async () => {
  const main = document.getElementById("group");
  const name = told().get("g");
  const list = await load("list.js");
  const file = list.groups.findIndex((one) => one.file === name);
  const group = await Group.read(name);
  document.title = `${group.task} - ${list.name} - katgym`;
  if (!group.rollouts.length) throw new Error("the group has no rollout that can be read");
  const within = (text, num) => Math.min(num - 1, Math.max(0, (Number(text) || 1) - 1));
  let shown = null;

  const go = (rollout, turn, mode) => {
    const before = location.hash;
    const all = new URLSearchParams({g: name, r: rollout + 1});
    if (turn !== null) all.set("t", turn + 1);
    if (mode !== "none") all.set("c", mode);
    location.hash = `#${all}`;
    if (location.hash === before) show();
  };
  // Shows a vertex: in the rollout that is read if it runs through it, else in the first that does.
  const pick = (vertex) => {
    const rollout = vertex.rollouts.includes(shown.rollout) ? shown.rollout : vertex.rollouts[0];
    const ends = group.tree.vertices.filter((one) => one.rollouts.includes(rollout) && one.depth >= vertex.depth);
    const own = vertex.turns.find((turn) => turn[0] === rollout)
      || ends.flatMap((one) => one.turns).find((turn) => turn[0] === rollout && turn[1] + 1 > vertex.depth);
    go(rollout, own ? own[1] : null, shown.mode);
  };

  const step = [group.step === null ? "" : `step ${group.step}`, group.untrained].filter(Boolean).join(", ");
  const near = (by) => {
    for (let at = file + by; file >= 0 && at >= 0 && at < list.groups.length; at += by) {
      if (list.groups[at].file) return `group.html#g=${encodeURIComponent(list.groups[at].file)}`;
    }
    return null;
  };
  const neighbours = [["prev", near(-1), "previous group"], ["next", near(1), "next group"]]
    .map(([rel, href, text]) => href && make("a", {rel, href}, text));
  const place = make("div", {id: "tree"}), forks = make("ol", {id: "forks", class: "forks"});
  const aside = make("aside", {"aria-label": "Tree of the group"},
    make("h2", {}, `${count(group.rollouts.length, "rollout")} as one tree`),
    make("p", {class: "status"}, "A dot is a turn’s end; greener is better, a dashed line a branch. Point at one for its numbers, or go there with Tab and the arrow keys."), place, forks);
  const root = make("section", {id: "rollout", "aria-label": "Rollout", tabindex: -1});
  const siblings = chips(group, (rollout) => go(rollout, null, shown.mode));
  main.replaceChildren(make("header", {},
    make("nav", {class: "crumbs", "aria-label": "Where this is"}, make("a", {href: "index.html", id: "up"}, list.name),
      step ? make("span", {}, step) : null, make("span", {}, group.env), make("span", {class: "right"}, neighbours)),
    make("h1", {}, group.task), facts(group.facts), notes(group.notes)), siblings, make("div", {class: "split"}, aside, root));
  const view = new RolloutView(root, group, {onPick: pick, onTurn: (turn) => {
    remember({t: turn + 1});
    shown.turn = turn;
    if (plot) bringTurn(plot, group, shown.rollout, turn);
  }});
  const plot = group.tree.vertices.length > 1 ? drawTree(group, place.clientWidth || 360, pick) : null;
  if (plot) {
    place.append(plot);
    forks.append(...listForks(group, pick));
    walkTree(plot, group);
    growTree(plot, group, aside, () => markTree(plot, group, shown.rollout, shown.turn));
  } else place.append(make("p", {class: "nothing"}, "There is no turn to draw."));

  function show() {
    const all = told();
    if (all.get("g") !== name) {
      location.reload();
      return;
    }
    const rollout = within(all.get("r"), group.rollouts.length);
    const num = group.rollouts[rollout].turns.length;
    const next = {
      rollout, turn: all.has("t") && num ? within(all.get("t"), num) : null,
      mode: group.hasTokens && all.get("c") in MODES ? all.get("c") : "none",
    };
    const isOther = !shown || next.rollout !== shown.rollout || next.mode !== shown.mode;
    shown = next;
    if (isOther) view.show(next.rollout, next.mode);
    for (const link of siblings.querySelectorAll("[data-rollout]")) {
      if (Number(link.dataset.rollout) === next.rollout) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    if (plot) bringTurn(plot, group, next.rollout, next.turn);
    if (next.turn !== null) view.go(next.turn, false);
  }

  const color = (mode) => {
    const {turn} = shown, before = scrollY;
    remember({c: mode === "none" ? "" : mode});
    show();
    root.querySelector(`[data-mode="${mode}"]`)?.focus({preventScroll: true});
    if (turn === null) scrollTo(0, before);
  };
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-mode]");
    if (button) color(button.dataset.mode);
  });
  addEventListener("hashchange", show);
  show();
  bindRollout(() => [view]);
  const sibling = (by) => go(Math.min(group.rollouts.length - 1, Math.max(0, shown.rollout + by)), null, shown.mode);
  bind("l", "next rollout of the group", () => sibling(1));
  bind("h", "previous rollout of the group", () => sibling(-1));
  bind("c", "colour tokens by the next number", () => {
    const modes = Object.keys(MODES);
    if (group.hasTokens) color(modes[(modes.indexOf(shown.mode) + 1) % modes.length]);
  });
  bind("]", "next group", () => near(1) && location.assign(near(1)));
  bind("[", "previous group", () => near(-1) && location.assign(near(-1)));
  whenNew([`groups/${name}.js`], async () => {
    const now = await load(`groups/${name}.js`, true);
    if (document.getElementById("grown") || JSON.stringify(now.rollouts) === JSON.stringify(group.rollouts)) return;
    main.prepend(make("p", {id: "grown", class: "notes", role: "status"}, "This group has grown. ",
      make("button", {type: "button", class: "button", onclick: () => location.reload()}, "show it (r)")));
  });
  bind("r", "show what is new", () => location.reload());
  bind("u", "the run", () => document.getElementById("up").click());
  bind("Tab, arrows", "in the tree, a chart, or the tokens of an answer: the next, with its numbers");
};

// Keys of the rollouts that are read.
function bindRollout(views) {
  const each = (act) => () => views().forEach(act);
  bind("j", "next turn", each((view) => view.step(1)));
  bind("k", "previous turn", each((view) => view.step(-1)));
  bind("e", "next turn with a tool error", each((view) => view.next(view.errors, 1)));
  bind("E", "previous turn with a tool error", each((view) => view.next(view.errors, -1)));
  bind("o", "open or close the turn", each((view) => view.toggle()));
  bind("O", "open or close all turns", each((view) => view.openAll()));
  bind("/", "find in the text", () => views()[0]?.root.querySelector(".find").focus());
  bind("n", "next turn that was found", each((view) => view.next(view.found, 1)));
  bind("N", "previous turn that was found", each((view) => view.next(view.found, -1)));
}
