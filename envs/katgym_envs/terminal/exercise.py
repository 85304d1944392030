"""One exercise: what is asked, the files before and after, and a script that does it.

Not here: the templates (`skills/`), tasks made of several exercises (`task_set.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from katgym_envs.terminal.state.entries import Entry, File
from katgym_envs.terminal.state.workspace import PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """Paths are relative to the exercise's own folder, in which `script` starts."""

    prompt: str
    before: Mapping[str, Entry]
    changes: Mapping[str, Entry | None]
    """What differs afterwards; None for what is gone."""
    script: str

    def after(self) -> dict[str, Entry]:
        """Return everything that has to be there in the end; what stays keeps its mode."""
        kept: dict[str, Entry] = {
            path: msgspec.structs.replace(entry, mode=PLAIN if entry.mode is None else entry.mode)
            if isinstance(entry, File)
            else entry
            for path, entry in self.before.items()
        }
        merged = {**kept, **self.changes}
        return {path: entry for path, entry in merged.items() if entry is not None}


Template = Callable[[random.Random], Exercise]


@dataclass(frozen=True, slots=True)
class Skill:
    """The templates of one skill, in a fixed order."""

    name: str
    templates: list[Template] = field(default_factory=list)

    def template(self, make: Template) -> Template:
        """Add a template; use as a decorator."""
        self.templates.append(make)
        return make
