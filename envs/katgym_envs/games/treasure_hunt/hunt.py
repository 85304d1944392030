"""Hunts: chests, notes, lockers and levels, and the reasoning that solves them.

A true note carries the owl seal. It holds a fact about the treasure's chest, or sends the reader
to a numbered locker with the next note of its trail. Every fact is needed: without any one of
them at least two chests remain. The chests are all combinations of a few values a feature, and
the treasure is one of them, drawn after them: the list tells nothing about which. Not here: the
env around a hunt (`env.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_LEVEL = 10
FEATURES: Mapping[str, tuple[str, ...]] = {
    "colour": ("red", "blue", "green", "yellow", "black"),
    "wood": ("oak", "pine", "cherry", "walnut", "maple"),
    "mark": ("star", "moon", "sun", "crown", "anchor"),
}
ROOMS = ("kitchen", "library", "attic", "cellar", "garden", "workshop", "hall", "tower")
FURNITURE = ("table", "shelf", "bench", "cabinet", "barrel", "basket", "clock", "rug")
FALSE_SEALS = ("fox", "raven", "wolf", "snake")
NUM_LOCKERS = 1000
DUST = "Nothing but dust."

Chest = Mapping[str, str]
Fact = tuple[str, str, bool]
"""Feature, value, and whether the treasure's chest has it; ("colour", "red", False): not red."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HuntLevel:
    """How hard a hunt is.

    `num_facts` trails of `depth` notes lead to one fact each; `num_false_trails` have another seal.
    """

    num_rooms: int
    num_places: int
    """Places per room."""
    shape: tuple[int, ...]
    """Number of values for each feature in which chests differ."""
    num_facts: int
    """A feature of n values takes one fact (which it is) or n - 1 (which it is not)."""
    depth: int
    num_false_trails: int
    is_tight: bool = False
    """The turns suffice only for several calls per turn."""

    @property
    def num_chests(self) -> int:
        """One for every combination of values."""
        return math.prod(self.shape)

    @property
    def max_turns(self) -> int:
        """Turns of an episode, the one that opens a chest included.

        A trail takes `depth` turns when all trails are followed at the same time, and one spare
        turn is given. Followed one call at a time they take `num_facts * depth` turns.
        """
        if self.is_tight:
            return self.depth + 2
        return self.num_rooms * self.num_places + self.num_facts * (self.depth - 1) + 3


LEVELS: Mapping[int, HuntLevel] = {
    number: HuntLevel(
        num_rooms=rooms,
        num_places=places,
        shape=shape,
        num_facts=facts,
        depth=depth,
        num_false_trails=false,
        is_tight=number >= 6,
    )
    for number, rooms, places, shape, facts, depth, false in (
        (1, 2, 2, (5,), 1, 1, 0),
        (2, 2, 2, (2, 3), 2, 1, 0),
        (3, 2, 3, (2, 3), 2, 1, 1),
        (4, 3, 3, (2, 4), 2, 2, 1),
        (5, 3, 4, (3, 3), 3, 2, 2),
        (6, 3, 4, (2, 2, 3), 3, 2, 2),
        (7, 4, 4, (2, 2, 3), 4, 2, 3),
        (8, 5, 4, (2, 3, 3), 4, 3, 4),
        (9, 6, 4, (2, 3, 3), 5, 3, 6),
        (10, 7, 4, (2, 3, 4), 6, 4, 8),
    )
}


def make_hunt(level: HuntLevel, rng: np.random.Generator) -> dict[str, Any]:
    """Return a hunt as JSON values.

    `places`: room -> its places; `chests`: features of chest 1, 2, ...; `treasure`: number of the
    right one; `notes`: place -> text, empty places left out; `trails`: per fact the places to
    inspect, in order; `facts`: the true facts.
    """
    sizes = [int(size) for size in rng.permutation(level.shape)]
    values = {
        feature: [str(value) for value in rng.permutation(FEATURES[feature])[:size]]
        for feature, size in zip(FEATURES, sizes, strict=False)
    }
    kinds = [dict(zip(values, kind, strict=True)) for kind in itertools.product(*values.values())]
    chests = [kinds[i] for i in rng.permutation(len(kinds))]
    treasure = chests[int(rng.integers(len(chests)))]
    facts = _draw_facts(level, values, treasure, rng)
    rooms = [str(r) for r in rng.permutation(ROOMS)[: level.num_rooms]]
    places = {
        room: [f"{room} {kind}" for kind in rng.permutation(FURNITURE)[: level.num_places]]
        for room in rooms
    }
    starts = [str(p) for p in rng.permutation([p for ps in places.values() for p in ps])]
    lockers = [f"locker {n}" for n in rng.permutation(NUM_LOCKERS)[: 20 * level.depth]]
    notes: dict[str, str] = {}
    trails: list[list[str]] = []
    false_facts = _false_facts(level, values, treasure, rng)
    seals = ["owl"] * level.num_facts
    seals += [str(rng.choice(FALSE_SEALS)) for _ in range(level.num_false_trails)]
    for seal, fact in zip(seals, [*facts, *false_facts], strict=True):
        trail = [starts.pop(), *(lockers.pop() for _ in range(level.depth - 1))]
        for place, following in itertools.pairwise(trail):
            notes[place] = f"A note with the {seal} seal: go on to {following}."
        notes[trail[-1]] = f"A note with the {seal} seal: {fact_text(fact)}"
        if seal == "owl":
            trails.append(trail)
    return {
        "places": places,
        "chests": chests,
        "treasure": chests.index(treasure) + 1,
        "notes": dict(sorted(notes.items())),
        "trails": trails,
        "facts": [list(fact) for fact in facts],
    }


def _draw_facts(
    level: HuntLevel, values: Mapping[str, list[str]], treasure: Chest, rng: np.random.Generator
) -> list[Fact]:
    """Draw facts that leave the treasure alone, each of which is needed."""
    told = [  # for each feature: what it is, or all that it is not
        (
            [(feature, treasure[feature], True)],
            [(feature, value, False) for value in options if value != treasure[feature]],
        )
        for feature, options in values.items()
    ]
    choices = [list(itertools.chain(*choice)) for choice in itertools.product(*told)]
    choices = [choice for choice in choices if len(choice) == level.num_facts]
    chosen = choices[int(rng.integers(len(choices)))]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def _false_facts(
    level: HuntLevel, values: Mapping[str, list[str]], treasure: Chest, rng: np.random.Generator
) -> list[Fact]:
    """Draw facts that do not hold for the treasure."""
    facts: list[Fact] = []
    for _ in range(level.num_false_trails):
        feature = str(rng.choice(list(values)))
        others = [value for value in values[feature] if value != treasure[feature]]
        is_positive = bool(rng.random() < 0.5)
        value = str(rng.choice(others)) if is_positive else treasure[feature]
        facts.append((feature, value, is_positive))
    return facts


def fits(chest: Chest, facts: Sequence[Fact]) -> bool:
    """Return whether the chest agrees with every fact."""
    return all((chest[feature] == value) == has for feature, value, has in facts)


def fact_text(fact: Fact) -> str:
    """Return a fact in words.

    Example:
        >>> fact_text(("wood", "oak", False))
        'the treasure is not in a chest made of oak.'
    """
    feature, value, has = fact
    chest = {"colour": f"a {value} chest", "wood": f"a chest made of {value}"}.get(
        feature, f"a chest with the mark of the {value}"
    )
    return f"the treasure is {'' if has else 'not '}in {chest}."


def chest_text(chest: Chest) -> str:
    """Return a chest in words.

    Example:
        >>> chest_text({"colour": "red", "wood": "oak", "mark": "sun"})
        'red, made of oak, with the mark of the sun'
    """
    parts = [chest["colour"]]
    if "wood" in chest:
        parts.append(f"made of {chest['wood']}")
    if "mark" in chest:
        parts.append(f"with the mark of the {chest['mark']}")
    return ", ".join(parts)
