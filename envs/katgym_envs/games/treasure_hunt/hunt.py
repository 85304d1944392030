"""Hunts: chests, notes, lockers and levels, and the reasoning that solves them.

A true note carries the owl seal. It holds a fact about the treasure's chest, or sends the reader
to a numbered locker with the next note of its trail. Every fact is needed: without any one of
them at least two chests remain. Not here: the env around a hunt (`env.py`).
"""

from __future__ import annotations

import itertools
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

    `num_features` of the chests' features differ; `num_facts` trails of `depth` notes each lead to
    one fact; `num_false_trails` carry another seal.
    """

    num_rooms: int
    num_places: int
    """Places per room."""
    num_features: int
    num_chests: int
    num_facts: int
    depth: int
    num_false_trails: int
    is_tight: bool = False
    """The turns suffice only for several calls per turn."""

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
        num_features=features,
        num_chests=chests,
        num_facts=facts,
        depth=depth,
        num_false_trails=false,
        is_tight=number >= 6,
    )
    for number, rooms, places, features, chests, facts, depth, false in (
        (1, 2, 2, 1, 5, 1, 1, 0),
        (2, 2, 2, 2, 6, 2, 1, 0),
        (3, 2, 3, 2, 5, 2, 1, 1),
        (4, 3, 3, 2, 6, 2, 2, 1),
        (5, 3, 4, 2, 8, 3, 2, 2),
        (6, 3, 4, 3, 10, 3, 2, 2),
        (7, 4, 4, 3, 12, 4, 2, 3),
        (8, 5, 4, 3, 14, 4, 3, 4),
        (9, 6, 4, 3, 18, 5, 3, 6),
        (10, 7, 4, 3, 24, 6, 4, 8),
    )
}


def make_hunt(level: HuntLevel, rng: np.random.Generator) -> dict[str, Any]:
    """Return a hunt as JSON values.

    `places`: room -> its places; `chests`: features of chest 1, 2, ...; `treasure`: number of the
    right one; `notes`: place -> text, empty places left out; `trails`: per fact the places to
    inspect, in order; `facts`: the true facts.
    """
    features = list(FEATURES)[: level.num_features]
    facts, chests, treasure = _make_chests(level, features, rng)
    rooms = [str(r) for r in rng.permutation(ROOMS)[: level.num_rooms]]
    places = {
        room: [f"{room} {kind}" for kind in rng.permutation(FURNITURE)[: level.num_places]]
        for room in rooms
    }
    starts = [str(p) for p in rng.permutation([p for ps in places.values() for p in ps])]
    lockers = [f"locker {n}" for n in rng.permutation(NUM_LOCKERS)[: 20 * level.depth]]
    notes: dict[str, str] = {}
    trails: list[list[str]] = []
    false_facts = _false_facts(level, features, treasure, rng)
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
        "chests": [dict(chest) for chest in chests],
        "treasure": chests.index(treasure) + 1,
        "notes": dict(sorted(notes.items())),
        "trails": trails,
        "facts": [list(fact) for fact in facts],
    }


def _make_chests(
    level: HuntLevel, features: Sequence[str], rng: np.random.Generator
) -> tuple[list[Fact], list[Chest], Chest]:
    """Draw facts, and chests of which one fits all of them and each fact excludes one alone."""
    kinds: list[Chest] = [
        dict(zip(features, values, strict=True))
        for values in itertools.product(*(FEATURES[f] for f in features))
    ]
    while True:
        treasure = kinds[int(rng.integers(len(kinds)))]
        facts = _draw_facts(level, features, treasure, rng)
        broken = [[i for i, fact in enumerate(facts) if not fits(kind, [fact])] for kind in kinds]
        witnesses = [
            [kind for kind, which in zip(kinds, broken, strict=True) if which == [i]]
            for i in range(len(facts))
        ]
        if all(witnesses):
            break
    chests = [treasure] + [options[int(rng.integers(len(options)))] for options in witnesses]
    others = [k for k, which in zip(kinds, broken, strict=True) if which and k not in chests]
    others = [others[i] for i in rng.permutation(len(others))]
    chests += others[: level.num_chests - len(chests)]
    order = rng.permutation(len(chests))
    return facts, [chests[i] for i in order], treasure


def _draw_facts(
    level: HuntLevel, features: Sequence[str], treasure: Chest, rng: np.random.Generator
) -> list[Fact]:
    """Draw different facts that hold for the treasure, mostly of what it is not."""
    if level.num_facts == 1:
        feature = str(rng.choice(list(features)))
        return [(feature, treasure[feature], True)]
    options: list[Fact] = [
        (feature, value, False)
        for feature in features
        for value in FEATURES[feature]
        if value != treasure[feature]
    ]
    if len(features) > 1 and rng.random() < 0.5:
        feature = str(rng.choice(list(features)))
        options = [fact for fact in options if fact[0] != feature]
        chosen: list[Fact] = [(feature, treasure[feature], True)]
    else:
        chosen = []
    order = rng.permutation(len(options))
    chosen += [options[i] for i in order[: level.num_facts - len(chosen)]]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def _false_facts(
    level: HuntLevel, features: Sequence[str], treasure: Chest, rng: np.random.Generator
) -> list[Fact]:
    """Draw facts that do not hold for the treasure."""
    facts: list[Fact] = []
    for _ in range(level.num_false_trails):
        feature = str(rng.choice(list(features)))
        others = [value for value in FEATURES[feature] if value != treasure[feature]]
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
