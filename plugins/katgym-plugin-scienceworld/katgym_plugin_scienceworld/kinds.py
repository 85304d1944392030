"""The kinds of task and their variations, split as upstream splits them.

Written down, so that tasks are known before Java runs; a test compares some with upstream.
"""

from __future__ import annotations

from collections.abc import Mapping

KINDS: Mapping[str, tuple[int, int, int]] = {
    "boil": (14, 21, 30),
    "change-the-state-of-matter-of": (14, 21, 30),
    "chemistry-mix": (16, 24, 32),
    "chemistry-mix-paint-secondary-color": (18, 27, 36),
    "chemistry-mix-paint-tertiary-color": (18, 27, 36),
    "find-animal": (150, 225, 300),
    "find-living-thing": (150, 225, 300),
    "find-non-living-thing": (150, 225, 300),
    "find-plant": (150, 225, 300),
    "freeze": (14, 21, 30),
    "grow-fruit": (62, 93, 126),
    "grow-plant": (62, 93, 126),
    "identify-life-stages-1": (6, 9, 14),
    "identify-life-stages-2": (4, 6, 10),
    "inclined-plane-determine-angle": (84, 126, 168),
    "inclined-plane-friction-named-surfaces": (692, 1038, 1386),
    "inclined-plane-friction-unnamed-surfaces": (80, 120, 162),
    "lifespan-longest-lived": (62, 93, 125),
    "lifespan-longest-lived-then-shortest-lived": (62, 93, 125),
    "lifespan-shortest-lived": (62, 93, 125),
    "measure-melting-point-known-substance": (218, 327, 436),
    "measure-melting-point-unknown-substance": (150, 225, 300),
    "melt": (14, 21, 30),
    "mendelian-genetics-known-plant": (60, 90, 120),
    "mendelian-genetics-unknown-plant": (240, 360, 480),
    "power-component": (10, 15, 20),
    "power-component-renewable-vs-nonrenewable-energy": (10, 15, 20),
    "test-conductivity": (450, 675, 900),
    "test-conductivity-of-unknown-substances": (300, 450, 600),
    "use-thermometer": (270, 405, 540),
}
"""Kind -> where its variations for train end, those for validation, and those for test."""


def variations(kind: str, split: str) -> range:
    """Return the numbers of a kind's variations in a split."""
    train, validation, test = KINDS[kind]
    starts = {"train": 0, "validation": train, "test": validation}
    ends = {"train": train, "validation": validation, "test": test}
    return range(starts[split], ends[split])
