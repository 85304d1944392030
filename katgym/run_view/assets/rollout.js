// One rollout: what it earned, then turn by turn what was said, called and answered.

const MAX_FOLDED = 900, MAX_FOLDED_LINES = 14;

function fold(text, css, most = MAX_FOLDED, lines = MAX_FOLDED_LINES) {
  const [shown, numLeft] = text;
  const left = numLeft ? make("em", {class: "left"}, `${count(numLeft, "character")} left out`) : null;
  const body = make("div", {class: `text ${css}`}, shown);
  if (shown.length <= most && shown.split("\n").length <= lines) return [body, left];
  body.classList.add("folded");
  const more = make("button", {type: "button", class: "more", onclick: () => {
    const isFolded = body.classList.toggle("folded");
    more.textContent = isFolded ? `show all ${count(shown.length, "character")}` : "show less";
  }}, `show all ${count(shown.length, "character")}`);
  return [body, more, left];
}

function message([name, role, text]) {
  return make("div", {class: `message ${role}`}, make("div", {class: "role"}, name), make("div", {}, fold(text, "")));
}

function pretty(text) {
  try {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return text;
    return Object.entries(value)
      .map(([name, entry]) => `${name}=${JSON.stringify(entry)}`)
      .join(", ");
  } catch {
    return text;
  }
}

function summaryOf(group, place) {
  const one = group.rollouts[place];
  const reward = make("div", {class: "earned"},
    make("span", {class: `big ${one.reward === null ? "invalid" : "reward"}`, shade: shadeOf(one.reward, group.range)},
      one.reward === null ? "no valid reward" : number(one.reward)),
    one.reward === null ? null : make("span", {class: "badge"}, one.success ? "✓ success" : "✗ no success"),
    make("span", {class: `badge ${one.status}`}, one.status),
    one.failure ? make("span", {class: "badge failed"}, words(one.failure)) : null,
    one.trust ? make("span", {class: `badge ${one.trust}`}, `trust ${one.trust}`) : null,
    one.advantage === null ? null : make("span", {class: "adv"},
      `${group.recorded ? "advantage" : "reward less the group’s mean"} ${signed(one.advantage)}`));
  const gates = one.components.some((part) => part[3]);
  const components = one.components.length ? make("table", {class: "components"},
    make("thead", {}, make("tr", {}, ["component", "score", "weight", gates ? "gate" : null]
      .filter(Boolean).map((name) => make("th", {scope: "col"}, name)))),
    make("tbody", {}, one.components.map(([name, score, weight, isGate]) => make("tr", {class: weight || isGate ? "" : "metric"},
      make("th", {scope: "row"}, name), make("td", {}, number(score)),
      make("td", {}, isGate ? "" : weight ? number(weight) : "metric"),
      gates ? make("td", {}, isGate ? "multiplies" : "") : null)))) : null;
  return make("div", {class: "summary"},
    make("h2", {}, `Rollout ${place + 1}`), reward,
    one.reason ? make("p", {class: "why"}, one.reason) : null,
    one.trust_reason ? make("p", {class: "why"}, `Trust ${one.trust}: ${one.trust_reason}`) : null,
    make("div", {class: "columns"}, components,
      facts(one.facts)));
}

function lanes(played) {
  const {rows: calls, seconds: whole} = played.lanes;
  if (!calls.length) return null;
  const stages = new Set(calls.map((call) => call.stage)).size;
  const alone = calls.reduce((sum, call) => sum + (call.end ?? 0) - (call.start ?? 0), 0);
  const isTimed = whole !== null && whole > 0;
  const told = [count(calls.length, "call"), count(stages, "stage")];
  if (isTimed) told.push(seconds(whole) + (alone > 1.2 * whole ? ` for ${seconds(alone)} of work` : ""));
  if (!isTimed) told.push("not timed");
  const marks = isTimed ? make("div", {class: "axis"}, make("span", {}, "0"), make("span", {}, seconds(whole / 2)),
    make("span", {}, seconds(whole))) : null;
  return make("div", {class: "lanes"}, make("div", {class: "head"}, make("span", {}, told.join(" · ")), marks),
    calls.map((call) => lane(call, whole, isTimed)));
}

function lane(call, whole, isTimed) {
  const at = (time) => `${(100 * time / whole).toFixed(2)}%`;
  const track = make("span", {class: isTimed ? "track" : ""});
  const isOwn = isTimed && call.end !== undefined;
  if (isOwn) {
    const wait = make("i", {class: "wait"}), run = make("i", {class: `run s${call.stage % 4} ${call.error ? "bad" : ""}`});
    wait.style.left = at(call.called);
    wait.style.width = at(Math.max(0, call.start - call.called));
    run.style.left = at(call.start);
    run.style.width = at(Math.max(whole * 0.004, call.end - call.start));
    track.append(wait, run);
  }
  const line = make("summary", {},
    make("span", {class: "call"}, make("b", {}, call.name), "(", make("span", {class: "args"}, pretty(call.arguments[0])), ")"),
    track,
    make("span", {class: "took"}, call.error ? make("em", {class: "bad"}, `✗ ${words(call.error)}`) : isOwn ? seconds(call.end - call.start) : ""));
  explain(line, () => [
    call.name,
    isOwn ? ["stage", String(call.stage + 1)] : null,
    isOwn ? ["waited", seconds(call.start - call.called)] : null,
    isOwn ? ["ran", `${seconds(call.start)} to ${seconds(call.end)}`] : null,
    call.error ? ["error", call.error] : null,
  ]);
  return make("details", {class: "lane", open: true}, line,
    call.arguments[0].length > 60 ? make("div", {class: "text args"}, call.arguments[0]) : null,
    make("div", {class: "output"},
      call.output[0] ? fold(call.output, "", 500, 8) : make("span", {class: "nothing"}, "(no text in the rollout’s messages)"),
      call.omitted ? make("em", {class: "left"}, `${count(call.omitted, "byte")} left out before the policy read it`) : null));
}

function answer(group, place, number_, played, mode, onPick) {
  const strip = mode !== "none" && played.ids.length ? tokenStrip(group, place, number_, played, mode, onPick) : null;
  if (strip && group.texts) return [strip];
  const said = played;
  const parts = [];
  if (said.reasoning[0]) parts.push(make("details", {class: "thought"}, make("summary", {}, "reasoning"), fold(said.reasoning, "")));
  if (said.content[0]) parts.push(fold(said.content, ""));
  const told_ = [...new Set(said.calls)].map((name) => {
    const num = said.calls.filter((one) => one === name).length;
    return num > 1 ? `${name} ×${num}` : name;
  });
  if (!parts.length) parts.push(make("div", {class: "text nothing"}, told_.length ? `calls ${told_.join(", ")}` : "(empty answer)"));
  return [...parts.flat(), strip];
}

// Returns what is in an open turn.
function turnBody(group, place, played, number_, mode, onPick) {
  const known = played.logprobs.filter((value) => value !== null);
  const told_ = [
    played.num_sampled ? count(played.num_sampled, "token") : null,
    known.length ? `mean log-prob ${number(mean(known), 2)}` : null,
    played.num_prompt ? `prompt ${played.num_prompt.toLocaleString("en")}` : null,
    played.versions.length ? `version ${[...new Set(played.versions.map(([version]) => version))].join(", ")}` : null,
    played.seconds > 0 ? seconds(played.seconds) : null,
    played.finish === "stop" ? null : played.finish,
    played.constraint ? `sampled under a constraint (${played.constraint}): no loss is taken on it` : null,
  ].filter(Boolean).join(" · ");
  const branch = played.branch ? make("p", {class: "branch"}, make("b", {}, `branch: ${words(played.branch)}`),
    played.parent === null ? "" : ` shares ${count(played.num_shared, "token")} with turn ${played.parent + 1}, then goes on from other messages`) : null;
  return [
    told_ ? make("p", {class: "measures"}, told_) : null, branch, ...played.given.map(message),
    make("div", {class: "message assistant"}, make("div", {class: "role"}, "assistant"),
      make("div", {}, answer(group, place, number_, played, mode, onPick))),
    lanes(played),
  ].filter(Boolean);
}

const BLOCK = 20, ALL_OPEN = 12, FEW_OPEN = 2;

// One rollout: its summary, and its turns, of which those that are looked at are drawn.
class RolloutView {
  constructor(root, group, {onPick, onTurn, hasColors = true}) {
    Object.assign(this, {root, group, onPick, onTurn, hasColors, place: null, mode: "none", turn: null, errors: [], found: []});
    // It may tell of blocks that another rollout has replaced meanwhile.
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const block = entry.isIntersecting && this.blocks.find((one) => one.element === entry.target);
        if (block) this.draw(block);
      }
    }, {rootMargin: "300px"});
  }

  get num() {
    return this.place === null ? 0 : this.group.rollouts[this.place].turns.length;
  }

  show(place, mode) {
    Object.assign(this, {place, mode, turn: null, found: [], fills: []});
    const {group, fills} = this, one = group.rollouts[place];
    const heads = Array.from({length: this.num}, (_, number_) => group.head(place, number_));
    this.errors = heads.flatMap((head, number_) => head.errors ? [number_] : []);
    this.blocks = [];
    for (let begin = 0; begin < this.num; begin += BLOCK) {
      const element = make("div", {class: "block"});
      element.style.minHeight = `${34 * Math.min(BLOCK, this.num - begin)}px`;
      this.blocks.push({begin, element, isDrawn: false});
    }
    this.root.replaceChildren(summaryOf(group, place), this.hasColors ? switchOf(group, place, mode) : "", this.outline(), ...this.blocks.map((block) => block.element));
    this.seen.disconnect();
    for (const block of this.blocks) this.seen.observe(block.element);
    if (this.blocks.length) this.draw(this.blocks[0]);
    else this.root.append(make("p", {class: "notes"}, "This rollout has no turns."));
    if (one.rest !== null) {
      group.part(one.rest).then((rest) => this.fills === fills && this.root.append(
        make("div", {class: "turn rest"}, make("h3", {}, "After the last turn"), rest.map(message))));
    }
  }

  // What long rollouts are gone through with: errors, a search, and the turns by twenties.
  outline() {
    const {errors} = this;
    const search = make("input", {type: "search", class: "find", placeholder: "find in the text", "aria-label": "Find in the text of this rollout",
      onchange: () => this.find(search.value)});
    this.told = make("span", {class: "status", role: "status"});
    const jumps = this.blocks.length > 1 ? this.blocks.map(({begin}) => {
      const end = Math.min(begin + BLOCK, this.num);
      const bad = errors.filter((turn) => turn >= begin && turn < end).length;
      return make("button", {type: "button", class: "jump", "data-jump": begin, onclick: () => this.go(begin)},
        `${begin + 1}–${end}`, bad ? make("b", {class: "alert"}, ` ✗${bad}`) : null);
    }) : [];
    return make("nav", {class: "outline", "aria-label": "Turns"},
      make("span", {}, count(this.num, "turn")),
      errors.length ? make("button", {type: "button", class: "button", "data-first-error": "", onclick: () => this.go(errors[0])},
        `first error: turn ${errors[0] + 1}`) : make("span", {}, "no tool errors"),
      errors.length > 1 ? make("span", {}, `${errors.length} turns with errors`) : null,
      make("button", {type: "button", class: "button", "data-open-all": "", onclick: () => this.openAll()}, "open or close all"),
      search, this.told, jumps.length ? make("span", {class: "jumps"}, jumps) : null);
  }

  draw(block) {
    if (block.isDrawn) return;
    block.isDrawn = true;
    block.element.style.minHeight = "";
    const end = Math.min(block.begin + BLOCK, this.num);
    for (let turn = block.begin; turn < end; turn += 1) {
      const head = this.group.head(this.place, turn);
      const element = make("details", {class: "turn", id: `${this.root.id}-turn-${turn + 1}`, "data-turn": turn},
        make("summary", {}, make("h3", {}, `Turn ${turn + 1}`),
          make("span", {class: "line"}, [head.branch ? `branch: ${words(head.branch)}` : "", head.line].filter(Boolean).join(" · ")),
          head.calls ? make("span", {class: "badge"}, head.calls > 1 ? `${head.names} · ${head.calls} calls` : head.names) : null,
          head.errors ? make("span", {class: "badge failed"}, `✗ ${count(head.errors, "error")}`) : null));
      // It comes late: another rollout may be shown by then.
      element.addEventListener("toggle", () => element.open && element.isConnected && this.fill(element, turn));
      block.element.append(element);
      element.open = this.isAllOpen ?? (this.num <= ALL_OPEN || turn < FEW_OPEN);
      if (element.open) this.fill(element, turn);
    }
  }

  // Draws what is in a turn, once.
  fill(element, turn) {
    const {place, mode} = this;
    this.fills[turn] ??= this.group.turn(place, turn).then((played) =>
      element.append(...turnBody(this.group, place, played, turn, mode, this.onPick)));
    return this.fills[turn];
  }

  element(turn) {
    return this.root.querySelector(`[data-turn="${turn}"]`);
  }

  // Opens a turn and brings it into view.
  async go(turn, isTold = true) {
    if (!this.num) return;
    turn = Math.min(this.num - 1, Math.max(0, turn));
    this.draw(this.blocks[Math.floor(turn / BLOCK)]);
    this.root.querySelector(".turn.here")?.classList.remove("here");
    const element = this.element(turn);
    this.turn = turn;
    element.classList.add("here");
    element.open = true;
    this.fill(element, turn);
    await Promise.all(this.fills.filter((_, at) => at <= turn));
    if (!element.isConnected) return;  // another rollout is shown
    element.scrollIntoView({block: "start"});
    element.querySelector("summary").focus({preventScroll: true});
    hideTip();
    if (isTold) this.onTurn(turn);
  }

  step(by) {
    this.go(this.turn === null ? (by > 0 ? 0 : this.num - 1) : this.turn + by);
  }

  // Goes to the next of some turns, and round.
  next(turns, by) {
    if (!turns.length) return;
    const at = this.turn ?? (by > 0 ? -1 : this.num);
    const on = by > 0 ? turns.find((turn) => turn > at) : turns.findLast((turn) => turn < at);
    this.go(on ?? turns.at(by > 0 ? 0 : -1));
  }

  toggle() {
    const element = this.element(this.turn ?? 0);
    if (element) element.open = !element.open;
  }

  openAll() {
    const all = [...this.root.querySelectorAll("details.turn")];
    this.isAllOpen = all.some((element) => !element.open);
    for (const element of all) element.open = this.isAllOpen;
  }

  async find(text) {
    const wanted = text.trim().toLowerCase(), {fills, num, place} = this, found = [];
    for (let turn = 0; wanted && turn < num; turn += 1) {
      const played = await this.group.turn(place, turn);
      const texts = [played.content, played.reasoning, ...played.given.map((one) => one[2]), ...played.lanes.rows.flatMap((row) => [row.arguments, row.output])];
      if (texts.some(([own]) => own.toLowerCase().includes(wanted))) found.push(turn);
    }
    if (this.fills !== fills) return;  // another rollout is shown
    this.found = found;
    this.told.textContent = wanted ? `in ${count(this.found.length, "turn")}${this.found.length > 1 ? "; n and N go on" : ""}` : "";
    if (this.found.length) this.next(this.found, 1);
  }
}

function switchOf(group, place, mode) {
  if (!group.hasTokens) return "";
  const has = {none: true, advantage: group.rollouts[place].advantage !== null, logprob: true, surprise: true};
  const {says, low, high, css} = MODES[mode];
  return make("div", {class: "switch", role: "toolbar", "aria-label": "Colour tokens by"},
    make("span", {class: "label"}, "Colour tokens by"),
    make("span", {class: "segments"}, Object.entries(MODES).map(([key, {name}]) => make("button", {
      type: "button", "data-mode": key, "aria-pressed": String(key === mode), disabled: !has[key],
    }, name))),
    make("span", {class: "scale"}, css ? [make("i", {}, low), make("span", {class: `ramp ${css}`}), make("i", {}, high)] : [], make("small", {}, says)));
}
