"""A solar system: planets and a moon on circles, in a time that runs faster or slower."""

from __future__ import annotations

import json
import math

import numpy as np

from katgym_plugin_web.family import COLOURS, Family, Parameters, page, pick, whole
from katgym_plugin_web.judging import Expected, Script
from katgym_plugin_web.pixels import Scene

_SKIES = ("#000000", "#101030", "#1a1a1a", "#0b132b")
_SPEEDS = (0.25, 4.0)


class Solar(Family):
    """Bodies whose distances never change."""

    name = "solar"

    def draw(self, rng: np.random.Generator) -> Parameters:
        sun, moon, *colours = pick(rng, COLOURS, whole(rng, 4, 5))
        distance, planets = whole(rng, 30, 36), []
        for colour in colours:
            planets.append(
                {
                    "colour": colour,
                    "distance": distance,
                    "radius": whole(rng, 5, 9),
                    "period": whole(rng, 1_000, 6_000, 100),
                    "phase": whole(rng, 0, 345, 15),
                }
            )
            distance += whole(rng, 26, 36)
        return {
            "size": 2 * distance,
            "sky": pick(rng, _SKIES)[0],
            "sun": {"colour": sun, "radius": whole(rng, 12, 18)},
            "planets": planets,
            "is_clockwise": bool(rng.integers(2)),
            "moon": {
                "of": whole(rng, 0, len(planets) - 1),
                "colour": moon,
                "radius": 3.5,
                "distance": whole(rng, 13, 17),
                "period": whole(rng, 600, 1_500, 100),
            },
        }

    def prompt(self, p: Parameters) -> str:
        planets = "\n".join(
            f"  {i}. {b['colour']}, radius {b['radius']}, {b['distance']} from the sun, once round"
            f" in {b['period']} ms, at {b['phase']} degrees at t = 0"
            for i, b in enumerate(p["planets"])
        )
        moon = p["moon"]
        turn = "clockwise" if p["is_clockwise"] else "anticlockwise"
        return f"""Write a page with a solar system.

- A square picture of {p["size"]} x {p["size"]} pixels, background {p["sky"]}. All bodies are \
discs; lengths are in pixels; centres move on circles, evenly and {turn}; an angle of 0 degrees \
is to the right, and angles grow in that direction. Bodies are painted in the order given here.
- The sun, {p["sun"]["colour"]}, radius {p["sun"]["radius"]}, stands in the middle. Planets, \
counted from 0:
{planets}
- A moon, {moon["colour"]}, radius {moon["radius"]}, {moon["distance"]} from planet {moon["of"]}, \
once round it in {moon["period"]} ms, at 0 degrees at t = 0.
- t is the time of the model in ms. It is 0 when the page is loaded (`performance.now()` is 0) and \
runs as fast as `performance.now()` does. A button `Faster` doubles that speed and a button \
`Slower` halves it, from the click on, within {_SPEEDS[0]} and {_SPEEDS[1]:g} times; t never jumps.
- An element with role `status` reads `Speed: S`, S such as 0.5, 1 or 2.
- `state()`: `{{t: t, speed: number, bodies: list of [x, y] of the planets' and then the moon's \
centres}}`."""

    def solution(self, p: Parameters) -> str:
        body = (
            f'<canvas id="sky" width="{p["size"]}" height="{p["size"]}" role="img"'
            ' aria-label="Planets"></canvas>\n<button id="faster">Faster</button>\n'
            '<button id="slower">Slower</button>\n<p id="speeds" role="status">Speed: 1</p>'
        )
        return page(body, _SCRIPT.replace("PARAMETERS", json.dumps(p)), "Solar system")

    def script(self, p: Parameters, rng: np.random.Generator) -> Script:
        script = Script(size=(p["size"], p["size"] + 90))
        t, speed = float(script.now_ms), 1.0
        for name in ("", *pick(rng, ("Faster", "Faster", "Slower", "Faster", "Slower"), 4)):
            if name:
                script.add("click", "button", name)
                speed = min(max(speed * (2 if name == "Faster" else 0.5), _SPEEDS[0]), _SPEEDS[1])
            duration = whole(rng, 150, 900, 10)
            script.wait_until(script.now_ms + duration)
            t += duration * speed
            script.look(expect(p, t, speed))
        return script


def centres(p: Parameters, t: float) -> list[list[float]]:
    """Return the centres of the planets and the moon."""

    def go(centre: list[float], body: Parameters) -> list[float]:
        angle = 2 * math.pi * (t / body["period"] + body.get("phase", 0) / 360)
        angle *= 1 if p["is_clockwise"] else -1  # y grows downwards
        distance = body["distance"]
        x, y = distance * math.cos(angle), distance * math.sin(angle)
        return [centre[0] + x, centre[1] + y]

    planets = [go([p["size"] / 2, p["size"] / 2], body) for body in p["planets"]]
    return [*planets, go(planets[p["moon"]["of"]], p["moon"])]


def expect(p: Parameters, t: float, speed: float) -> Expected:
    """Return what the picture has to show."""
    scene, middle = Scene(p["size"], p["size"], p["sky"]), p["size"] / 2
    scene.circle(middle, middle, p["sun"]["radius"], p["sun"]["colour"], "sun")
    bodies, places = [*p["planets"], p["moon"]], centres(p, t)
    for i, (body, (x, y)) in enumerate(zip(bodies, places, strict=True)):
        name = f"planet {i}" if i < len(p["planets"]) else "moon"
        scene.circle(x, y, body["radius"], body["colour"], name)
    state = {"t": t, "speed": speed, "bodies": places}
    return Expected(state=state, scene=scene, texts={"status": f"Speed: {speed:g}"})


_SCRIPT = """const p = PARAMETERS, pen = sky.getContext("2d"), middle = p.size / 2;
let speed = 1, before = 0, since = 0;
const time = () => before + (performance.now() - since) * speed;
function go([x, y], body) {
  const turn = 2 * Math.PI * (time() / body.period + (body.phase ?? 0) / 360);
  const angle = p.is_clockwise ? turn : -turn;
  return [x + body.distance * Math.cos(angle), y + body.distance * Math.sin(angle)];
}
function centres() {
  const planets = p.planets.map(body => go([middle, middle], body));
  return [...planets, go(planets[p.moon.of], p.moon)];
}
function disc([x, y], {radius, colour}) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
}
function draw() {
  pen.fillStyle = p.sky;
  pen.fillRect(0, 0, p.size, p.size);
  disc([middle, middle], p.sun);
  const places = centres();
  [...p.planets, p.moon].forEach((body, i) => disc(places[i], body));
  requestAnimationFrame(draw);
}
function set(factor) {
  before = time();
  since = performance.now();
  speed = Math.min(Math.max(speed * factor, 0.25), 4);
  speeds.textContent = `Speed: ${speed}`;
}
faster.onclick = () => set(2);
slower.onclick = () => set(0.5);
window.state = () => ({t: time(), speed, bodies: centres()});
draw();"""
