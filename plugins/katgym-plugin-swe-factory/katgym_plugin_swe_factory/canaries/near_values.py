"""Wrong values at least as near to what the buggy code computes as the right value is.

    near_values("citys", "cities")    # ("near_level", "citius"), ("near_between", "citiys"), ...

Level ones are just as near, so that not even the right distance tells them. Others lie between the
two, or are the buggy value with a small edit. None equals either. Not here: putting them into a
test (`rewrite.py`).
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from katgym_envs.swe.canaries.canary import pick
from katgym_plugin_swe_factory.canaries.likeness import Likeness, middles

Near = tuple[str, Any]
"""Kind and value."""
LEVEL, BETWEEN, EDIT = "near_level", "near_between", "near_edit"
_TURNS = (LEVEL, LEVEL, LEVEL, BETWEEN, LEVEL, LEVEL, EDIT)
_CLASSES = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
_MAX_DRAWN, _MAX_DRAWN_LONG, _LONG = 40, 10, 100
"""Texts of one kind that are looked at; how many of long ones, which take longer to compare."""
_MAX_PER_ELEMENT = 3
_MAX_NUMBER = 10**15


def near_values(base: Any, right: Any) -> list[Near]:
    """Return (kind, value) pairs, kinds in turns, most of them level; [] if nothing is near.

    Takes text, numbers, and lists, tuples and dicts of such values, both of one type. Equal
    arguments give equal results.
    """
    queues: dict[str, list[Near]] = {kind: [] for kind in _TURNS}
    seen = {repr(base), repr(right)}
    for kind, value in _candidates(base, right):
        if repr(value) not in seen and value != right and value != base:
            seen.add(repr(value))
            queues[kind].append((kind, value))
    for queue in queues.values():
        queue.sort(key=lambda near: pick(repr(base), repr(near)), reverse=True)
    ordered: list[Near] = []
    while any(queues.values()):
        ordered += [queues[kind].pop() for kind in _TURNS if queues[kind]]
    return ordered


def _candidates(base: Any, right: Any) -> Iterator[Near]:
    if isinstance(base, str) and isinstance(right, str):
        yield from _texts(base, right)
    elif _is_number(base) and _is_number(right):
        yield from _numbers(base, right)
    elif isinstance(base, (list, tuple)) and type(base) is type(right):
        kind_of = type(right)
        for kind, values in _lists(list(base), list(right)):
            yield kind, kind_of(values)
    elif isinstance(base, dict) and isinstance(right, dict):
        for kind, items in _lists(_align(base, right), list(right.items())):
            if len({key for key, _ in items}) == len(items):
                yield kind, dict(items)


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that can be reckoned with exactly enough."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and -_MAX_NUMBER < value < _MAX_NUMBER


def _texts(base: str, right: str) -> Iterator[Near]:
    """Yield texts that share start and end with `base` as far as `right` does."""
    start, end = middles(base, right)
    head, tail = right[:start], right[len(right) - end :]
    old, new = base[start : len(base) - end], right[start : len(right) - end]
    made: tuple[tuple[str, Iterable[str]], ...] = (
        (LEVEL, _edit(new, base + right)),
        (BETWEEN, _mix(old, new)),
        (EDIT, _edit(old, base + right)),
    )
    drawn: list[Near] = []
    for kind, middle_texts in made:
        texts = {head + text + tail for text in middle_texts} - {base, right}
        chosen = sorted(texts, key=lambda t: pick(base, right, t))
        limit = _MAX_DRAWN if len(right) < _LONG else _MAX_DRAWN_LONG
        drawn += [(kind, text) for text in chosen[:limit]]
    for (way, value), is_level in Likeness(base, right).nearest((n, n[1]) for n in drawn):
        yield _kind(way, is_level), value


def _kind(way: str, is_level: bool) -> str:
    """Return the kind of a value, from the way it was made and what came of it."""
    if is_level:
        return LEVEL
    return EDIT if way == LEVEL else way


def _mix(old: str, new: str) -> Iterator[str]:
    """Yield a part of one text followed by a part of the other."""
    for k, m in itertools.product(_cuts(new), _cuts(old)):
        yield new[:k] + old[m:]
        yield old[:m] + new[k:]


def _cuts(items: Sequence[Any]) -> Sequence[int]:
    """Return where a sequence is cut: everywhere if it is short."""
    step = max(1, len(items) // 8)
    return sorted({*range(0, len(items) + 1, step), len(items)})


def _edit(text: str, alphabet: str) -> Iterator[str]:
    """Yield a text with a letter replaced, added, missing, twice, or two letters swapped."""
    for i in range(len(text) + 1):
        neighbour = text[i : i + 1] or text[i - 1 : i] or alphabet[-1:]
        for letter in _like(neighbour, alphabet):
            yield text[:i] + letter + text[i:]
            if i < len(text):
                yield text[:i] + letter + text[i + 1 :]
        if i < len(text):
            yield text[:i] + text[i + 1 :]
            yield text[:i] + text[i : i + 1] + text[i:]
        if i + 1 < len(text):
            yield text[:i] + text[i + 1] + text[i] + text[i + 2 :]


def _like(letter: str, alphabet: str) -> list[str]:
    """Return a few letters of the same class, those of `alphabet` first."""
    for letters in _CLASSES:
        if letter and letter in letters:
            known = sorted((set(alphabet) & set(letters)) - {letter})
            others = sorted(set(letters) - set(known) - {letter})
            known.sort(key=lambda a: pick(alphabet, a))
            other = pick(alphabet, letter) % max(1, len(others))
            return [*known[:4], *others[other : other + 1]]
    if letter.isalnum():
        return []
    signs = {c for c in alphabet if not c.isalnum() and c.isprintable()}
    return sorted({*signs, *"-_."} - {letter})


def _numbers(base: float, right: float) -> Iterator[Near]:
    """Yield numbers no farther from `base` than `right` is, as round as both."""
    places, step = 0, 1.0
    if isinstance(right, int):
        step = _roundness(right) if base != int(base) else _roundness(math.gcd(int(base), right))
    elif "e" in repr(right):
        return
    else:
        places = len(repr(right).partition(".")[2])
        step = 10**-places
    sign = 1 if right > base else -1
    middle = base + sign * step * round(abs(right - base) / 2 / step)
    for kind, value in (
        (BETWEEN, right - sign * step),
        (BETWEEN, middle),
        (BETWEEN, base + sign * step),
        (EDIT, base - sign * step),
        (EDIT, base - (middle - base)),
        (LEVEL, 2 * base - right),
    ):
        number = type(right)(round(value, places))
        distance = abs(right - base) - abs(number - base)
        if distance >= 0 and (number >= 0 or min(base, right) < 0):
            yield (kind if distance else LEVEL), number


def _roundness(number: int) -> int:
    """Return the power of ten that a number is a multiple of, smaller than itself: 10 for 360."""
    step = 1
    while abs(number) > step * 10 and number % (step * 10) == 0:
        step *= 10
    return step


def _lists(base: list[Any], right: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    told = [repr(item) for item in base], [repr(item) for item in right]
    made = _same_length(base, right) if len(base) == len(right) else _other_length(base, right)
    shown = [((way, values), [repr(item) for item in values]) for way, values in made]
    fresh = [(near, texts) for near, texts in shown if texts not in told]
    for (way, values), is_level in Likeness(*told).nearest(fresh):
        yield _kind(way, is_level), values


def _same_length(base: list[Any], right: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield lists with a value near one of those that differ, or with some of either."""
    differing = [i for i, (a, b) in enumerate(zip(base, right, strict=True)) if a != b]
    for cut in range(1, len(differing)):
        some = set(differing[:cut])
        yield BETWEEN, [a if i in some else b for i, (a, b) in _pairs(base, right)]
        yield BETWEEN, [b if i in some else a for i, (a, b) in _pairs(base, right)]
    for i in differing:
        found = near_values(base[i], right[i])[:_MAX_PER_ELEMENT]
        for kind, item in found or [(LEVEL, item) for item in _variants(right[i])]:
            yield kind, [*right[:i], item, *right[i + 1 :]]
            if len(differing) > 1:
                yield EDIT, [*base[:i], item, *base[i + 1 :]]


def _pairs(base: list[Any], right: list[Any]) -> list[tuple[int, tuple[Any, Any]]]:
    return list(enumerate(zip(base, right, strict=True)))


def _other_length(base: list[Any], right: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield lists with a part of what the longer has more, or with another element there."""
    start, end = middles([repr(i) for i in base], [repr(i) for i in right])
    head, tail = right[:start], right[len(right) - end :]
    old, new = base[start : len(base) - end], right[start : len(right) - end]
    for k, m in itertools.product(_cuts(new), _cuts(old)):
        yield BETWEEN, [*head, *new[:k], *old[m:], *tail]
        yield BETWEEN, [*head, *old[:m], *new[k:], *tail]
    num_more = len(base) - len(right)
    for i in range(len(base) - num_more + 1 if num_more > 0 else 0):
        yield LEVEL, base[:i] + base[i + num_more :]
    for kind, part in ((EDIT, old), (LEVEL, new)):
        for i, item in enumerate(part[:_MAX_DRAWN]):
            for other in _variants(item):
                yield kind, [*head, *part[:i], other, *part[i + 1 :], *tail]
            yield kind, [*head, *part[: i + 1], item, *part[i + 1 :], *tail]


def _variants(value: Any) -> list[Any]:
    """Return a few values that differ a little from one."""
    if isinstance(value, str):
        made = sorted(set(_edit(value, value)) - {value}, key=lambda t: pick(value, t))
        return [text for text in made if len(text) == len(value)][:_MAX_PER_ELEMENT]
    if isinstance(value, int) and not isinstance(value, bool):
        step = _roundness(value)
        return [value + step, value - step if value else 2 * step, value + 3 * step]
    if isinstance(value, (list, tuple)) and value:
        return [type(value)([*value[:-1], last]) for last in _variants(value[-1])]
    if isinstance(value, dict) and value:
        key = list(value)[-1]
        return [{**value, key: other} for other in _variants(value[key])]
    return []


def _align(base: Mapping[Any, Any], right: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the items of `base` in the order of `right`; other keys where keys are missing."""
    spare = [key for key in base if key not in right]
    items: list[tuple[Any, Any]] = []
    for key in right:
        if key in base:
            items.append((key, base[key]))
        elif spare:
            items.append((spare[0], base[spare.pop(0)]))
    return items + [(key, base[key]) for key in spare]
