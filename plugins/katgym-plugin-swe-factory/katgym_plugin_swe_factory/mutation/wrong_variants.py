"""Wrong variants of a fix: mutations of the lines it added or changed.

Not here: the operators (`mutation/`), which tests notice them (`pull_trial.py`).
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping

from katgym.errors import UsageError
from katgym_plugin_swe_factory.mutation import find_sites, mutate
from katgym_plugin_swe_factory.mutation.site import MutationSpec

Variant = tuple[str, bytes]
"""A product module, and what a mutation makes of it."""


def wrong_variants(
    before: Mapping[str, bytes], after: Mapping[str, bytes], *, limit: int, seed: int
) -> list[Variant]:
    """Return at most `limit` variants of the changed Python modules, drawn by the seed.

    before, after: path -> content on both sides; a module that is new has every line changed.
    """
    specs: list[MutationSpec] = []
    for path in sorted(p for p in after if p.endswith(".py")):
        lines = find_changed_lines(before.get(path, b""), after[path])
        try:
            sites = find_sites(after[path], path)
        except UsageError:  # what cannot be parsed has no variants
            continue
        specs += [s for site in sites if site.line in lines for s in site.specs()]
    random.Random(f"variants {seed}").shuffle(specs)
    return [(spec.file, mutate(after[spec.file], spec)) for spec in specs[:limit]]


def find_changed_lines(before: bytes, after: bytes) -> frozenset[int]:
    """Return the lines of `after`, from 1, that are not in `before`, or next to a deletion."""
    old, new = before.split(b"\n"), after.split(b"\n")
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    found: set[int] = set()
    for kind, _, _, start, end in matcher.get_opcodes():
        if kind == "delete":
            found |= {start, start + 1}
        elif kind != "equal":
            found |= set(range(start + 1, end + 1))
    return frozenset(found)
