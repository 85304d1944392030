"""Puts canaries into a test module; what is not changed stays byte by byte, lines stay lines.

Not here: random names (`rename.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from katgym.errors import UsageError
from katgym_envs.swe.canaries.canary import Edit, source_id


def render(source: bytes, specs: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the module with these canaries (`Canary.spec`) in it, in any number and order.

    Raises `UsageError` for a spec made for another module, a malformed one, and two that change the
    same place.
    """
    made_for = source_id(source)
    edits: list[Edit] = []
    for spec in specs:
        if spec.get("source") != made_for:
            raise UsageError(
                f"the canary is for a module {spec.get('source')!r}, this one is {made_for!r}. "
                "Hint: canaries belong to one version of a test module"
            )
        listed = spec.get("edits")
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            raise UsageError(f"a canary's edits are a list, got {listed!r}")
        edits += [_edit(values, len(source)) for values in listed]
    edits.sort(key=lambda edit: (edit.start, edit.end))
    for one, other in itertools.pairwise(edits):
        if other.start < one.end or (other.start, other.end) == (one.start, one.end):
            raise UsageError(f"two canaries change the same place, byte {other.start}")
    pieces: list[bytes] = []
    position = 0
    for edit in edits:
        pieces.append(source[position : edit.start])
        pieces += [
            part.encode() if isinstance(part, str) else source[slice(*part)] for part in edit.parts
        ]
        position = edit.end
    return b"".join([*pieces, source[position:]])


def _edit(values: Sequence[Any], size: int) -> Edit:
    try:
        start, end, *rest = values
        parts = tuple(part if isinstance(part, str) else (part[0], part[1]) for part in rest)
        numbers = [start, end, *(n for part in parts if not isinstance(part, str) for n in part)]
        is_sound = start <= end and all(type(n) is int and 0 <= n <= size for n in numbers)
    except (TypeError, ValueError, IndexError, KeyError) as e:
        raise UsageError(f"a canary's edit is [start, end, text...], got {values!r}") from e
    if not is_sound:
        raise UsageError(f"a canary's edit lies outside its module of {size} bytes: {values!r}")
    return Edit(start, end, parts)
