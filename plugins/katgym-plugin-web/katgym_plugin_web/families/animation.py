"""Boxes that move on tracks, each with an easing of its own; started, paused and put back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np

from katgym_plugin_web.family import BACKGROUNDS, COLOURS, Family, Parameters, page, pick, whole
from katgym_plugin_web.judging import Expected, Script
from katgym_plugin_web.pixels import Scene

_EASINGS: dict[str, tuple[str, Callable[[float], float]]] = {
    "linear": ("f(u) = u", lambda u: u),
    "in": ("f(u) = u^2", lambda u: u * u),
    "out": ("f(u) = 1 - (1 - u)^2", lambda u: 1 - (1 - u) ** 2),
    "smooth": ("f(u) = u^2 (3 - 2u)", lambda u: u * u * (3 - 2 * u)),
    "wave": ("f(u) = sin(pi u)", lambda u: math.sin(math.pi * u)),
}


class Animation(Family):
    """Motion by formulas."""

    name = "animation"

    def draw(self, rng: np.random.Generator) -> Parameters:
        num_boxes, box = whole(rng, 2, 4), whole(rng, 20, 36, 4)
        width = whole(rng, 240, 360, 20)
        boxes = [
            {
                "colour": colour,
                "from": whole(rng, 0, 30, 5),
                "to": width - box - whole(rng, 0, 30, 5),
                "period": whole(rng, 900, 2_400, 100),
                "easing": pick(rng, list(_EASINGS))[0],
                "returns": bool(rng.integers(2)),
            }
            for colour in pick(rng, COLOURS, num_boxes)
        ]
        return {
            "width": width,
            "box": box,
            "track": box + whole(rng, 6, 16, 2),
            "boxes": boxes,
            "background": pick(rng, BACKGROUNDS)[0],
        }

    def prompt(self, p: Parameters) -> str:
        lines = "\n".join(
            f"  {i}. {b['colour']}, from x = {b['from']} to x = {b['to']}, T = {b['period']} ms,"
            f" {_EASINGS[b['easing']][0]},"
            f" {'there and back' if b['returns'] else 'again and again'}"
            for i, b in enumerate(p["boxes"])
        )
        return f"""Write a page with an animation.

- A picture of {p["width"]} x {p["track"] * len(p["boxes"])} pixels, background \
{p["background"]}. In it squares of {p["box"]} pixels; the top of number i, from 0, is at \
i * {p["track"]}; its left \
side is at from + (to - from) * f(u). With t the time that the animation has run, in ms, u is the \
fraction of t / T; for `there and back` u is 1 minus that fraction in every second period:
{lines}
- It stands at t = 0 at first. A button `Start` lets it run; while it runs the button is named \
`Pause` and stops it, and `Start` then goes on from there. A button `Reset` stops it at t = 0.
- `state()`: `{{t: t in ms, running: true or false, x: list of the left sides}}`."""

    def solution(self, p: Parameters) -> str:
        body = (
            f'<canvas id="picture" width="{p["width"]}" height="{p["track"] * len(p["boxes"])}"'
            ' role="img" aria-label="Boxes"></canvas>\n<button id="start">Start</button>\n'
            '<button id="reset">Reset</button>'
        )
        return page(body, _SCRIPT.replace("PARAMETERS", json.dumps(p)), "Animation")

    def script(self, p: Parameters, rng: np.random.Generator) -> Script:
        script = Script(size=(p["width"] + 20, p["track"] * len(p["boxes"]) + 60))
        t, is_running = 0, False
        script.wait_until(script.now_ms + whole(rng, 20, 300, 10))
        script.look(expect(p, t, is_running))
        for name in ("Start", "", "Pause", "Start", "Reset" if rng.integers(2) else ""):
            if name:
                script.add("click", "button", name)
                is_running, t = name == "Start", 0 if name == "Reset" else t
            duration = whole(rng, 200, 1_100, 10)
            while is_running and near_jump(p, t + duration):
                duration += 10
            script.wait_until(script.now_ms + duration)
            t += duration if is_running else 0
            script.look(expect(p, t, is_running))
        return script


def near_jump(p: Parameters, t: int) -> bool:
    """Return whether a box is about to jump back, so that a tenth of a ms would decide."""
    jumps = [b["period"] for b in p["boxes"] if not b["returns"]]
    return any(min(t % period, -t % period) < 5 for period in jumps)


def place(box: Parameters, t: int) -> float:
    """Return a box's left side."""
    turns, rest = divmod(t, box["period"])
    u = rest / box["period"]
    eased = _EASINGS[box["easing"]][1](1 - u if box["returns"] and turns % 2 else u)
    return float(box["from"] + (box["to"] - box["from"]) * eased)


def expect(p: Parameters, t: int, is_running: bool) -> Expected:
    """Return what the animation has to show."""
    scene = Scene(p["width"], p["track"] * len(p["boxes"]), p["background"])
    places = [place(box, t) for box in p["boxes"]]
    for i, box in enumerate(p["boxes"]):
        scene.rect(places[i], i * p["track"], p["box"], p["box"], box["colour"], f"square {i}")
    return Expected(state={"t": float(t), "running": is_running, "x": places}, scene=scene)


_SCRIPT = """const p = PARAMETERS, pen = picture.getContext("2d");
let before = 0, since = null;
const easings = {
  linear: u => u, in: u => u * u, out: u => 1 - (1 - u) ** 2, smooth: u => u * u * (3 - 2 * u),
  wave: u => Math.sin(Math.PI * u),
};
const time = () => before + (since === null ? 0 : performance.now() - since);
function place(box) {
  const turns = Math.floor(time() / box.period), u = time() / box.period - turns;
  return box.from + (box.to - box.from) * easings[box.easing](box.returns && turns % 2 ? 1 - u : u);
}
function draw() {
  pen.fillStyle = p.background;
  pen.fillRect(0, 0, picture.width, picture.height);
  p.boxes.forEach((box, i) => {
    pen.fillStyle = box.colour;
    pen.fillRect(place(box), i * p.track, p.box, p.box);
  });
  requestAnimationFrame(draw);
}
function set(t, isRunning) {
  before = t;
  since = isRunning ? performance.now() : null;
  start.textContent = isRunning ? "Pause" : "Start";
}
start.onclick = () => set(time(), since === null);
reset.onclick = () => set(0, false);
window.state = () => ({t: time(), running: since !== null, x: p.boxes.map(place)});
draw();"""
