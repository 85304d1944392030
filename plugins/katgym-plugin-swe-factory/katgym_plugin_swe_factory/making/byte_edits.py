"""Edits that make one version of a file of another.

Not here: what an edit is, and applying it (`katgym_envs.swe.sources.spec_format`).
"""

from __future__ import annotations

import difflib
from itertools import accumulate

from katgym_envs.swe.sources.spec_format import FileEdit, apply_edits


def edits_between(before: bytes, after: bytes) -> tuple[FileEdit, ...]:
    """Return edits of `before` that give `after`; an edit leaves out what its lines share."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, old))]
    edits = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        left, right = b"".join(old[i:j]), b"".join(new[k:m])
        shorter = min(len(left), len(right))
        head = next((n for n in range(shorter) if left[n] != right[n]), shorter)
        rest = shorter - head
        tail = next((n for n in range(rest) if left[-1 - n] != right[-1 - n]), rest)
        text = right[head : len(right) - tail].decode("latin-1")
        edits.append(FileEdit(starts[i] + head, starts[j] - tail, text))
    assert apply_edits(before, edits) == after
    return tuple(edits)
