"""A game of thrown fruit that is cut with the mouse: score, lives, bombs, an end."""

from __future__ import annotations

import json
import math

import numpy as np

from katgym_plugin_web.family import BACKGROUNDS, COLOURS, Family, Parameters, page, pick, whole
from katgym_plugin_web.judging import Expected, Script
from katgym_plugin_web.pixels import Scene
from katgym_plugin_web.tab import FRAME_MS

_CUT = 70
"""Half the length of a cut, in pixels."""


class Fruit(Family):
    """Throws by a list, so that every moment is known."""

    name = "fruit"

    def draw(self, rng: np.random.Generator) -> Parameters:
        width, height, items, at = whole(rng, 260, 340, 20), 240, [], 0
        gravity = whole(rng, 20, 32, 4) / 100_000
        for _ in range(whole(rng, 6, 8)):
            at += whole(rng, 200, 500, 50)
            top = whole(rng, 120, 200, 10)
            items.append(
                {
                    "at": at,
                    "x": whole(rng, 60, width - 60, 10),
                    "vx": whole(rng, -3, 3) / 100,
                    "vy": round(math.sqrt(2 * gravity * top), 3),
                    "radius": whole(rng, 14, 20, 2),
                    "is_bomb": bool(rng.integers(4) == 0),
                }
            )
        fruit, bomb = pick(rng, COLOURS, 2)
        return {
            "fruit": fruit,
            "bomb": bomb,
            "background": pick(rng, BACKGROUNDS)[0],
            "width": width,
            "height": height,
            "gravity": gravity,
            "lives": whole(rng, 2, 4),
            "points": whole(rng, 1, 5),
            "items": items,
        }

    def prompt(self, p: Parameters) -> str:
        lines = "\n".join(
            f"  {i}. {'bomb' if b['is_bomb'] else 'fruit'}, at {b['at']} ms, x0 = {b['x']},"
            f" vx = {b['vx']}, vy = {b['vy']}, radius {b['radius']}"
            for i, b in enumerate(p["items"])
        )
        return f"""Write a page with a game of cutting fruit.

- A picture of {p["width"]} x {p["height"]} pixels, background {p["background"]}, empty at first. \
A button `Play` begins the game, at t = 0 ms. Items are thrown by this list, counted from 0:
{lines}
- s ms after it was thrown, an item's centre is at x = x0 + vx s, \
y = {p["height"]} - vy s + {p["gravity"]:g} s^2 / 2. Items are discs, fruit {p["fruit"]}, bombs \
{p["bomb"]}, painted in the order of the list.
- Cutting: while the main mouse button is down and the mouse moves over the picture, an item is \
cut if the straight line from the mouse's place before to its place now comes closer to its centre \
than its radius. It vanishes. A cut fruit earns {p["points"]} points, a cut bomb costs a life.
- An item that was not cut vanishes when it falls again below y = {p["height"]}; a fruit then \
costs a life, a bomb nothing. The game begins with {p["lives"]} lives. With none left the game is \
over: the picture is empty and nothing counts any more.
- An element with role `status` reads `Score S, lives L`, with `Score 0, lives {p["lives"]}` at \
first, and `Game over, score S` when it is over.
- `state()`: `{{score: points, lives: lives, over: true or false, items: list of [number, x, y] of \
the items in the air, in the order of the list}}`."""

    def solution(self, p: Parameters) -> str:
        body = (
            f'<canvas id="field" width="{p["width"]}" height="{p["height"]}" role="img"'
            ' aria-label="Fruit"></canvas>\n<button id="start">Play</button>\n'
            f'<p id="told" role="status">Score 0, lives {p["lives"]}</p>'
        )
        return page(body, _SCRIPT.replace("PARAMETERS", json.dumps(p)), "Fruit")

    def script(self, p: Parameters, rng: np.random.Generator) -> Script:
        script = Script(size=(p["width"] + 20, p["height"] + 90))
        script.wait_until(script.now_ms + whole(rng, 20, 300, 10))
        script.look(FruitGame(p).expect())
        script.add("click", "button", "Play")
        game, begin = FruitGame(p), script.now_ms
        for _ in range(whole(rng, 4, 6)):
            t = script.now_ms - begin + whole(rng, 250, 550, 10)
            while game.is_unclear(t) or game.is_unclear(t + FRAME_MS):
                t += 10
            script.wait_until(begin + t)
            game.advance(t)
            cuts = game.cuts()
            if cuts:
                left, right = cuts[int(rng.integers(len(cuts)))]
                script.add("drag", left, right)
                script.now_ms += FRAME_MS
                game.cut(left, right)
                game.advance(t + FRAME_MS)
            t = script.now_ms - begin + 60
            while game.is_unclear(t):
                t += 10
            script.wait_until(begin + t)
            game.advance(t)
            script.look(game.expect())
        return script


class FruitGame:
    """The game as it should go."""

    def __init__(self, p: Parameters) -> None:
        self.p, self.t, self.score, self.lives = p, -1, 0, p["lives"]
        self.gone: set[int] = set()

    def lands(self, item: Parameters) -> float:
        """Return when an item falls."""
        return float(item["at"] + 2 * item["vy"] / self.p["gravity"])

    def is_unclear(self, t: int) -> bool:
        """Return whether a tenth of a ms could decide what is in the air."""
        times = [f(item) for item in self.p["items"] for f in (lambda i: i["at"], self.lands)]
        return any(abs(t - time) < 5 for time in times)

    def advance(self, t: int) -> None:
        """Let time pass."""
        self.t = t
        for i, item in sorted(enumerate(self.p["items"]), key=lambda pair: self.lands(pair[1])):
            if i not in self.gone and self.lands(item) < t and self.lives:
                self.gone.add(i)
                self.lives -= not item["is_bomb"]

    def flying(self, t: int) -> list[tuple[int, float, float]]:
        """Return number and centre of the items in the air."""
        found = []
        for i, item in enumerate(self.p["items"]):
            s = t - item["at"]
            if self.lives and i not in self.gone and s >= 0 and t < self.lands(item):
                y = self.p["height"] - item["vy"] * s + self.p["gravity"] * s * s / 2
                found.append((i, item["x"] + item["vx"] * s, y))
        return found

    def hits(self, left: list[float], t: int) -> tuple[set[int], bool]:
        """Return what a cut to the right hits, and whether that is clear."""
        hit, is_clear = set(), True
        for i, x, y in self.flying(t):
            radius = self.p["items"][i]["radius"]
            aside = max(left[0] - x, x - left[0] - 2 * _CUT, 0)
            distance = math.hypot(aside, y - left[1])
            hit |= {i} if distance < radius else set()
            is_clear &= not 0.7 * radius < distance < 1.3 * radius
        return hit, is_clear

    def cuts(self) -> list[tuple[list[float], list[float]]]:
        """Return level cuts that hit the same now and a frame later, when they may be heard."""
        found = []
        for _, x, y in self.flying(self.t):
            left = [min(max(round(x) - _CUT, 2), self.p["width"] - 2 * _CUT - 2), round(y)]
            now, later = self.hits(left, self.t), self.hits(left, self.t + FRAME_MS)
            if now == later and now[1] and now[0] and 2 < y < self.p["height"] - 6:
                found.append((left, [left[0] + 2 * _CUT, left[1]]))
        return found

    def cut(self, left: list[float], right: list[float]) -> None:
        """Cut what a cut hits."""
        for i in sorted(self.hits(left, self.t)[0]):
            self.gone.add(i)
            if self.p["items"][i]["is_bomb"]:
                self.lives -= 1
            else:
                self.score += self.p["points"]

    def expect(self) -> Expected:
        """Return what the game has to show."""
        p = self.p
        scene, items = Scene(p["width"], p["height"], p["background"]), self.flying(self.t)
        for i, x, y in items:
            colour = p["bomb" if p["items"][i]["is_bomb"] else "fruit"]
            scene.circle(x, y, p["items"][i]["radius"], colour, f"item {i}")
        text = f"Score {self.score}, lives {self.lives}"
        text = text if self.lives else f"Game over, score {self.score}"
        shown = [[float(value) for value in item] for item in items]
        state = {"score": self.score, "lives": self.lives, "over": not self.lives, "items": shown}
        return Expected(state=state, scene=scene, texts={"status": text})


_SCRIPT = """const p = PARAMETERS, pen = field.getContext("2d"), gone = new Set();
let begin = null, score = 0, lives = p.lives, last = null;
const time = () => begin === null ? -1 : performance.now() - begin;
function flying() {
  const found = [];
  if (begin === null || !lives) return found;
  p.items.forEach((item, i) => {
    const s = time() - item.at;
    if (s < 0 || gone.has(i)) return;
    const y = p.height - item.vy * s + p.gravity * s * s / 2;
    if (s === 0 || y < p.height) found.push([i, item.x + item.vx * s, y]);
  });
  return found;
}
function fall() {
  const lands = item => item.at + 2 * item.vy / p.gravity;
  p.items.forEach((item, i) => {
    if (lives && begin !== null && !gone.has(i) && lands(item) < time()) {
      gone.add(i);
      if (!item.is_bomb) lives--;
    }
  });
}
function tell() {
  const text = lives ? `Score ${score}, lives ${lives}` : `Game over, score ${score}`;
  if (told.textContent !== text) told.textContent = text;
}
function distance([x, y], a, b) {
  const [dx, dy] = [b[0] - a[0], b[1] - a[1]], length = dx * dx + dy * dy;
  const part = length ? Math.min(1, Math.max(0, ((x - a[0]) * dx + (y - a[1]) * dy) / length)) : 0;
  return Math.hypot(x - a[0] - part * dx, y - a[1] - part * dy);
}
field.onmousedown = event => { last = [event.offsetX, event.offsetY]; };
field.onmousemove = event => {
  const now = [event.offsetX, event.offsetY];
  fall();
  if (event.buttons & 1 && last) {
    for (const [i, x, y] of flying()) {
      const item = p.items[i];
      if (!lives || distance([x, y], last, now) >= item.radius) continue;
      gone.add(i);
      if (item.is_bomb) lives--;
      else score += p.points;
    }
  }
  last = now;
};
function draw() {
  fall();
  tell();
  pen.fillStyle = p.background;
  pen.fillRect(0, 0, p.width, p.height);
  for (const [i, x, y] of flying()) {
    const item = p.items[i];
    pen.fillStyle = item.is_bomb ? p.bomb : p.fruit;
    pen.beginPath();
    pen.arc(x, y, item.radius, 0, 2 * Math.PI);
    pen.fill();
  }
  requestAnimationFrame(draw);
}
start.onclick = () => { begin ??= performance.now(); };
window.state = () => ({score, lives, over: !lives, items: flying()});
draw();"""
