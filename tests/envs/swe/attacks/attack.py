"""What an attack is: a patch, and the outcomes that are right for it.

Not here: the attacks (`families/`), running them (`attack_run.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from katgym.sandbox import WorkspaceDiff
from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.grading.report import Outcome

from . import toy_repository as toy

Files = Mapping[str, bytes | FileEntry | None]
NOT_SOLVED = frozenset({Outcome.TAMPERED, Outcome.FAILED, Outcome.PARTIAL, Outcome.TIMEOUT})
FORGED = frozenset({Outcome.TAMPERED})
INVALID = frozenset({Outcome.PATCH_INVALID})
EMPTY = frozenset({Outcome.PATCH_EMPTY})
NO_EFFECT = frozenset({Outcome.FAILED, Outcome.PATCH_EMPTY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack; either `files` or `patch` is given."""

    name: str
    family: str
    about: str
    """One line for the table."""
    files: Files | None = None
    """Changes against the base state."""
    patch: str | bytes | WorkspaceDiff | None = None
    """A patch's text, or a workspace's changes, for those that are about the form."""
    expected: frozenset[Outcome] = NOT_SOLVED
    is_slow: bool = False
    is_new: bool = False
    """Not in the lists the suite started from."""


Builder = Callable[[], Files]


def in_source(code: str, *, at_top: bool = False) -> dict[str, bytes]:
    """Return the change that adds code to the product's module, the bug left in."""
    text = code + "\n" + toy.SOURCE if at_top else toy.SOURCE + "\n\n" + code
    return {toy.SOURCE_PATH: text.encode()}


def with_file(path: str, content: str, **more: str) -> dict[str, bytes]:
    """Return the change that adds a file, and a harmless one so that something is left to grade."""
    files = {path: content.encode(), "notes.txt": b"Words, and more.\n"}
    return files | {name: text.encode() for name, text in more.items()}
