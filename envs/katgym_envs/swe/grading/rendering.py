"""Hidden test modules as a round shows them: with canaries in, under names of this round only.

The names tell nothing and lines stay where they are. Not here: which canaries (`schedule.py`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from katgym_envs.swe.canaries import rename_tests, render
from katgym_envs.swe.canaries.blind import hide_expected
from katgym_envs.swe.grading.schedule import Round
from katgym_envs.swe.hidden import HiddenTests, TestFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRound:
    """The files of a round, and who is who in it."""

    files: Mapping[str, bytes]
    """Workspace path -> content of the test modules under their names of this round."""
    functions: Mapping[tuple[str, str], TestFunction]
    """(path, qualname) of this round -> the function it is."""
    expected: tuple[Any, ...] = ()
    """The values that a blind round hides, by number."""
    is_complete: bool = False
    """Whether what a blind round hides is all that its tests assert."""


def render_round(hidden: HiddenTests, chosen: Round, rng: random.Random) -> RenderedRound:
    """Return the modules of a round; functions that do not run are in them, too."""
    by_name = {(f.path, f.qualname): f for f in hidden.functions}
    files: dict[str, bytes] = {}
    functions: dict[tuple[str, str], TestFunction] = {}
    expected: list[Any] = []
    is_complete = chosen.is_blind
    for path in sorted({path for path, _ in chosen.functions}):
        specs = [c.spec for c in chosen.canaries if c.path == path]
        source = render(hidden.files[path], specs)
        if chosen.is_blind:
            blind = hide_expected(
                source,
                first=len(expected),
                functions=[name for owner, name in chosen.functions if owner == path],
            )
            source = blind.source
            expected += blind.values
            is_complete = is_complete and blind.is_complete
        renamed = rename_tests(source, rng.getrandbits(62))
        new_path = _new_path(path, hidden, rng)
        files[new_path] = renamed.source
        for function_path, qualname in chosen.functions:
            if function_path == path:
                functions[new_path, renamed.rename(qualname)] = by_name[path, qualname]
    return RenderedRound(
        files=files, functions=functions, expected=tuple(expected), is_complete=is_complete
    )


def _new_path(path: str, hidden: HiddenTests, rng: random.Random) -> str:
    """Return another path in the same folder, unless a hidden file refers to the module."""
    folder, _, name = path.rpartition("/")
    stem = re.escape(name.removesuffix(".py").encode())
    pattern = re.compile(rb"\b(?:import|from|tests?)\b[^\n]*\b" + stem + rb"\b")
    if any(pattern.search(content) for content in hidden.files.values()):
        return path
    new = f"test_{rng.getrandbits(40):010x}.py"
    return f"{folder}/{new}" if folder else new
