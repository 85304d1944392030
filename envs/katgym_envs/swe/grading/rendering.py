"""Hidden test modules as a round shows them: with canaries in, under names of this round only.

A blind round has the same names each time. They tell nothing, and lines stay where they are. Not
here: which canaries (`schedule.py`).
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from katgym.errors import UsageError
from katgym_envs.swe.canaries import rename_tests, render
from katgym_envs.swe.canaries.blind import Raised, blind_module, function_names
from katgym_envs.swe.grading.schedule import Round
from katgym_envs.swe.hidden import HiddenTests, TestFunction
from katgym_envs.swe.parse_source import parse_source


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRound:
    """The files of a round, and who is who in it."""

    files: Mapping[str, bytes]
    """Workspace path -> content of the test modules under their names of this round."""
    functions: Mapping[tuple[str, str], TestFunction]
    """(path, qualname) of this round -> the function it is."""
    helpers: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> content of hidden modules that hold no graded tests, where they are not as they were:
    in a blind round."""
    raised: Mapping[int, Raised] = field(default_factory=dict)
    """What exceptions have to be, by place of a blind round."""
    is_complete: bool = False
    """Whether a blind round's modules assert nothing besides what they note."""


_blind: dict[tuple[str, frozenset[tuple[str, str]]], RenderedRound] = {}
"""Blind rounds by task and functions: the last few that were rendered."""
_MAX_KEPT = 32
_lock = threading.Lock()


def render_round(hidden: HiddenTests, chosen: Round, rng: random.Random) -> RenderedRound:
    """Return the modules of a round; functions that do not run are in them, too.

    A blind round of a task has the same names each time, so that what gold and a patch note has.
    """
    if not chosen.is_blind:
        return _render(hidden, chosen, rng)
    key = hidden.key(), chosen.functions
    with _lock:
        if key not in _blind:
            while len(_blind) >= _MAX_KEPT:
                del _blind[next(iter(_blind))]
            _blind[key] = _render(hidden, chosen, random.Random(hidden.instance_id))
        return _blind[key]


def _render(hidden: HiddenTests, chosen: Round, rng: random.Random) -> RenderedRound:
    by_name = {(f.path, f.qualname): f for f in hidden.functions}
    files: dict[str, bytes] = {}
    functions: dict[tuple[str, str], TestFunction] = {}
    blind = _BlindModules(hidden, chosen) if chosen.is_blind else None
    for path in sorted({path for path, _ in chosen.functions}):
        specs = [c.spec for c in chosen.canaries if c.path == path]
        source = render(hidden.files[path], specs)
        if blind is not None:
            source = blind.of(source)
        renamed = rename_tests(source, rng.getrandbits(62))
        new_path = _new_path(path, hidden, rng)
        files[new_path] = renamed.source
        for function_path, qualname in chosen.functions:
            if function_path == path:
                functions[new_path, renamed.rename(qualname)] = by_name[path, qualname]
    if blind is None:
        return RenderedRound(files=files, functions=functions)
    helpers = {path: blind.of(content) for path, content in blind.helpers.items()}
    return RenderedRound(
        files=files,
        functions=functions,
        helpers=helpers,
        raised=blind.raised,
        is_complete=blind.is_complete,
    )


class _BlindModules:
    """The hidden modules of a round that notes instead of asserting."""

    def __init__(self, hidden: HiddenTests, chosen: Round) -> None:
        self._kept = {name for _, name in chosen.functions}
        self._helpers: set[str] = set()
        self._num_places = 0
        self.raised: dict[int, Raised] = {}
        self.is_complete = True
        self.helpers: dict[str, bytes] = {}
        """Modules without graded tests, before they are made blind."""
        graded = {f.path for f in hidden.functions}
        for path, content in sorted(hidden.files.items()):
            if not path.endswith(".py"):
                continue
            try:
                functions, imported = function_names(content)
            except UsageError:  # data of a test, or a module that is not in UTF-8
                self.is_complete &= not _is_python(content)
                continue
            self._helpers |= functions
            self._kept |= imported
            if path not in graded:
                self.helpers[path] = content

    def of(self, source: bytes) -> bytes:
        """Return a module without its assertions, and without tests that do not run."""
        blind = blind_module(
            source, first=self._num_places, functions=self._kept, helpers=self._helpers
        )
        self._num_places += blind.num_places
        self.raised |= blind.raised
        self.is_complete &= blind.is_complete
        return blind.source


def _is_python(source: bytes) -> bool:
    """Return whether Python can import a source, in whatever encoding it says."""
    try:
        parse_source(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _new_path(path: str, hidden: HiddenTests, rng: random.Random) -> str:
    """Return another path in the same folder, unless a hidden file refers to the module."""
    folder, _, name = path.rpartition("/")
    stem = re.escape(name.removesuffix(".py").encode())
    pattern = re.compile(rb"\b(?:import|from|tests?)\b[^\n]*\b" + stem + rb"\b")
    if any(pattern.search(content) for content in hidden.files.values()):
        return path
    new = f"test_{rng.getrandbits(40):010x}.py"
    return f"{folder}/{new}" if folder else new
