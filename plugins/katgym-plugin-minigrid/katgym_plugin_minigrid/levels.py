"""The levels: Minigrid's registered ids without their first and last part; those left out, and why.

Not here: the envs (`env.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import gymnasium
import minigrid  # noqa: F401 - registers its ids with Gymnasium
from minigrid.core import roomgrid
from minigrid.envs.babyai.core import roomgrid_level
from minigrid.minigrid_env import MiniGridEnv

from katgym.errors import check_name

BABYAI_EXCLUDED: Mapping[str, str] = {
    "GoToImpUnlock": "upstream's bot never ends on some seeds",
    "KeyInBox": "upstream's bot opens no boxes",
    "OpenDoorsOrderN2Debug": "a wrong first door ends it: upstream's variant for debugging",
    "OpenDoorsOrderN4Debug": "a wrong first door ends it: upstream's variant for debugging",
    "PutNextS5N2Carrying": "upstream's bot cannot start with full hands",
    "PutNextS6N3Carrying": "upstream's bot cannot start with full hands",
    "PutNextS7N4Carrying": "upstream's bot cannot start with full hands",
    "UnlockToUnlock": "upstream's bot never ends on some seeds",
}
MINIGRID_EXCLUDED: Mapping[str, str] = {
    **dict.fromkeys(("DistShift1", "DistShift2"), "one grid"),
    **dict.fromkeys(("Empty-5x5", "Empty-6x6", "Empty-8x8", "Empty-16x16"), "one grid"),
    **dict.fromkeys(("LavaGapS5", "LavaGapS6", "LavaGapS7"), "too few openings for three splits"),
    **dict.fromkeys(("MemoryS7", "MemoryS9", "MemoryS11"), "too few openings for three splits"),
    **dict.fromkeys(
        ("MemoryS13", "MemoryS13Random", "MemoryS17Random"), "too few openings for three splits"
    ),
    "Playground": "has no mission",
}
"""Not here either: upstream's `WFC` levels, which need more packages."""


def find_levels(family: str) -> dict[str, str]:
    """Return the levels of `"BabyAI"` or `"MiniGrid"`: name -> the newest Gymnasium id."""
    excluded = BABYAI_EXCLUDED if family == "BabyAI" else MINIGRID_EXCLUDED
    return {
        name: gym_id
        for name, gym_id in _registered(family).items()
        if name not in excluded and not name.startswith("WFC")
    }


@cache
def _registered(family: str) -> Mapping[str, str]:
    found = sorted(key for key in gymnasium.registry if key.startswith(f"{family}-"))
    return {key.removeprefix(f"{family}-").rpartition("-v")[0]: key for key in found}


def make_level(family: str, name: str, seed: int) -> MiniGridEnv:
    """Return a level's grid env, begun; equal seeds give equal grids."""
    levels = find_levels(family)
    check_name("level", name, levels)
    env = gymnasium.make(levels[name], disable_env_checker=True).unwrapped
    env.reset(seed=seed)
    return env


def _say_nothing(*texts: object) -> None:
    """Take the place of `print` in the modules that print each grid they reject."""


roomgrid_level.print = _say_nothing
roomgrid.print = _say_nothing
