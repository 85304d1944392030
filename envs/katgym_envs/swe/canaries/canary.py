"""Canaries as data: a few edits of a test module's bytes, as data.

Edits are of bytes, so a canary that was kept means the same to every version of Python and of this
package. Not here: finding them (`find.py`), applying them (`render.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Part = str | tuple[int, int]
"""New text, or the bytes `source[start:end]` of the unchanged module."""


class Role(StrEnum):
    """What the changed place is to its test, the most telling first."""

    EXPECTED = "expected"
    """A value that a result is compared with."""
    TABLE = "table"
    """A value of a parametrised or module-level table, or an argument of a test's own check."""
    INPUT = "input"
    """A value the product is called with."""
    SHARED = "shared"
    """A value in a fixture, a set-up method or a helper function."""
    ASSERTION = "assertion"
    """No value: what the assertion says of them is turned around."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace `source[start:end]`; the new text has as many line ends as the old one."""

    start: int
    end: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """One candidate; whether it fails on correct code is for a run to tell.

    Example:
        Canary(kind="number", role=Role.EXPECTED, line=7, tests=("TestA::test_b",),
               edits=(Edit(120, 122, ("43",)),), source_id="9f86d081")
    """

    kind: str
    role: Role
    line: int
    tests: tuple[str, ...]
    """Qualified names of the test functions it can affect, `Class::function`."""
    edits: tuple[Edit, ...]
    source_id: str

    @property
    def spec(self) -> dict[str, Any]:
        """Return what `render` needs, as plain JSON values."""
        edits = [
            [edit.start, edit.end, *(p if isinstance(p, str) else list(p) for p in edit.parts)]
            for edit in self.edits
        ]
        return {"kind": self.kind, "source": self.source_id, "edits": edits}

    @property
    def site(self) -> tuple[int, int]:
        """Return the bytes it touches, from the first to behind the last."""
        return min(e.start for e in self.edits), max(e.end for e in self.edits)


def source_id(source: bytes) -> str:
    """Return what ties a canary to the module it was made for."""
    return hashlib.sha256(source).hexdigest()[:8]


def pick(*key: object) -> int:
    """Return a number that is the same for the same key everywhere: no global randomness."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:6], "big")


def spread(canaries: Sequence[Canary]) -> list[Canary]:
    """Return canaries in an order that is fixed but follows neither place nor kind."""
    return sorted(canaries, key=lambda c: pick(c.kind, c.line, c.edits[0].start, c.edits[0].parts))
