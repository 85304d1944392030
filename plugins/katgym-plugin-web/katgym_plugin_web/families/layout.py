"""A page of header, side column and cards, which changes with the width of the window."""

from __future__ import annotations

import json

import numpy as np

from katgym_plugin_web.family import BACKGROUNDS, COLOURS, Family, Parameters, page, pick, whole
from katgym_plugin_web.judging import Expected, Script
from katgym_plugin_web.pixels import Scene


class LayoutFamily(Family):
    """Boxes whose places follow from the window's size."""

    name = "layout"

    def draw(self, rng: np.random.Generator) -> Parameters:
        header, side, card, chosen = pick(rng, COLOURS, 4)
        narrow = whole(rng, 380, 460, 20)
        return {
            "header_height": whole(rng, 30, 60, 10),
            "side_width": whole(rng, 80, 120, 10),
            "side_height": whole(rng, 30, 50, 10),
            "side_is_right": bool(rng.integers(2)),
            "gap": whole(rng, 6, 14, 2),
            "card_height": whole(rng, 30, 50, 10),
            "cards": whole(rng, 4, 7),
            "narrow": narrow,
            "wide": narrow + whole(rng, 160, 240, 20),
            "columns": [1, 2, whole(rng, 3, 4)],
            "chosen_spans": bool(rng.integers(2)),
            "background": pick(rng, BACKGROUNDS)[0],
            "colours": {"header": header, "side": side, "card": card, "chosen": chosen},
            "height": 480,
        }

    def prompt(self, p: Parameters) -> str:
        colours, gap = p["colours"], p["gap"]
        side = "right" if p["side_is_right"] else "left"
        one, two, three = p["columns"]
        spans = (
            " The chosen card takes a whole row of the grid: it begins a new row, and the next card"
            " begins another one."
            if p["chosen_spans"]
            else ""
        )
        return f"""Write a page that adapts itself to the width W of the window, at once when it \
changes. All lengths in pixels; the page's background is {p["background"]}; there is no text \
in it and no scroll bar is needed.

- A header at the top, as wide as the window, {p["header_height"]} high, {colours["header"]}.
- W < {p["narrow"]}: under the header, touching it, a bar as wide as the window, \
{p["side_height"]} high, {colours["side"]}. Otherwise the same element is a column at the {side} \
edge, {p["side_width"]} wide, from the header to the bottom of the window.
- The rest of the window holds a grid of {p["cards"]} cards in reading order: {one} column for \
W < {p["narrow"]}, {two} for {p["narrow"]} <= W < {p["wide"]}, {three} for W >= {p["wide"]}. \
All around the grid and between its cards there are {gap}; the columns are equally wide and fill \
the rest; cards are {p["card_height"]} high, {colours["card"]}, at the top.
- Cards are buttons with the accessible names `Card 1` to `Card {p["cards"]}` without borders or \
rounded corners. A click chooses a card: it becomes {colours["chosen"]}; the one before goes back. \
A click on the chosen card leaves none chosen.{spans}
- `state()`: `{{columns: number of columns, chosen: number of the chosen card from 1, or 0}}`."""

    def solution(self, p: Parameters) -> str:
        cards = "".join(
            f'<button class="card" aria-label="Card {i + 1}"></button>' for i in range(p["cards"])
        )
        body = (
            f"<style>{_style(p)}</style>\n"
            f'<div id="stage"><header></header><aside></aside><main>{cards}</main></div>'
        )
        return page(body, _SCRIPT.replace("PARAMETERS", json.dumps(p)), "Layout")

    def script(self, p: Parameters, rng: np.random.Generator) -> Script:
        width, chosen = 500, 0
        script = Script(size=(width, p["height"]))
        script.look(expect(p, width, chosen))
        ranges = ((300, p["narrow"] - 1), (p["narrow"], p["wide"] - 1), (p["wide"], 800))
        widths = [whole(rng, *found) for found in ranges]
        widths.append(pick(rng, (p["narrow"] - 1, p["narrow"], p["wide"] - 1, p["wide"]))[0])
        for new_width in pick(rng, widths, 4):
            width = new_width
            script.add("resize", width, p["height"])
            script.wait_until(script.now_ms + whole(rng, 40, 80, 20))
            card = chosen if chosen and rng.integers(4) == 0 else whole(rng, 1, p["cards"])
            script.add("click", "button", f"Card {card}")
            chosen = 0 if card == chosen else card
            script.wait_until(script.now_ms + whole(rng, 20, 200, 10))
            script.look(expect(p, width, chosen))
        return script


def expect(p: Parameters, width: int, chosen: int) -> Expected:
    """Return what a window of some width has to show."""
    colours, gap, top = p["colours"], p["gap"], p["header_height"]
    scene = Scene(width, p["height"], p["background"])
    scene.rect(0, 0, width, top, colours["header"], "header")
    columns = p["columns"][(width >= p["narrow"]) + (width >= p["wide"])]
    left, across = 0, width
    if width < p["narrow"]:
        scene.rect(0, top, width, p["side_height"], colours["side"], "bar")
        top += p["side_height"]
    else:
        across = width - p["side_width"]
        left = 0 if p["side_is_right"] else p["side_width"]
        place = across if p["side_is_right"] else 0
        rest = p["height"] - top
        scene.rect(place, top, p["side_width"], rest, colours["side"], "column")
    card_width = (across - gap * (columns + 1)) / columns
    row = column = 0
    for card in range(1, p["cards"] + 1):
        is_whole_row = p["chosen_spans"] and card == chosen
        if is_whole_row and column:
            row, column = row + 1, 0
        x = left + gap + column * (card_width + gap)
        y = top + gap + row * (p["card_height"] + gap)
        colour = colours["chosen" if card == chosen else "card"]
        card_across = across - 2 * gap if is_whole_row else card_width
        scene.rect(x, y, card_across, p["card_height"], colour, f"card {card}")
        column += columns if is_whole_row else 1
        if column >= columns:
            row, column = row + 1, 0
    return Expected(state={"columns": columns, "chosen": chosen}, scene=scene)


def _style(p: Parameters) -> str:
    """Return the solution's style sheet."""
    colours, gap, side = p["colours"], p["gap"], p["side_width"]
    edge = "right" if p["side_is_right"] else "left"
    header = p["header_height"]
    one, two, three = (f"repeat({count}, minmax(0, 1fr))" for count in p["columns"])
    span = ".chosen { grid-column: 1 / -1 }" if p["chosen_spans"] else ""
    return f"""
body {{ background: {p["background"]} }}
header {{ height: {header}px; background: {colours["header"]} }}
aside {{ height: {p["side_height"]}px; background: {colours["side"]} }}
main {{ display: grid; gap: {gap}px; padding: {gap}px; grid-template-columns: {one} }}
.card {{ border: 0; padding: 0; border-radius: 0; outline: 0; height: {p["card_height"]}px;
  background: {colours["card"]} }}
.chosen {{ background: {colours["chosen"]} }} {span}
@media (min-width: {p["narrow"]}px) {{
  aside {{ position: absolute; {edge}: 0; top: {header}px; bottom: 0; width: {side}px;
    height: auto }}
  main {{ margin-{edge}: {side}px; grid-template-columns: {two} }}
}}
@media (min-width: {p["wide"]}px) {{ main {{ grid-template-columns: {three} }} }}
"""


_SCRIPT = """const p = PARAMETERS, cards = [...document.querySelectorAll(".card")];
let chosen = 0;
cards.forEach((card, i) => card.onclick = () => {
  chosen = chosen === i + 1 ? 0 : i + 1;
  cards.forEach((other, j) => other.classList.toggle("chosen", j + 1 === chosen));
});
window.state = () => ({
  columns: p.columns[(innerWidth >= p.narrow) + (innerWidth >= p.wide)], chosen,
});"""
