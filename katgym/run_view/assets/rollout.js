// One rollout: what it earned, then turn by turn what was said, called and answered.

const MAX_FOLDED = 900;

function fold(text, css) {
  const [shown, numLeft] = text;
  const left = numLeft ? make("em", {class: "left"}, `${count(numLeft, "character")} left out`) : null;
  const body = make("div", {class: `text ${css}`}, shown);
  if (shown.length <= MAX_FOLDED && shown.split("\n").length <= 14) return [body, left];
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
      .map(([name, entry]) => `${name}=${typeof entry === "string" ? JSON.stringify(entry) : JSON.stringify(entry)}`)
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
    make("span", {class: `badge ${one.status}`}, one.status),
    one.failure ? make("span", {class: "badge failed"}, one.failure.replaceAll("_", " ")) : null,
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
    make("h2", {}, `Rollout ${one.label}`), reward,
    one.reason ? make("p", {class: "why"}, one.reason) : null,
    make("div", {class: "columns"}, components,
      make("dl", {class: "facts"}, one.facts.map(([name, value]) =>
        make("div", {}, make("dt", {}, name), make("dd", {}, value))))));
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
  if (isTimed && call.end !== null && call.end !== undefined) {
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
    make("span", {class: "took"}, call.error ? make("em", {class: "bad"}, call.error.replaceAll("_", " ")) : isTimed ? seconds(call.end - call.start) : ""));
  line.addEventListener("pointermove", (event) => showTip(event, [
    call.name,
    isTimed && call.end !== undefined ? ["stage", String(call.stage + 1)] : null,
    isTimed && call.end !== undefined ? ["waited", seconds(call.start - call.called)] : null,
    isTimed && call.end !== undefined ? ["ran", `${seconds(call.start)} to ${seconds(call.end)}`] : null,
    call.error ? ["error", call.error] : null,
  ]));
  line.addEventListener("pointerleave", hideTip);
  return make("details", {class: "lane"}, line,
    call.arguments[0].length > 60 ? make("div", {class: "text args"}, call.arguments[0]) : null,
    make("div", {class: "output"},
      call.output[0] ? fold(call.output, "") : make("span", {class: "nothing"}, "(no text in the rollout’s messages)"),
      call.omitted ? make("em", {class: "left"}, `${count(call.omitted, "byte")} left out before the policy read it`) : null));
}

function answer(group, place, number_, mode, onPick) {
  const played = group.rollouts[place].turns[number_];
  const strip = mode !== "none" && played.ids.length ? tokenStrip(group, place, number_, mode, onPick) : null;
  if (strip && group.texts) return [strip];
  const said = played.answer;
  const parts = [];
  if (said.reasoning[0]) parts.push(make("details", {class: "thought"}, make("summary", {}, "reasoning"), fold(said.reasoning, "")));
  if (said.content[0]) parts.push(fold(said.content, ""));
  const names = [...new Set(said.calls.map(([name]) => name))];
  const told = names.map((name) => `${name}${said.calls.filter((call) => call[0] === name).length > 1
    ? ` ×${said.calls.filter((call) => call[0] === name).length}` : ""}`);
  if (!parts.length) {
    parts.push(make("div", {class: "text nothing"}, told.length ? `calls ${told.join(", ")}` : "(empty answer)"));
  }
  return [...parts.flat(), strip];
}

function turnBlock(group, place, number_, mode, onPick) {
  const played = group.rollouts[place].turns[number_];
  const known = played.logprobs.filter((value) => value !== null);
  const told = [
    played.num_sampled ? count(played.num_sampled, "token") : null,
    known.length ? `mean log-prob ${number(known.reduce((a, b) => a + b, 0) / known.length, 2)}` : null,
    played.num_prompt ? `prompt ${played.num_prompt.toLocaleString("en")}` : null,
    played.versions.length ? `version ${[...new Set(played.versions.map(([version]) => version))].join(", ")}` : null,
    played.seconds > 0 ? seconds(played.seconds) : null,
    played.finish === "stop" ? null : played.finish,
  ].filter(Boolean).join(" · ");
  const branch = played.branch ? make("p", {class: "branch"}, make("b", {}, `branch: ${played.branch.replaceAll("_", " ")}`),
    played.parent === null ? "" : ` shares ${count(played.num_shared, "token")} with turn ${played.parent + 1}, then goes on from other messages`) : null;
  return make("article", {class: "turn", id: `turn-${number_ + 1}`, "data-turn": number_},
    make("header", {}, make("h3", {}, `Turn ${number_ + 1}`), make("span", {}, told)),
    branch, played.given.map(message),
    make("div", {class: "message assistant"}, make("div", {class: "role"}, "assistant"),
      make("div", {}, answer(group, place, number_, mode, onPick))),
    lanes(played));
}

function showRollout(root, group, place, mode, onPick) {
  const one = group.rollouts[place];
  root.replaceChildren(summaryOf(group, place), switchOf(group, place, mode),
    ...one.turns.map((_, number_) => turnBlock(group, place, number_, mode, onPick)),
    ...(one.rest.length ? [make("article", {class: "turn"}, make("header", {}, make("h3", {}, "After the last turn")), one.rest.map(message))] : []),
    ...(one.turns.length ? [] : [make("p", {class: "notes"}, "This rollout has no turns.")]));
}

function switchOf(group, place, mode) {
  const turns = group.rollouts[place].turns;
  const hasTokens = turns.some((played) => played.ids.length);
  if (!hasTokens) return "";
  const has = {none: true, advantage: group.rollouts[place].advantage !== null};
  has.logprob = has.surprise = turns.some((played) => played.logprobs.length);
  const {says, low, high, css} = MODES[mode];
  return make("div", {class: "switch", role: "toolbar", "aria-label": "Colour tokens by"},
    make("span", {class: "label"}, "Colour tokens by"),
    make("span", {class: "segments"}, Object.entries(MODES).map(([key, {name}]) => make("button", {
      type: "button", "data-mode": key, "aria-pressed": String(key === mode), disabled: !has[key],
    }, name))),
    make("span", {class: "scale"}, css ? [make("i", {}, low), make("span", {class: `ramp ${css}`}), make("i", {}, high)] : [], make("small", {}, says)));
}
