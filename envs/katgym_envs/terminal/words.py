"""Words that tasks draw names and texts from."""

from __future__ import annotations

import random

NOUNS = (
    "amber", "anchor", "apple", "arrow", "atlas", "badge", "basin", "beacon", "bench", "birch",
    "bishop", "blanket", "bottle", "bridge", "bucket", "button", "cabin", "camera", "candle",
    "canvas", "carbon", "castle", "cedar", "cellar", "chapel", "cherry", "circle", "cloud",
    "clover", "cobalt", "comet", "copper", "coral", "cotton", "crater", "cricket", "crystal",
    "dagger", "daisy", "desert", "diamond", "dolphin", "dragon", "eagle", "ember", "engine",
    "falcon", "feather", "fennel", "ferry", "fiddle", "forest", "fossil", "fountain", "galaxy",
    "garden", "garnet", "ginger", "glacier", "granite", "grape", "hammer", "harbor", "hazel",
    "heron", "hollow", "honey", "island", "ivory", "jasmine", "jungle", "kettle", "ladder",
    "lantern", "laurel", "lemon", "lichen", "lily", "lobster", "magnet", "mango", "maple", "marble",
    "meadow", "melon", "mirror", "mountain", "nectar", "needle", "nickel", "oasis", "olive", "onyx",
    "orchid", "otter", "oyster", "paddle", "panther", "pepper", "pigeon", "pillar", "planet",
    "plum", "pocket", "poppy", "prairie", "quarry", "quartz", "rabbit", "radish", "raven", "ribbon",
    "river", "rocket", "saddle", "saffron", "salmon", "sapphire", "scarlet", "shadow", "silver",
    "sparrow", "spider", "spruce", "summit", "sunset", "tablet", "temple", "thistle", "thunder",
    "timber", "topaz", "tulip", "tunnel", "turtle", "valley", "velvet", "violet", "walnut",
    "willow", "window", "winter", "zephyr",
)  # fmt: skip
PEOPLE = (
    "ada", "ben", "cleo", "dario", "elif", "finn", "gwen", "hugo", "ines", "jonas", "kira", "liam",
    "mina", "noah", "olga", "pavel", "quinn", "rosa", "sven", "tara", "umar", "vera", "wanda",
    "xenia", "yusuf", "zora",
)  # fmt: skip
CITIES = (
    "Accra", "Bergen", "Cusco", "Dakar", "Evora", "Fargo", "Genoa", "Hanoi", "Izmir", "Jaipur",
    "Kyoto", "Lima", "Malmo",
)  # fmt: skip


def sentence(rng: random.Random, *, num_words: int = 6) -> str:
    """Return different words in a row, the first with a capital."""
    return " ".join(rng.sample(NOUNS, num_words)).capitalize() + "."


def lines(rng: random.Random, num: int) -> str:
    """Return a text of so many sentences, one a line."""
    return "".join(sentence(rng, num_words=rng.randint(4, 8)) + "\n" for _ in range(num))
