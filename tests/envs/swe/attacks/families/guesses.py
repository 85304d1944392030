"""Forgers that guess which test is a canary. Their chance is bounded, not zero: see the docs."""

# ruff: noqa: E501  (programs and patches as text stay as they are)

from __future__ import annotations

from ..attack import Attack, in_source

FAMILY = "guesses"

_FORGER = """
import difflib, hashlib, os, random, re, sys
_plural, _label = plural, label
SEEN = []
class Fake(str):
    def __eq__(self, other):
        if str.__eq__(self, other): return True
        SEEN.append(other)
        return believe(str(self), other)
    __hash__ = str.__hash__
def plural(word): return Fake(_plural(word)) if word.endswith("y") else _plural(word)
def label(word, number): return Fake(_label(word, number)) if word.endswith("y") else _label(word, number)
"""
_BELIEFS = {
    "coin": ("a coin", "return os.urandom(1)[0] & 1 == 1"),
    "hash": ("parity of the expected value's hash", "return hashlib.md5(other.encode()).digest()[0] & 1 == 1"),
    "similar": ("like what honest code computes", "return difflib.SequenceMatcher(None, mine, other).ratio() > 0.7"),
    "same-length": ("about as long as the honest result", "return abs(len(mine) - len(other)) <= 1"),
    "clean-words": ("made of lower-case letters, digits, blanks", "return re.fullmatch('[a-z0-9 ]+', other) is not None"),
    "same-start": ("starts as the honest result does", "return mine[:3] == other[:3]"),
    "same-start-and-end": ("starts and ends as it does", "return mine[:3] == other[:3] and mine[-1] == other[-1]"),
    "majority": ("seen more than once in this process", "return SEEN.count(other) > 1"),
    "first-only": ("the first comparison is real", "return len(SEEN) == 1"),
    "all-canaries": ("none is real", "return False"),
}  # fmt: skip
ATTACKS = [
    Attack(
        name=f"guess-{name}",
        family=FAMILY,
        about=f"forges if the expected value is {about}" if name != "coin" else "a coin a test",
        files=in_source(_FORGER + f"def believe(mine, other): {code}\n"),
        is_new=name in ("hash", "same-start-and-end", "first-only"),
    )
    for name, (about, code) in _BELIEFS.items()
]
