"""Typed reasons why a patch is refused, with texts that tell a model how to mend it.

Not here: which paths a grader drops or rejects on top of this (`katgym_envs.swe.grading`).
"""

from __future__ import annotations

from enum import StrEnum

from katgym.errors import UsageError


class PatchFailure(StrEnum):
    """The reason a patch was not applied; metrics count by it."""

    EMPTY = "empty"
    """No file is changed by it."""
    MALFORMED = "malformed"
    """The text is not a patch: headers, line counts, prefixes."""
    PATH_ABSOLUTE = "path_absolute"
    PATH_ESCAPES = "path_escapes"
    """`..`, or a directory that is a link."""
    PATH_GIT = "path_git"
    PATH_INVALID = "path_invalid"
    """Empty, too long, or with a NUL, `.` or `//` in it."""
    DUPLICATE_PATH = "duplicate_path"
    """Two parts of the patch are about the same path."""
    NOT_FOUND = "not_found"
    NOT_A_FILE = "not_a_file"
    """A directory, device or submodule in the place of a file, or a file in that of a directory."""
    ALREADY_EXISTS = "already_exists"
    CONTEXT_MISMATCH = "context_mismatch"
    CONTEXT_AMBIGUOUS = "context_ambiguous"
    """The lines to change occur more than once."""
    WRONG_LINE = "wrong_line"
    """The lines to change are in the file, but not at the line the hunk names."""
    BINARY = "binary"
    """A binary file's content is missing, broken, too large, or for another file."""
    BAD_MODE = "bad_mode"
    LINK_ESCAPES = "link_escapes"
    TOO_LARGE = "too_large"


class PatchError(UsageError):
    """A patch was refused; nothing of it was applied.

    `path` is the file it is about ("" for the whole patch), `line` the line of the patch's text,
    from 1 (0 if none).
    """

    def __init__(self, reason: PatchFailure, text: str, *, path: str = "", line: int = 0) -> None:
        where = f"{printable(path)}: " if path else ""
        at = f" (line {line} of the patch)" if line else ""
        super().__init__(f"{where}{text}{at}")
        self.reason = reason
        self.path = path
        self.line = line
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.reason, self.text, self.path, self.line))


def _rebuild(reason: PatchFailure, text: str, path: str, line: int) -> PatchError:
    return PatchError(reason, text, path=path, line=line)


def printable(path: str) -> str:
    """Return a path for a message: undecodable bytes and control characters as escapes."""
    text = path.encode("utf-8", "backslashreplace").decode()
    return text if text.isprintable() else repr(text)[1:-1]
