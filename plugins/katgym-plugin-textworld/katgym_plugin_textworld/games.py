"""Games made by TextWorld's generators. Not here: how they read (`description.py`).

TextWorld draws from a generator of the whole process, so that games are made under a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import textworld
from textworld.challenges import CHALLENGES
from textworld.generator.chaining import QuestGenerationError

COOKING = {1: (1, 1, False), 2: (1, 6, True), 3: (2, 9, True), 4: (3, 12, True)}
"""Level -> ingredients, rooms, and whether food is cut and cooked and doors are shut."""

_lock = threading.Lock()


@contextmanager
def _no_compiler() -> Iterator[list[str]]:
    """Take down a game's walkthrough in place of compiling the game and playing it.

    Upstream plays it to tell in the objective which actions to take; no objective here does.
    """
    replay = textworld.GameMaker.set_walkthrough
    walkthrough: list[str] = []
    textworld.GameMaker.set_walkthrough = lambda maker, commands: walkthrough.extend(commands)
    try:
        yield walkthrough
    finally:
        textworld.GameMaker.set_walkthrough = replay


@lru_cache(maxsize=256)
def make_game(kind: str, level: int, split: str, seed: int) -> textworld.Game:
    """Return a game of a challenge; equal arguments give equal games.

    split: `"train"`, `"validation"` or `"test"`; the cooking game has other food in each,
        or the same prepared otherwise.
    """
    settings: dict[str, Any] = {"level": level}
    if kind == "tw-cooking":
        foods = "valid" if split == "validation" else split
        # 0 would ask for a recipe that is the same in every game.
        num, rooms, is_hard = COOKING[level]
        settings = dict.fromkeys(("cook", "cut", "open"), is_hard) | {"recipe": num, "take": num}
        settings |= {"go": rooms, "drop": level == 4, "split": foods, "recipe_seed": seed + 1}
    options = textworld.GameOptions()
    options.seeds = seed
    # An objective of all steps would be the solution.
    options.grammar.only_last_action = True
    settings["force_entity_numbering"] = False
    try:
        with _lock, _no_compiler() as walkthrough:
            game = CHALLENGES[kind][1](settings, options)
    except QuestGenerationError:
        # About a third of the treasure hunter's maps allow no quest. Another seed of this split:
        return make_game(kind, level, split, seed + 3 * 7919)
    game.metadata.setdefault("walkthrough", walkthrough or game.walkthrough)
    if kind == "tw-coin_collector":
        game.objective = "Somewhere here is a coin: find it and take it."
    return game
