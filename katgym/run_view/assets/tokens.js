// The tokens of an answer, coloured by one of their numbers.

const MODES = {
  none: {name: "none", says: "messages as they were read"},
  logprob: {name: "log-prob", says: "the paler, the more probable", low: "0", high: "−5 nats", css: "heat"},
  advantage: {name: "advantage", says: "mean over the rollouts that share the token", low: "−", high: "+", css: "both"},
  surprise: {
    name: "surprise", says: "−log-prob, mean of seven neighbours: about the entropy there", low: "0", high: "3 nats",
    css: "violet",
  },
};
const MAX_TOKENS = 4000;

function surprises(logprobs) {
  return logprobs.map((_, place) => {
    const near = logprobs.slice(Math.max(0, place - 3), place + 4).filter((value) => value !== null);
    return near.length ? -near.reduce((sum, value) => sum + value, 0) / near.length : null;
  });
}

// Advantage of each token: the mean over the rollouts whose paths share it.
function advantages(group, rollout, turn, played) {
  const spans = group.path(rollout, turn);
  const found = new Array(played.ids.length).fill(group.rollouts[rollout].advantage);
  if (spans) {
    spans.forEach(([vertex, begin], place) => {
      const end = place + 1 < spans.length ? spans[place + 1][1] : found.length;
      found.fill(group.tree.vertices[vertex].advantage, begin, end);
    });
  }
  return found;
}

// On dark paper tints are weaker, so that text on them can be read.
function tint(name, strength) {
  return `rgb(var(--${name}) / calc(${strength.toFixed(3)} * var(--tint)))`;
}

function background(mode, value, most) {
  if (value === null || value === undefined || mode === "none") return "";
  if (mode === "advantage") {
    const share = most ? Math.min(1, Math.abs(value) / most) : 0;
    return share < 0.02 ? "" : tint(value > 0 ? "pos" : "neg", 0.1 + 0.5 * share);
  }
  const share = mode === "logprob" ? Math.min(1, -value / 5) : Math.min(1, value / 3);
  return share < 0.01 ? "" : tint(mode === "logprob" ? "heat" : "violet", 0.6 * share);
}

// Returns an element with a span a token, and a mark wherever siblings went another way.
function tokenStrip(group, rollout, turn, played, mode, onPick) {
  const values = {
    logprob: played.logprobs, surprise: surprises(played.logprobs), advantage: advantages(group, rollout, turn, played),
  };
  const most = Math.max(...group.rollouts.map((one) => Math.abs(one.advantage ?? 0)));
  const forks = forksWithin(group, rollout, turn);
  // place -> text: that of a character stands at its first token, the others have none.
  const whole = new Map(played.joined.flatMap(([begin, num, text]) =>
    Array.from({length: num}, (_, place) => [begin + place, place ? "" : text])));
  const strip = make("div", {
    class: group.texts ? "strip" : "strip ids", tabindex: 0, role: "group",
    "aria-label": "tokens of the answer; arrow keys go from one to the next",
  });
  const add = (begin, end) => {
    for (let place = begin; place < end; place += 1) {
      if (forks.has(place)) strip.append(forkMark(group, forks.get(place), onPick));
      const text = whole.get(place) ?? (group.texts ? group.texts[played.ids[place]] : "");
      const css = text ? "tok" : whole.has(place) ? "tok part" : "tok id";
      const shown = text ? text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥") : css === "tok id" ? String(played.ids[place]) : "";
      const span = make("span", {class: css, "data-place": place}, shown);
      const color = background(mode, values[mode] && values[mode][place], most);
      if (color) span.style.background = color;
      strip.append(span);
    }
  };
  add(0, Math.min(MAX_TOKENS, played.ids.length));
  if (played.ids.length > MAX_TOKENS) {
    const more = make("button", {type: "button", class: "more", onclick: () => {
      more.remove();
      add(MAX_TOKENS, played.ids.length);
    }}, `show ${count(played.ids.length - MAX_TOKENS, "more token")}`);
    strip.append(more);
  }
  const lines = (span) => {
    const place = Number(span.dataset.place), id = played.ids[place];
    const logprob = played.logprobs[place];
    const sampledBy = played.versions.find(([, end]) => place < end);
    return [
      group.texts ? `“${visible(span.textContent.replaceAll("↵", "") || group.texts[id] || "")}”` : null,
      ["id", String(id)],
      ["log-prob", logprob === undefined || logprob === null ? "not known" : `${number(logprob)} (${number(100 * Math.exp(logprob), 1)}%)`],
      values.surprise[place] === undefined ? null : ["surprise around it", number(values.surprise[place], 2)],
      values.advantage[place] === null ? null : ["advantage", signed(values.advantage[place])],
      ["policy version", sampledBy ? number(sampledBy[0]) : "not known"],
      ["token of the answer", `${place + 1} of ${played.ids.length}`],
    ];
  };
  const at = (place) => {
    const span = strip.querySelector(`[data-place="${place}"]`);
    if (!span) return;
    strip.querySelector(".tok.at")?.classList.remove("at");
    span.classList.add("at");
    span.scrollIntoView({block: "nearest"});
    showTipAt(span, lines(span));
  };
  strip.addEventListener("pointermove", (event) => {
    const span = event.target.closest(".tok");
    if (span) showTip(event.clientX, event.clientY, lines(span));
  });
  strip.addEventListener("click", (event) => {
    const span = event.target.closest(".tok");
    if (span) at(span.dataset.place);
  });
  strip.addEventListener("keydown", (event) => {
    const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10}[event.key];
    if (!by || event.target !== strip) return;
    event.preventDefault();
    const now = strip.querySelector(".tok.at");
    at(Math.min(played.ids.length - 1, Math.max(0, now ? Number(now.dataset.place) + by : 0)));
  });
  strip.addEventListener("pointerleave", hideTip);
  strip.addEventListener("blur", () => {
    strip.querySelector(".tok.at")?.classList.remove("at");
    hideTip();
  });
  return strip;
}

// place in the answer -> the fork at which it parts from its siblings.
function forksWithin(group, rollout, turn) {
  const found = new Map();
  for (const [vertex, begin] of group.path(rollout, turn) || []) {
    const fork = group.tree.forks.find((one) => one.vertex === group.tree.vertices[vertex].parent);
    const isOwn = fork && group.tree.vertices[vertex].cause === "sampled";
    if (isOwn) found.set(begin, {fork, vertex});
  }
  return found;
}

function forkIcon() {
  return draw("svg", {class: "icon", width: 8, height: 10, viewBox: "0 0 8 10", "aria-hidden": "true"},
    draw("path", {d: "M4 9.5V6M4 6C4 3.5 1.2 4 1.2 1M4 6C4 3.5 6.8 4 6.8 1", fill: "none"}));
}

function forkMark(group, {fork, vertex}, onPick) {
  const ways = fork.ways.map((way) => ({...way, ...group.tree.vertices[way.vertex]}));
  const num = ways.filter((way) => way.vertex !== vertex).reduce((sum, way) => sum + way.rollouts.length, 0);
  const mark = make("button", {type: "button", class: "parts", "aria-label": `${num} siblings go on otherwise`}, forkIcon(), String(num));
  const lines = [`${num} of ${num + group.tree.vertices[vertex].rollouts.length} go on otherwise`,
    ...ways.map((way) => [`${way.vertex === vertex ? "▸ " : ""}${visible(way.text).slice(0, 42)}`,
      `${way.rollouts.length}× ${number(way.value, 2)}`])];
  explain(mark, () => lines);
  mark.addEventListener("click", () => {
    const others = ways.filter((way) => way.vertex !== vertex);
    onPick(others.reduce((best, way) => (way.value ?? -1) > (best.value ?? -1) ? way : best));
  });
  return mark;
}
