"""A bar chart of numbers that are typed in: scaled, sorted on demand, with totals."""

from __future__ import annotations

import json

import numpy as np

from katgym_plugin_web.family import BACKGROUNDS, COLOURS, Family, Parameters, page, pick, whole
from katgym_plugin_web.judging import Expected, Script
from katgym_plugin_web.pixels import Scene


class Chart(Family):
    """Bars, upright or lying, with values below zero in some tasks."""

    name = "chart"

    def draw(self, rng: np.random.Generator) -> Parameters:
        num_colours = whole(rng, 2, 3)
        negative, zero, *colours = pick(rng, COLOURS, num_colours + 2)
        return {
            "length": whole(rng, 120, 240, 20),
            "bar": whole(rng, 14, 26, 2),
            "gap": whole(rng, 4, 12, 2),
            "most": whole(rng, 6, 9),
            "background": pick(rng, BACKGROUNDS)[0],
            "colours": colours,
            "negative": negative,
            "zero": zero,
            "has_negative": bool(rng.integers(2)),
            "is_upright": bool(rng.integers(2)),
            "rises": bool(rng.integers(2)),
            "figure": pick(rng, ("sum", "largest", "smallest", "range"))[0],
        }

    def prompt(self, p: Parameters) -> str:
        width, height = size(p)
        sides = ("left", "top") if p["is_upright"] else ("top", "left")
        grow = "up from the bottom edge" if p["is_upright"] else "right from the left edge"
        if p["has_negative"]:
            grow = "up" if p["is_upright"] else "to the right"
            grow += f", negative ones the other way and in {p['negative']}, from a zero line"
        zero = (
            f" The zero line is the edge between the halves of the picture; a stripe of 2 pixels,"
            f" one on each side of it, in {p['zero']} is painted last over the whole picture."
            if p["has_negative"]
            else ""
        )
        reach = p["length"] // 2 if p["has_negative"] else p["length"]
        figure = "largest minus smallest" if p["figure"] == "range" else f"the {p['figure']}"
        return f"""Write a page with a bar chart of whole numbers.

- A picture of {width} x {height} pixels, background {p["background"]}, empty of bars at first. \
Bar number i, from 0, is {p["bar"]} pixels thick; its {sides[0]} side is {p["gap"]} + i * \
{p["bar"] + p["gap"]} pixels from the {sides[0]} edge. Bars grow {grow}.{zero}
- The number whose absolute value is largest has a bar of {reach} pixels, the others in \
proportion, not rounded; if all are 0 there is no bar. Colours by the bar's place, in turn: \
{", ".join(p["colours"])}.
- Below it a text field labelled `Numbers`, a checkbox `Sorted`, and a button `Draw`. A click on \
`Draw` reads the numbers, separated by commas and possibly blank space, and draws them: in their \
order, or, if `Sorted` is checked at that moment, {"rising" if p["rises"] else "falling"}. Until \
the next click the picture stays.
- If the text is not 1 to {p["most"]} whole numbers \
{"" if p["has_negative"] else "that are not negative "}(`-` before one is its only sign), nothing \
changes but the element with role `status`, which then reads `Not a list`. Otherwise it reads \
`N numbers, {p["figure"]} X` ({figure}). It is empty at first.
- `state()`: `{{shown: list of the numbers as drawn, longest: length of the longest bar in pixels, \
or 0}}`."""

    def solution(self, p: Parameters) -> str:
        width, height = size(p)
        body = (
            f'<canvas id="chart" width="{width}" height="{height}" role="img" aria-label="Bars">'
            '</canvas>\n<label>Numbers <input id="numbers"></label>\n<label><input type="checkbox"'
            ' id="sorted"> Sorted</label>\n<button id="button">Draw</button>\n'
            '<p id="message" role="status"></p>'
        )
        data = {**p, "width": width, "height": height}
        return page(body, _SCRIPT.replace("PARAMETERS", json.dumps(data)), "Chart")

    def script(self, p: Parameters, rng: np.random.Generator) -> Script:
        script = Script(size=(max(420, size(p)[0]), size(p)[1] + 120))
        shown: list[int] = []
        text, is_sorted = "", False
        script.look(expect(p, shown, text))
        for kind in pick(rng, ("good", "good", "good", "bad", "zero"), 4):
            low = -99 if p["has_negative"] else 0
            count = whole(rng, 3, p["most"])
            values = [int(v) for v in rng.integers(low, 100, count)] if kind != "zero" else [0] * 2
            typed = pick(rng, (",", ", ", " ,  "))[0].join(map(str, values))
            if kind == "bad":
                odd = ("", "1,,2", "1,2.5", "x", ",".join("1" * (p["most"] + 1)))
                typed = pick(rng, odd if p["has_negative"] else (*odd, "3,-1"))[0]
            if rng.integers(2):
                script.add("click", "checkbox", "Sorted")
                is_sorted = not is_sorted
            script.add("type", "textbox", "Numbers", typed)
            script.wait_until(script.now_ms + whole(rng, 20, 100, 10))
            script.look(expect(p, shown, text))
            script.add("click", "button", "Draw")
            script.wait_until(script.now_ms + whole(rng, 40, 200, 10))
            if kind == "bad":
                text = "Not a list"
            else:
                shown = sorted(values, reverse=not p["rises"]) if is_sorted else values
                text = f"{len(values)} numbers, {p['figure']} {figure(p, values)}"
            script.look(expect(p, shown, text))
        return script


def size(p: Parameters) -> tuple[int, int]:
    """Return width and height of the picture."""
    across = p["gap"] + p["most"] * (p["bar"] + p["gap"])
    return (across, p["length"]) if p["is_upright"] else (p["length"], across)


def figure(p: Parameters, values: list[int]) -> int:
    """Return the figure that is told of some numbers."""
    figures = {"sum": sum(values), "largest": max(values), "smallest": min(values)}
    return figures.get(p["figure"], max(values) - min(values))


def expect(p: Parameters, shown: list[int], text: str) -> Expected:
    """Return what the chart has to show."""
    width, height = size(p)
    scene = Scene(width, height, p["background"])
    largest = max(map(abs, shown), default=0)
    zero = p["length"] / 2 if p["has_negative"] else 0.0
    reach = p["length"] - zero
    for i, value in enumerate(shown):
        side, length = p["gap"] + i * (p["bar"] + p["gap"]), abs(value) / max(largest, 1) * reach
        start = zero if value >= 0 else zero - length  # from the left, or from the bottom
        colour = p["colours"][i % len(p["colours"])] if value >= 0 else p["negative"]
        if p["is_upright"]:
            scene.rect(side, height - start - length, p["bar"], length, colour, f"bar {i}")
        else:
            scene.rect(start, side, length, p["bar"], colour, f"bar {i}")
    if p["has_negative"]:
        flat, tall = (width, 2) if p["is_upright"] else (2, height)
        x, y = (0.0, zero - 1) if p["is_upright"] else (zero - 1, 0.0)
        scene.rect(x, y, flat, tall, p["zero"], "zero line")
    state = {"shown": shown, "longest": float(reach if largest else 0)}
    return Expected(state=state, scene=scene, texts={"status": text})


_SCRIPT = """const p = PARAMETERS, pen = chart.getContext("2d");
const zero = p.has_negative ? p.length / 2 : 0, reach = p.length - zero;
let shown = [];
function draw() {
  pen.fillStyle = p.background;
  pen.fillRect(0, 0, p.width, p.height);
  const largest = Math.max(0, ...shown.map(Math.abs));
  shown.forEach((value, i) => {
    const side = p.gap + i * (p.bar + p.gap), length = largest && Math.abs(value) / largest * reach;
    const start = value >= 0 ? zero : zero - length;
    pen.fillStyle = value >= 0 ? p.colours[i % p.colours.length] : p.negative;
    if (p.is_upright) pen.fillRect(side, p.height - start - length, p.bar, length);
    else pen.fillRect(start, side, length, p.bar);
  });
  if (!p.has_negative) return;
  pen.fillStyle = p.zero;
  if (p.is_upright) pen.fillRect(0, zero - 1, p.width, 2);
  else pen.fillRect(zero - 1, 0, 2, p.height);
}
button.onclick = () => {
  const parts = numbers.value.split(",").map(part => part.trim()), values = parts.map(Number);
  const pattern = p.has_negative ? /^-?[0-9]+$/ : /^[0-9]+$/;
  if (parts.length > p.most || !parts.every(part => pattern.test(part))) {
    message.textContent = "Not a list";
    return;
  }
  const up = [...values].sort((a, b) => a - b), last = up.at(-1);
  shown = !sorted.checked ? values : p.rises ? up : [...up].reverse();
  const figures = {sum: values.reduce((a, b) => a + b), largest: last, smallest: up[0],
    range: last - up[0]};
  message.textContent = `${values.length} numbers, ${p.figure} ${figures[p.figure]}`;
  draw();
};
window.state = () => ({shown, longest: shown.some(value => value) ? reach : 0});
draw();"""
