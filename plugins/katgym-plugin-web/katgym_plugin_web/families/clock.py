"""A clock with hands, digits, a flash at full minutes and a button that stops it."""

from __future__ import annotations

import json
import math

import numpy as np

from katgym_plugin_web.family import BACKGROUNDS, COLOURS, Family, Parameters, page, pick, whole
from katgym_plugin_web.judging import Expected, Script
from katgym_plugin_web.pixels import Scene

_DAY_MS = 86_400_000


class ClockFamily(Family):
    """Hands by the time of day."""

    name = "clock"

    def draw(self, rng: np.random.Generator) -> Parameters:
        size = whole(rng, 200, 320, 20)
        second, minute, hour, flash = pick(rng, COLOURS, 4)
        return {
            "size": size,
            "background": pick(rng, BACKGROUNDS)[0],
            "colours": [hour, minute, second],
            "lengths": [
                whole(rng, 50, 60) / 100,
                whole(rng, 70, 80) / 100,
                whole(rng, 85, 95) / 100,
            ],
            "widths": [whole(rng, 12, 16), whole(rng, 8, 10), whole(rng, 5, 6)],
            "sweeps": bool(rng.integers(2)),
            "hours": pick(rng, (12, 24))[0],
            "flash": flash,
            "flash_ms": whole(rng, 400, 900, 100),
            "offset_min": whole(rng, -720, 720, 30),
        }

    def prompt(self, p: Parameters) -> str:
        size, radius = p["size"], p["size"] / 2
        hands = "; ".join(
            f"{name} hand {p['colours'][i]}, {p['lengths'][i] * radius:g} long,"
            f" {p['widths'][i]} wide"
            for i, name in enumerate(("hour", "minute", "second"))
        )
        second = "moves evenly" if p["sweeps"] else "jumps at each full second"
        digits = "HH:MM:SS, 00 to 23 hours" if p["hours"] == 24 else "H:MM:SS AM or H:MM:SS PM"
        return f"""Write a page with a clock. It shows the time of day in UTC plus \
{p["offset_min"]} minutes.

- A square picture of {size} x {size} pixels, background {p["background"]}. In its middle \
({radius:g}, {radius:g}) three straight hands with flat ends begin, painted in this order, in \
pixels: {hands}. The hour and the minute hand move evenly; the second hand {second}. Nothing else \
is in the picture.
- Effect: for the first {p["flash_ms"]} ms of each minute the background is {p["flash"]}.
- Below the picture an element with role `timer` reads the time as {digits}, for instance \
{format_time(p, 13 * 3_600_000 + 5 * 60_000 + 9_000)}.
- A button "Stop" stops the clock at the moment of the click; it is then named "Go" and sets the \
clock to the present time again.
- `state()`: `{{time: milliseconds since midnight as shown, running: true or false, \
flash: true or false}}`."""

    def solution(self, p: Parameters) -> str:
        body = (
            f'<canvas id="face" width="{p["size"]}" height="{p["size"]}" role="img"'
            ' aria-label="Clock"></canvas>\n<div id="digits" role="timer"></div>\n'
            '<button id="button">Stop</button>'
        )
        return page(body, _SCRIPT.replace("PARAMETERS", json.dumps(p)), "Clock")

    def script(self, p: Parameters, rng: np.random.Generator) -> Script:
        # The play begins some seconds before a full minute, and one look falls into the flash.
        minute = whole(rng, 0, 24 * 60 - 1)
        before_ms = whole(rng, 1_000, 3_000, 10)
        start_ms = 1_700_006_400_000 + minute * 60_000 - before_ms
        script = Script(size=(p["size"], p["size"] + 60), start_ms=start_ms)

        def look(shown: int, *, is_running: bool = True) -> None:
            script.look(expect(p, start_ms + shown, is_running=is_running))

        script.wait_until(whole(rng, 200, 900, 10))
        look(script.now_ms)
        script.wait_until(before_ms + whole(rng, 60, p["flash_ms"] - 60, 10))
        look(script.now_ms)
        script.wait_until(before_ms + p["flash_ms"] + whole(rng, 60, 900, 10))
        script.add("click", "button", "Stop")
        stopped = script.now_ms
        script.wait_until(script.now_ms + whole(rng, 1_000, 1_500, 10))
        look(stopped, is_running=False)
        script.add("click", "button", "Go")
        script.wait_until(script.now_ms + whole(rng, 100, 800, 10))
        look(script.now_ms)
        return script


def format_time(p: Parameters, time_ms: int) -> str:
    """Return the digits of a time since midnight."""
    seconds = time_ms // 1000
    hour, rest = seconds // 3600, f":{seconds // 60 % 60:02}:{seconds % 60:02}"
    if p["hours"] == 24:
        return f"{hour:02}{rest}"
    return f"{(hour + 11) % 12 + 1}{rest} {'AM' if hour < 12 else 'PM'}"


def expect(p: Parameters, at_ms: int, *, is_running: bool) -> Expected:
    """Return what the clock has to show at a time since 1970."""
    time = (at_ms + p["offset_min"] * 60_000) % _DAY_MS
    has_flash = time % 60_000 < p["flash_ms"]
    centre = p["size"] / 2
    scene = Scene(p["size"], p["size"], p["flash"] if has_flash else p["background"])
    second = time / 1000 if p["sweeps"] else time // 1000
    turns = (time / 43_200_000, time / 3_600_000, second / 60)
    for i, name in enumerate(("hour hand", "minute hand", "second hand")):
        angle, length = turns[i] * 2 * math.pi, p["lengths"][i] * centre
        end = (centre + length * math.sin(angle), centre - length * math.cos(angle))
        scene.line((centre, centre), end, p["widths"][i], p["colours"][i], name)
    state = {"time": float(time), "running": is_running, "flash": has_flash}
    return Expected(state=state, scene=scene, texts={"timer": format_time(p, time)})


_SCRIPT = """const p = PARAMETERS, pen = face.getContext("2d"), radius = p.size / 2;
let stopped = null;
const present = () => (Date.now() + p.offset_min * 60000) % 86400000;
const shown = () => stopped ?? present();
const flash = () => shown() % 60000 < p.flash_ms;
function draw() {
  const time = shown(), s = Math.floor(time / 1000), h = Math.floor(s / 3600);
  pen.fillStyle = flash() ? p.flash : p.background;
  pen.fillRect(0, 0, p.size, p.size);
  const turns = [time / 43200000, time / 3600000, (p.sweeps ? time / 1000 : s) / 60];
  turns.forEach((turn, i) => {
    const angle = turn * 2 * Math.PI, length = p.lengths[i] * radius;
    pen.strokeStyle = p.colours[i];
    pen.lineWidth = p.widths[i];
    pen.beginPath();
    pen.moveTo(radius, radius);
    pen.lineTo(radius + length * Math.sin(angle), radius - length * Math.cos(angle));
    pen.stroke();
  });
  const two = n => String(n).padStart(2, "0");
  const rest = `:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  digits.textContent = p.hours === 24 ? two(h) + rest
    : `${(h + 11) % 12 + 1}${rest} ${h < 12 ? "AM" : "PM"}`;
  requestAnimationFrame(draw);
}
button.onclick = () => {
  stopped = stopped === null ? present() : null;
  button.textContent = stopped === null ? "Stop" : "Go";
};
window.state = () => ({time: shown(), running: stopped === null, flash: flash()});
draw();"""
