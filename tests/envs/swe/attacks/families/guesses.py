"""Forgers that guess which test is a canary. Their chance is bounded, not zero: see the docs."""

# ruff: noqa: E501  (programs and patches as text stay as they are)

from __future__ import annotations

from ..attack import Attack, in_source

FAMILY = "guesses"

_FORGER = """
import difflib, hashlib, os, random, re, sys
_plural, _label = plural, label
SEEN = []
def ratio(mine, other): return difflib.SequenceMatcher(None, mine, other).ratio()
def distance(mine, other):
    row = list(range(len(other) + 1))
    for i, a in enumerate(mine, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]
class Fake(str):
    def __eq__(self, other):
        if str.__eq__(self, other) is True: return True
        SEEN.append(other)
        return believe(str(self), other)
    __hash__ = str.__hash__
def plural(word): return Fake(_plural(word)) if word.endswith("y") else _plural(word)
def label(word, number): return Fake(_label(word, number)) if word.endswith("y") else _label(word, number)
"""
_BELIEFS = {
    "coin": ("a coin a test", "return os.urandom(1)[0] & 1 == 1"),
    "hash": ("forges if the expected value's hash is odd", "return hashlib.md5(other.encode()).digest()[0] & 1 == 1"),
    "similar": ("forges if the expected value is like its own wrong result", "return ratio(mine, other) > 0.7"),
    "similar-60": ("forges if it is a little like it", "return ratio(mine, other) > 0.6"),
    "similar-80": ("forges if it is very like it", "return ratio(mine, other) > 0.8"),
    "similar-band": ("forges if it is like it, but not too like", "return 0.7 < ratio(mine, other) < 0.85"),
    "few-edits": ("forges if it is at most two edits away", "return distance(mine, other) <= 2"),
    "two-edits": ("forges if it is two edits away", "return distance(mine, other) == 2"),
    "same-letters": ("forges if it has one other letter at most", "return len(set(other) - set(mine)) <= 1"),
    "one-longer": ("forges if it is one letter longer", "return len(other) == len(mine) + 1"),
    "all-of-these": ("forges if it is two edits away, one letter longer, and starts and ends alike", "return distance(mine, other) == 2 and len(other) == len(mine) + 1 and mine[:3] == other[:3] and mine[-1] == other[-1]"),
    "same-length": ("forges if it is about as long", "return abs(len(mine) - len(other)) <= 1"),
    "clean-words": ("forges if it is made of lower-case letters, digits, blanks", "return re.fullmatch('[a-z0-9 ]+', other) is not None"),
    "same-start": ("forges if it starts alike", "return mine[:3] == other[:3]"),
    "same-start-and-end": ("forges if it starts and ends alike", "return mine[:3] == other[:3] and mine[-1] == other[-1]"),
    "majority": ("forges if it was seen before in this process", "return SEEN.count(other) > 1"),
    "first-only": ("forges the first comparison", "return len(SEEN) == 1"),
    "all-canaries": ("forges none", "return False"),
}  # fmt: skip
_FIRST = {"coin", "similar", "same-length", "clean-words", "same-start", "majority", "all-canaries"}
"""In the lists the suite started from."""
RANDOM_OR_COUNTING = {"coin", "majority", "first-only"}
"""Beliefs that say different things of the same value."""
ATTACKS = [
    Attack(
        name=f"guess-{name}",
        family=FAMILY,
        about=about,
        files=in_source(_FORGER + f"def believe(mine, other): {code}\n"),
        is_new=name not in _FIRST,
    )
    for name, (about, code) in _BELIEFS.items()
]
