// The tree of a group: answers as dots in rows, from the prompt at the top; colours are mean rewards.

const ROW = 44;
const PAD = {left: 46, top: 16, bottom: 40, right: 14};

function names(places) {
  const shown = places.slice(0, 12).map((place) => place + 1).join(", ");
  return places.length > 12 ? `${shown}, ...` : shown;
}

const DRAWN_FIRST = 18, ROWS_MORE = 6;

// onPick(vertex) is called for a dot that is chosen. `drawRows` of the answer draws rows that are not yet.
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
  const lines = draw("g", {}), edges = draw("g", {}), labels = draw("g", {}), dots = draw("g", {});
  const isInner = new Set(tree.vertices.map((vertex) => vertex.parent));
  const order = tree.vertices.map((_, index) => index).sort((a, b) => tree.vertices[a].y - tree.vertices[b].y);
  let num = 0, numRows = 0;
  plot.append(lines, edges, labels, dots);
  plot.drawRows = (until) => {
    for (; numRows < tree.rows.length && tree.rows[numRows] <= until; numRows += 1) {
      const at = PAD.top + tree.rows[numRows] * ROW;
      lines.append(draw("line", {class: "row", x1: PAD.left - 4, x2: size[0], y1: at, y2: at}),
        draw("text", {class: "rowname", x: 0, y: at + 4}, numRows ? `turn ${numRows}` : "prompt"));
    }
    for (; num < order.length && tree.vertices[order[num]].y <= until; num += 1) drawVertex(order[num]);
    plot.drawn = until;
  };
  plot.drawRows(order.length > DRAWN_FIRST ? tree.vertices[order[DRAWN_FIRST]].y - 0.5 : Infinity);
  return plot;

  function drawVertex(index) {
    const vertex = tree.vertices[index];
    const own = {"data-vertex": index, shade: shadeOf(vertex.value, range)};
    const css = vertex.value === null ? "unknown" : "";
    if (vertex.parent !== null) edges.append(edge(vertex, tree.vertices[vertex.parent], own, css));
    if (vertex.cause === "branch") {
      const isRight = x(vertex) > size[0] - 72;
      labels.append(draw("text", {
        class: "reason", x: x(vertex) + (isRight ? -8 : 8), y: y(vertex) - 17, "data-vertex": index,
        "text-anchor": isRight ? "end" : "start",
      }, words(vertex.reason)));
    }
    dots.append(dot(vertex, index, own, css));
    if (!isInner.has(index) && vertex.turns.length) labels.append(leaf(vertex, index));
  }

  function edge(vertex, parent, own, css) {
    const [x1, y1, x2, y2] = [x(parent), y(parent), x(vertex), y(vertex)];
    const middle = (y1 + y2) / 2;
    const path = draw("path", {
      ...own, class: `edge ${css} ${vertex.cause}`,
      d: x1 === x2 ? `M${x1} ${y1}V${y2}` : `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`,
      "stroke-width": (1.6 + 5 * Math.sqrt(vertex.rollouts.length / rollouts.length)).toFixed(1),
    });
    explain(path, () => about(vertex));
    return path;
  }

  function dot(vertex, index, own, css) {
    const [turn] = vertex.turns;
    if (!turn) {
      const mark = draw("circle", {...own, tabindex: -1, role: "img", "aria-label": about(vertex).filter(Boolean).flat().join(" "), class: `fork ${css}`, cx: x(vertex), cy: y(vertex), r: index ? 3.2 : 4.5});
      explain(mark, () => about(vertex));
      return mark;
    }
    const head = group.head(turn[0], turn[1]);
    const radius = Math.min(lane / 2.4, 5 + Math.min(3.5, Math.sqrt(head.sampled) / 5));
    const at = (place) => x(vertex) + radius + 3 + 2.6 * place;
    const calls = Array.from({length: Math.min(6, head.calls)}, (_, place) => `M${at(place).toFixed(1)} ${y(vertex) - 3.5}v7`);
    const link = draw("a", {
      ...own, href: group.link(turn[0], turn[1]), class: `node ${css}`, tabindex: -1,
      "aria-label": about(vertex).filter(Boolean).flat().join(" "),
    },
    draw("circle", {class: "hit", cx: x(vertex), cy: y(vertex), r: 12}),
    draw("circle", {class: "dot", cx: x(vertex), cy: y(vertex), r: radius.toFixed(1)}),
    calls.length ? draw("path", {class: "call", d: calls.join("")}) : null);
    explain(link, () => about(vertex));
    link.addEventListener("click", (event) => {
      event.preventDefault();
      onPick(vertex);
    });
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
    const head = turn ? group.head(turn[0], turn[1]) : null;
    return [
      vertex.parent === null ? "where all begin"
        : head ? `end of turn ${turn[1] + 1}` : "paths part here",
      ["rollouts", names(vertex.rollouts)],
      ["mean reward", number(vertex.value)],
      vertex.advantage === null ? null : ["mean advantage", signed(vertex.advantage)],
      vertex.num ? [`shared since the fork above`, count(vertex.num, unit)] : null,
      vertex.reason ? ["branch", words(vertex.reason)] : null,
      head && head.calls ? ["tool calls", String(head.calls)] : null,
    ];
  }
}

// Draws the tree as far as a turn, and brings it into view.
function bringTurn(plot, group, rollout, turn) {
  const {tree} = group;
  const vertex = turn === null ? null : tree.vertices.find((one) => one.turns.some((t) => t[0] === rollout && t[1] === turn));
  if (vertex && vertex.y > plot.drawn) plot.drawRows(vertex.y + ROWS_MORE);
  markTree(plot, group, rollout, turn);
  const place = plot.parentElement;
  const here = plot.querySelector(turn === null ? ".node:not(.off) .dot" : ".node.here .dot");
  if (here && place.scrollWidth > place.clientWidth) {
    place.scrollLeft = Number(here.getAttribute("cx")) - place.clientWidth / 2;
  }
  const frame = place.closest("aside");
  if (vertex && here && frame.scrollHeight > frame.clientHeight) {
    frame.scrollTop = Number(here.getAttribute("cy")) + place.offsetTop - frame.clientHeight / 2;
  }
}

// Arrow keys go from a vertex to the one above, below and beside it; the tree is one stop of Tab.
function walkTree(plot, group) {
  const {vertices} = group.tree;
  plot.setAttribute("tabindex", "0");
  plot.addEventListener("keydown", (event) => {
    const inside = event.target.closest("[data-vertex]");
    const index = inside ? Number(inside.dataset.vertex) : null;
    const one = index === null ? null : vertices[index];
    const beside = (by) => {
      const row = vertices.map((vertex, at) => [vertex, at]).filter(([vertex]) => Math.abs(vertex.y - one.y) < 0.5).sort((a, b) => a[0].x - b[0].x);
      return row[row.findIndex(([, at]) => at === index) + by]?.[1];
    };
    const goal = {
      ArrowDown: () => one ? vertices.findIndex((vertex) => vertex.parent === index) : 0,
      ArrowUp: () => one?.parent, ArrowLeft: () => one && beside(-1), ArrowRight: () => one && beside(1),
    }[event.key];
    if (!goal) return;
    event.preventDefault();
    const next = vertices[goal() ?? -1];
    if (!next) return;
    if (next.y > plot.drawn) plot.drawRows(next.y + ROWS_MORE);
    plot.querySelector(`.node[data-vertex="${vertices.indexOf(next)}"], .fork[data-vertex="${vertices.indexOf(next)}"]`).focus();
  });
}

// Draws more rows when the tree's end comes into view.
function growTree(plot, group, frame, retell) {
  const grow = (room = 200) => {
    const seen = Math.min(frame.getBoundingClientRect().bottom, innerHeight) + room - plot.getBoundingClientRect().top;
    if (plot.drawn >= group.tree.height || plot.drawn * ROW >= seen) return;
    plot.drawRows(seen / ROW + ROWS_MORE);
    retell();
  };
  frame.addEventListener("scroll", () => grow(), {passive: true});
  addEventListener("scroll", () => grow(), {passive: true});
  requestAnimationFrame(() => grow(0));
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
      make("span", {class: "says"}, way.cause === "branch" ? `branch: ${words(way.reason)}` : visible(way.text)),
      make("span", {class: "num"}, `${way.rollouts.length}× ${number(way.value, 2)}`))));
  });
}

function visible(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥");
}
