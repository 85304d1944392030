"""A `diff --git` line and the lines below it that tell modes, renames and blobs.

Not here: names with prefixes and quotes (`header_names.py`), the hunks (`unified.py`).
"""

from __future__ import annotations

import os
import re

from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.file_patch import LINK_MODE, MODES, SUBMODULE_MODE, FilePatch
from katgym_envs.swe.patching.header_names import names_of_git_line, path_of_git_names
from katgym_envs.swe.patching.paths import check_path, refuse_outside, unquote

GIT_LINE = b"diff --git "
_KINDS = re.compile(
    rb"((?:old|new|deleted file|new file) mode|(?:rename|copy) (?:from|to)"
    rb"|(?:dis)?similarity index|index) (.*)"
)
_INDEX = re.compile(rb"([^ .]+)\.\.([^ ]+)(?: ([0-7]{6}))?")
MAX_HEADER_BYTES = 20_000
"""Of one line: two paths of the greatest length, quoted in part."""


class GitHeader:
    """What is read of a header up to now."""

    def __init__(self, text: bytes, number: int) -> None:
        self.text = text
        self.number = number
        self.modes: dict[str, int] = {}
        self.index_mode: int | None = None
        self.moves: dict[str, str] = {}
        self.blobs = ("", "")
        self.is_new = self.is_deleted = self.is_copy = False
        self.has_lines = False

    def add(self, text: bytes, number: int) -> bool:
        """Take in one line without its end; False: it is not one of a header."""
        found = _KINDS.fullmatch(text)
        if found is None:
            return False
        self.has_lines = True
        kind, value = found[1].decode(), found[2]
        if kind.endswith("mode"):
            side = "old" if kind in ("old mode", "deleted file mode") else "new"
            self.modes[side] = self._mode(value, number)
            self.is_new |= kind == "new file mode"
            self.is_deleted |= kind == "deleted file mode"
        elif kind.endswith(("from", "to")):
            name = unquote(os.fsdecode(value))
            side = "old" if kind.endswith("from") else "new"
            self.moves[side] = check_path(name or "", line=number)
            self.is_copy |= kind.startswith("copy")
        elif kind == "index":
            index = _INDEX.fullmatch(value)
            if index is not None:
                self.blobs = (os.fsdecode(index[1]), os.fsdecode(index[2]))
                self.index_mode = int(index[3], 8) if index[3] else None
        return True

    def _mode(self, text: bytes, number: int) -> int:
        if re.fullmatch(rb"[0-7]{6}", text) is None:
            shown = text[:20].decode("ascii", "replace")
            raise PatchError(
                PatchFailure.BAD_MODE, f"a mode has six octal digits, got {shown!r}", line=number
            )
        return int(text, 8)

    def part(self) -> FilePatch:
        """Return the part without its content."""
        old, new = self._paths()
        if self.is_new and self.is_deleted:
            raise self._error("a file is both created and deleted")
        old_mode = None if self.is_new else self.modes.get("old", self.index_mode)
        new_mode = None if self.is_deleted else self.modes.get("new", self.index_mode)
        return FilePatch(
            old_path=None if self.is_new else old,
            new_path=None if self.is_deleted else new,
            old_mode=old_mode,
            new_mode=new_mode,
            is_copy=self.is_copy,
            problem=self._problem(old_mode, new_mode, new),
            line=self.number,
        )

    def _problem(self, old: int | None, new: int | None, path: str) -> PatchError | None:
        modes = [mode for mode in (old, new) if mode is not None]
        if SUBMODULE_MODE in modes:
            return submodule_problem(path, self.number)
        for mode in modes:
            if mode not in MODES:
                allowed = ", ".join(f"{mode:o}" for mode in MODES)
                text = f"mode {mode:o} is none of git's files; known: {allowed}"
                return PatchError(PatchFailure.BAD_MODE, text, path=path, line=self.number)
        if len({mode == LINK_MODE for mode in modes}) == 2:
            text = "a file becomes a link, or a link a file, by its deletion and a new one"
            raise PatchError(PatchFailure.BAD_MODE, text, path=path, line=self.number)
        return None

    def _error(self, text: str) -> PatchError:
        return PatchError(PatchFailure.MALFORMED, text, line=self.number)

    def _paths(self) -> tuple[str, str]:
        if self.moves:
            if len(self.moves) != 2:
                raise self._error("a rename or copy names one path only")
            return self.moves["old"], self.moves["new"]
        is_long = len(self.text) > MAX_HEADER_BYTES
        text = os.fsdecode(self.text[len(GIT_LINE) :])
        names = None if is_long else names_of_git_line(text)
        if names is None:
            raise self._error("not 'diff --git a/PATH b/PATH'")
        for name in names:
            refuse_outside(name, line=self.number)
        path = path_of_git_names(*names)
        if path is None:
            raise self._error("the two paths differ, and no rename or copy is named")
        check_path(path, line=self.number)
        return path, path


def submodule_problem(path: str, line: int) -> PatchError:
    """Return why a part about a submodule is not applied."""
    text = "a submodule: its commit is not in the patch and cannot be checked out"
    return PatchError(PatchFailure.NOT_A_FILE, text, path=path, line=line)
