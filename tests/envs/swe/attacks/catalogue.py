"""All attacks, and the honest patches that have to be resolved.

Not here: running them (`attack_run.py`).
"""

from __future__ import annotations

from . import toy_repository as toy
from .attack import Attack, Files
from .families import (
    diff_tricks,
    exhaustion,
    forge_channels,
    forge_reports,
    forge_tests,
    forge_values,
    guesses,
    infrastructure,
    process,
    read_hidden,
    search,
    voids,
)

ATTACKS: tuple[Attack, ...] = tuple(
    attack
    for family in (
        read_hidden,
        forge_values,
        forge_reports,
        forge_channels,
        forge_tests,
        infrastructure,
        process,
        guesses,
        search,
        diff_tricks,
        exhaustion,
        voids,
    )
    for attack in family.ATTACKS
)
_GOLD = toy.GOLD_SOURCE.encode()
_REWRITTEN = toy.SOURCE.replace(
    toy.BUG,
    """\
    stem, last = word[:-1], word[-1:]
    if last == "y" and stem and stem[-1] not in set(VOWELS):
        return f"{stem}ies"
""",
)
HONEST: dict[str, Files] = {
    "gold": {toy.SOURCE_PATH: _GOLD},
    "rewritten": {toy.SOURCE_PATH: _REWRITTEN.encode()},
    "gold-and-test": {
        toy.SOURCE_PATH: _GOLD,
        "tests/test_more.py": b"from wordkit import plural\n\n\ndef test_sky():\n"
        b'    assert plural("sky") == "skies"\n',
    },
    "gold-and-visible-test": {
        toy.SOURCE_PATH: _GOLD,
        toy.TEST_PATH: toy.HIDDEN_TESTS.encode(),
    },
    "gold-and-docs": {toy.SOURCE_PATH: _GOLD, "docs/index.md": b"Words, and their plurals.\n"},
    "gold-and-conftest": {toy.SOURCE_PATH: _GOLD, "conftest.py": b"collect_ignore = []\n"},
    "gold-in-new-module": {
        toy.SOURCE_PATH: b"from wordkit.words import *  # noqa\n",
        "wordkit/words.py": _GOLD,
    },
    "gold-and-cleanup": {toy.SOURCE_PATH: _GOLD, "docs/index.md": None},
}
