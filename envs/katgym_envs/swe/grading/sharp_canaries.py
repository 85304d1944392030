"""The canaries that prove something about a test: they fail where the bug makes the test fail.

A forger may leave every other assertion to honest code; a canary there would fail all by itself.
Not here: which of them are put into a round (`schedule.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from katgym_envs.swe.hidden import ValidCanary

TURNED = frozenset({"operator", "negation", "assert_method"})
"""Kinds that turn an assertion around. They show in its form: who fails `!=` and `not (...)` and
passes the rest tells them all."""


def sharp_canaries(canaries: Iterable[ValidCanary], node: str, place: str) -> list[ValidCanary]:
    """Return those that make a test fail at a place, else those at the first place after it.

    An exception on the way to an assertion has no canary of its own; what it keeps from being
    compared comes right after it. place: `TestResult.place`; "" takes all canaries of the test.
    """
    found = [c for c in canaries if node in c.fails]
    if not place:
        return found
    at_place = [c for c in found if c.places.get(node) == place]
    if at_place:
        return at_place
    start = _steps(place)
    later = [(p, c) for c in found if (p := _steps(c.places.get(node, ""))) and p > start]
    first = min((p for p, _ in later), default=[])
    return [c for p, c in later if p == first]


def has_safe_canary(canaries: Sequence[ValidCanary], places: Mapping[str, str]) -> bool:
    """Return whether a sharp canary of some of these tests cannot be told by its form."""
    return any(
        canary.spec.get("kind") not in TURNED
        for node, place in places.items()
        for canary in sharp_canaries(canaries, node, place)
    )


def _steps(place: str) -> list[tuple[int, int]]:
    pairs = [step.partition(":") for step in place.split(">") if step]
    return [(int(line), int(hit or 0)) for line, _, hit in pairs]
