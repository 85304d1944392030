"""A parsed patch as data.

Not here: parsing (`unified.py`), applying (`apply.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

FILE_MODE, EXECUTABLE_MODE, LINK_MODE = 0o100644, 0o100755, 0o120000
MODES = (FILE_MODE, EXECUTABLE_MODE, LINK_MODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    r"""Lines that replace others; each line has its `\n`, but for a last one without.

    Example:
        Hunk(old_start=3, old_lines=(b"a\n", b"b\n"), new_lines=(b"a\n", b"c\n"), line=5)
    """

    old_start: int
    """As in the header: from 1; for no lines, the line before (0 at the start)."""
    old_lines: tuple[bytes, ...]
    new_lines: tuple[bytes, ...]
    line: int = 0
    """Of its `@@` in the patch, from 1."""

    @property
    def old_index(self) -> int:
        """Index of its first line in the old file, from 0."""
        return self.old_start - 1 if self.old_lines else self.old_start


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """What a unified diff does to one file.

    Example:
        FilePatch(old_path="a.py", new_path="a.py", hunks=(...,))
    """

    old_path: str | None
    """None: the file is created."""
    new_path: str | None
    """None: the file is deleted."""
    hunks: tuple[Hunk, ...] = ()
    old_mode: int | None = None
    new_mode: int | None = None
    is_copy: bool = False
    line: int = 0
    """Of its header in the patch, from 1."""

    @property
    def path(self) -> str:
        """The path to name it by."""
        return self.new_path if self.new_path is not None else self.old_path or ""
