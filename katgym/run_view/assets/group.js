// Ties tree, siblings and rollout together; the address holds what is shown: #r=3&t=2&c=logprob.

const group = JSON.parse(document.getElementById("data").textContent);
const root = document.getElementById("rollout");
const place = document.getElementById("tree");
let shown = null;

function wanted() {
  const told = new URLSearchParams(location.hash.slice(1));
  const within = (text, num) => Math.min(num - 1, Math.max(0, (Number(text) || 1) - 1));
  const rollout = within(told.get("r"), group.rollouts.length);
  const hasTokens = group.rollouts[rollout].turns.some((played) => played.ids.length);
  const color = told.get("c");
  return {
    rollout,
    turn: told.has("t") ? within(told.get("t"), Math.max(1, group.rollouts[rollout].turns.length)) : null,
    mode: hasTokens && color in MODES ? color : "none",
  };
}

function go(rollout, turn, mode) {
  const told = new URLSearchParams({r: rollout + 1});
  if (turn !== null) told.set("t", turn + 1);
  if (mode !== "none") told.set("c", mode);
  const hash = `#${told}`;
  if (hash === location.hash) show();
  else location.hash = hash;
}

// Shows a vertex: in the rollout that is read if it runs through it, else in the first that does.
function pick(vertex) {
  const rollout = vertex.rollouts.includes(shown.rollout) ? shown.rollout : vertex.rollouts[0];
  const ends = group.tree.vertices.filter((one) => one.rollouts.includes(rollout) && one.depth >= vertex.depth);
  const own = vertex.turns.find((turn) => turn[0] === rollout)
    || ends.flatMap((one) => one.turns).find((turn) => turn[0] === rollout && turn[1] + 1 > vertex.depth);
  go(rollout, own ? own[1] : null, shown.mode);
}

const plot = group.tree.vertices.length > 1 ? drawTree(group, place.clientWidth || 360, pick) : null;
if (plot) {
  place.append(plot);
  document.getElementById("forks").append(...listForks(group, pick));
} else {
  place.append(make("p", {class: "nothing"}, "There is no turn to draw."));
}

function show() {
  const next = wanted();
  if (!shown || next.rollout !== shown.rollout || next.mode !== shown.mode) {
    showRollout(root, group, next.rollout, next.mode, pick);
  }
  shown = next;
  for (const link of document.querySelectorAll("[data-rollout]")) {
    const isHere = Number(link.dataset.rollout) === next.rollout;
    link.toggleAttribute("aria-current", isHere);
  }
  if (plot) {
    markTree(plot, group, next.rollout, next.turn);
    bringTurn(plot, next.turn);
  }
  for (const block of root.querySelectorAll(".turn")) {
    block.classList.toggle("here", Number(block.dataset.turn) === next.turn);
  }
  if (next.turn !== null) document.getElementById(`turn-${next.turn + 1}`)?.scrollIntoView({block: "start"});
}

for (const link of document.querySelectorAll("[data-rollout]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    go(Number(link.dataset.rollout), null, shown.mode);
  });
}
root.addEventListener("click", (event) => {
  const button = event.target.closest("[data-mode]");
  if (!button) return;
  const told = new URLSearchParams(location.hash.slice(1));
  const before = scrollY;
  go(shown.rollout, null, button.dataset.mode);
  history.replaceState(null, "", location.hash);
  requestAnimationFrame(() => {
    if (!told.has("t")) scrollTo(0, before);
    root.querySelector(`[data-mode="${button.dataset.mode}"]`)?.focus({preventScroll: true});
  });
});
addEventListener("hashchange", show);
show();
