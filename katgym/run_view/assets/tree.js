// The tree of a group: answers as dots in rows, from the prompt at the top; colours are mean rewards.

const ROW = 44;
const PAD = {left: 46, top: 16, bottom: 40, right: 14};

function shadeOf(value, range) {
  if (value === null || value === undefined) return null;
  const share = range[1] > range[0] ? (value - range[0]) / (range[1] - range[0]) : 1;
  return `${Math.round(100 * Math.min(1, Math.max(0, share)))}%`;
}

function names(places) {
  const shown = places.slice(0, 12).map((place) => place + 1).join(", ");
  return places.length > 12 ? `${shown}, ...` : shown;
}

// onPick(rollout, turn) is called for a dot that is chosen.
function drawTree(group, width, onPick) {
  const {tree, rollouts, range} = group;
  const lane = Math.min(60, Math.max(11, (width - PAD.left - PAD.right) / Math.max(1, tree.lanes)));
  const left = PAD.left + lane / 2;
  const x = (vertex) => left + vertex.x * lane;
  const y = (vertex) => PAD.top + vertex.y * ROW;
  const size = [left + (tree.lanes - 0.5) * lane + PAD.right, PAD.top + tree.height * ROW + PAD.bottom];
  const plot = draw("svg", {
    class: lane < 20 ? "tree dense" : "tree", width: size[0], height: size[1], viewBox: `0 0 ${size[0]} ${size[1]}`,
    role: "group", "aria-label": "token tree",
  });
  tree.rows.forEach((row, depth) => {
    const at = PAD.top + row * ROW;
    plot.append(
      draw("line", {class: "row", x1: PAD.left - 4, x2: size[0], y1: at, y2: at}),
      draw("text", {class: "rowname", x: 0, y: at + 4}, depth ? `turn ${depth}` : "prompt"),
    );
  });
  const edges = draw("g", {}), labels = draw("g", {}), dots = draw("g", {});
  const isInner = new Set(tree.vertices.map((vertex) => vertex.parent));
  tree.vertices.forEach((vertex, index) => {
    const own = {"data-vertex": index, shade: shadeOf(vertex.value, range)};
    const css = vertex.value === null ? "unknown" : "";
    if (vertex.parent !== null) edges.append(edge(vertex, tree.vertices[vertex.parent], own, css));
    if (vertex.cause === "branch") {
      const isRight = x(vertex) > size[0] - 72;
      labels.append(draw("text", {
        class: "reason", x: x(vertex) + (isRight ? -8 : 8), y: y(vertex) - 17, "data-vertex": index,
        "text-anchor": isRight ? "end" : "start",
      }, vertex.reason.replaceAll("_", " ")));
    }
    dots.append(dot(vertex, index, own, css));
    if (!isInner.has(index) && vertex.turns.length) labels.append(leaf(vertex, index));
  });
  plot.append(edges, labels, dots);
  return plot;

  function edge(vertex, parent, own, css) {
    const [x1, y1, x2, y2] = [x(parent), y(parent), x(vertex), y(vertex)];
    const middle = (y1 + y2) / 2;
    const path = draw("path", {
      ...own, class: `edge ${css} ${vertex.cause}`,
      d: x1 === x2 ? `M${x1} ${y1}V${y2}` : `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`,
      "stroke-width": (1.6 + 5 * Math.sqrt(vertex.rollouts.length / rollouts.length)).toFixed(1),
    });
    path.addEventListener("pointermove", (event) => showTip(event, about(vertex)));
    path.addEventListener("pointerleave", hideTip);
    return path;
  }

  function dot(vertex, index, own, css) {
    const [turn] = vertex.turns;
    if (!turn) {
      const mark = draw("circle", {...own, class: `fork ${css}`, cx: x(vertex), cy: y(vertex), r: index ? 3.2 : 4.5});
      mark.addEventListener("pointermove", (event) => showTip(event, about(vertex)));
      mark.addEventListener("pointerleave", hideTip);
      return mark;
    }
    const played = rollouts[turn[0]].turns[turn[1]];
    const radius = Math.min(lane / 2.4, 5 + Math.min(3.5, Math.sqrt(played.num_sampled) / 5));
    const calls = Math.min(6, played.lanes.rows.length);
    const link = draw("a", {
      ...own, href: `#r=${turn[0] + 1}&t=${turn[1] + 1}`, class: `node ${css}`,
      "aria-label": about(vertex).flat().join(" "),
    },
    draw("circle", {class: "hit", cx: x(vertex), cy: y(vertex), r: 12}),
    draw("circle", {class: "dot", cx: x(vertex), cy: y(vertex), r: radius.toFixed(1)}),
    Array.from({length: calls}, (_, place) => draw("line", {
      class: "call", x1: x(vertex) + radius + 3 + 2.6 * place, x2: x(vertex) + radius + 3 + 2.6 * place,
      y1: y(vertex) - 3.5, y2: y(vertex) + 3.5,
    })));
    link.addEventListener("click", (event) => {
      event.preventDefault();
      onPick(vertex);
    });
    link.addEventListener("pointermove", (event) => showTip(event, about(vertex)));
    link.addEventListener("pointerleave", hideTip);
    return link;
  }

  function leaf(vertex, index) {
    const told = names(vertex.rollouts);
    return draw("text", {class: "leaf", x: x(vertex), y: y(vertex) + 22, "text-anchor": "middle", "data-vertex": index},
      draw("tspan", {class: "who", x: x(vertex)}, told),
      draw("tspan", {x: x(vertex), dy: 12}, vertex.value === null ? "invalid" : number(vertex.value, 2)));
  }

  function about(vertex) {
    const unit = tree.tokens ? "token" : "message";
    const [turn] = vertex.turns;
    const played = turn ? rollouts[turn[0]].turns[turn[1]] : null;
    return [
      vertex.parent === null ? "where all begin"
        : played ? `end of turn ${turn[1] + 1}` : "paths part here",
      ["rollouts", names(vertex.rollouts)],
      ["mean reward", number(vertex.value)],
      vertex.advantage === null ? null : ["mean advantage", signed(vertex.advantage)],
      vertex.num ? [`shared since the fork above`, count(vertex.num, unit)] : null,
      vertex.reason ? ["branch", vertex.reason.replaceAll("_", " ")] : null,
      played && played.lanes.rows.length ? ["tool calls", String(played.lanes.rows.length)] : null,
    ];
  }
}

// In a tree that is wider than its place, brings a turn into view.
function bringTurn(plot, turn) {
  const place = plot.parentElement;
  const here = plot.querySelector(turn === null ? ".node:not(.off) .dot" : ".node.here .dot");
  if (here && place.scrollWidth > place.clientWidth) {
    place.scrollLeft = Number(here.getAttribute("cx")) - place.clientWidth / 2;
  }
}

// Shows which part of the tree a rollout runs through, and where the turn that is read ends.
function markTree(plot, group, rollout, turn) {
  for (const part of plot.querySelectorAll("[data-vertex]")) {
    const vertex = group.tree.vertices[part.dataset.vertex];
    part.classList.toggle("off", !vertex.rollouts.includes(rollout));
    part.classList.toggle("here", vertex.turns.some((t) => t[0] === rollout && t[1] === turn));
  }
}

// Where paths part, as a list: each way on with its text, its rollouts and their mean reward.
function listForks(group, onPick) {
  return group.tree.forks.slice(0, 40).map((fork) => {
    const branch = fork.ways.map((way) => group.tree.vertices[way.vertex]).find((way) => way.cause === "branch");
    const place = branch && branch.turns.length ? `rollout ${branch.turns[0][0] + 1} branches off at turn ${branch.turns[0][1] + 1}`
      : fork.turn === null ? "before the first turn"
      : fork.offset === null ? `turn ${fork.turn + 1}, in what it was given`
        : !group.tree.tokens ? `turn ${fork.turn + 1}`
          : fork.offset ? `turn ${fork.turn + 1}, after ${count(fork.offset, "token")} of the answer`
            : `turn ${fork.turn + 1}, from the first token`;
    const ways = fork.ways.map((way) => ({...way, ...group.tree.vertices[way.vertex]}))
      .sort((a, b) => b.rollouts.length - a.rollouts.length || (b.value ?? -1) - (a.value ?? -1));
    return make("li", {"data-fork": fork.vertex},
      make("div", {class: "where"}, place),
      ways.map((way) => make("button", {
        type: "button", class: "way", "data-vertex": way.vertex, onclick: () => onPick(way),
      },
      make("span", {class: `swatch ${way.value === null ? "invalid" : "reward"}`, shade: shadeOf(way.value, group.range)}),
      make("span", {class: "says"}, way.cause === "branch" ? `branch: ${way.reason.replaceAll("_", " ")}` : visible(way.text)),
      make("span", {class: "num"}, `${way.rollouts.length}× ${number(way.value, 2)}`))));
  });
}

function visible(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥");
}
