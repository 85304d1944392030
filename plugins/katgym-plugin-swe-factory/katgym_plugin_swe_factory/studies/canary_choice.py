"""Chooses among sound canaries the few that a set has to keep.

Not here: which of them are put into a round (`grading/schedule.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from katgym_envs.swe.grading.sharp_canaries import sharp_canaries
from katgym_envs.swe.hidden import ValidCanary
from katgym_envs.swe.sources.spec_format import CanarySpec

_NUM_PER_TEST = 4


def choose_canaries(
    found: Sequence[ValidCanary], wanted: Collection[tuple[str, str]]
) -> list[ValidCanary]:
    """Return canaries so that each (node id, place of failure) has four, if that many exist.

    Those count that fail at the place, or, if none does, at the first place after it: what a
    grader takes. What is chosen for one test counts for others.
    """
    by_node: dict[str, list[ValidCanary]] = {}
    for canary in sorted(found, key=lambda c: (c.path, repr(c.spec))):
        for node in canary.fails:
            by_node.setdefault(node, []).append(canary)
    chosen: dict[int, ValidCanary] = {}
    for node, place in sorted(wanted):
        sharp = sharp_canaries(by_node.get(node, []), node, place)
        num_missing = _NUM_PER_TEST - sum(id(c) in chosen for c in sharp)
        fresh = [c for c in sharp if id(c) not in chosen]
        chosen |= {id(c): c for c in fresh[: max(0, num_missing)]}
    return sorted(chosen.values(), key=lambda c: (c.path, repr(c.spec)))


def canary_spec(canary: ValidCanary, numbers: Mapping[str, int]) -> CanarySpec:
    """Return a canary as sets keep it; `numbers` maps node ids to their numbers."""
    fails = sorted(canary.fails, key=lambda node: numbers[node])
    places = tuple(canary.places[node] for node in fails)
    return CanarySpec(
        path=canary.path,
        spec=dict(canary.spec),
        fails=tuple(numbers[node] for node in fails),
        places=places[:1] if len(set(places)) == 1 else places,
        near_for=tuple(sorted(canary.near_for)),
    )
