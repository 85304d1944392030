"""A parsed patch as data.

Not here: parsing (`unified.py`), applying (`apply.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from katgym_envs.swe.patching.binary import BinaryPatch
from katgym_envs.swe.patching.failure import PatchError

FILE_MODE, EXECUTABLE_MODE, LINK_MODE = 0o100644, 0o100755, 0o120000
MODES = (FILE_MODE, EXECUTABLE_MODE, LINK_MODE)
SUBMODULE_MODE = 0o160000


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

    def with_lf(self) -> Hunk:
        r"""Return the hunk with one `\r` less before each `\n`."""
        old, new = (
            tuple(line[:-2] + b"\n" if line.endswith(b"\r\n") else line for line in lines)
            for lines in (self.old_lines, self.new_lines)
        )
        return replace(self, old_lines=old, new_lines=new)


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
    binary: BinaryPatch | None = None
    """In place of hunks."""
    old_mode: int | None = None
    new_mode: int | None = None
    """Equal to `old_mode` where the patch tells the mode and leaves it alone."""
    is_copy: bool = False
    is_crlf: bool = False
    """Whether all header lines end in CRLF, as mail programs make them: lines of the hunks may
    have a CR that the file's have not."""
    is_as_shown: bool = False
    """Whether lines are as tools show them, not byte for byte: see `shown_text.py`."""
    problem: PatchError | None = None
    """Why it cannot be applied although it was read; there are no hunks then."""
    commit: int = 0
    """Grows from commit to commit in a log or a series of mails; each speaks of the tree that the
    ones before it leave."""
    line: int = 0
    """Of its header in the patch, from 1."""

    @property
    def path(self) -> str:
        """The path to name it by."""
        return self.new_path if self.new_path is not None else self.old_path or ""
