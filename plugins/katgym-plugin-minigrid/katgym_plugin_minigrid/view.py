"""The part of a level that an agent sees, as words and as a grid. Not here: acting (`env.py`)."""

from __future__ import annotations

import numpy as np
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT
from minigrid.minigrid_env import MiniGridEnv

SYMBOLS = {
    "unseen": " ",
    "empty": ".",
    "floor": ".",
    "wall": "#",
    "door": "D",
    "key": "k",
    "ball": "o",
    "box": "x",
    "goal": "G",
    "lava": "~",
}
DOOR_STATES = ("open", "closed", "locked")
LEGEND = "The grid is what you see, you (^) facing up: # wall, . free, D door, k key, o ball,\
 x box, G goal, ~ lava, blank not seen."


def view_text(env: MiniGridEnv) -> str:
    """Return the things in view with their distances, and the grid."""
    image = env.gen_obs()["image"]
    size = image.shape[0]
    column, row = size // 2, size - 1
    lines, seen = [], []
    for y in range(size):
        line = ""
        for x in range(size):
            kind, color, state = (int(n) for n in image[x, y])
            name = IDX_TO_OBJECT[kind]
            is_agent = (x, y) == (column, row)
            line += "^" if is_agent else SYMBOLS[name]
            if name not in ("unseen", "empty", "floor", "wall") and not is_agent:
                what = f"{IDX_TO_COLOR[color]} {name}" if name != "lava" else "lava"
                shown = f"{DOOR_STATES[state]} {what}" if name == "door" else what
                seen.append(
                    ((row - y) + abs(x - column), f"{_place(x - column, row - y)}: {shown}")
                )
        lines.append(line.rstrip())
    held = env.carrying
    hands = f"You carry a {held.color} {held.type}." if held else "You carry nothing."
    things = "; ".join(text for _, text in sorted(seen)) or "nothing but walls and floor"
    front = _free_steps(image, column, row)
    grid = "\n".join(line for line in lines if line)
    return f"You see {things}. You can go {front} forward. {hands}\n{grid}"


def _place(right: int, forward: int) -> str:
    parts = [f"{forward} forward"] if forward else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " and ".join(parts)


def _free_steps(image: np.ndarray, column: int, row: int) -> str:
    steps = 0
    for y in range(row - 1, -1, -1):
        kind, _, state = (int(n) for n in image[column, y])
        name = IDX_TO_OBJECT[kind]
        if name not in ("empty", "floor", "goal", "lava") and (name, state) != ("door", 0):
            break
        steps += 1
    return f"{steps} step{'' if steps == 1 else 's'}"
