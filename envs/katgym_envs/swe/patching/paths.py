r"""Paths in patches: which are refused, and git's quoting (`"a/caf\303\251"`).

Not here: whether the path exists (`apply.py`).
"""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath

from katgym_envs.swe.patching.failure import PatchError, PatchFailure

MAX_PATH_BYTES = 4096
_MAX_NAME_BYTES = 255
_SIMPLE = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_NAMES = {code: name for name, code in _SIMPLE.items()}
_QUOTED = re.compile(r'"((?:[^"\\]|\\(?:[0-3][0-7]{2}|["\\abfnrtv]))*)"')
_ESCAPE = re.compile(rb'\\([0-3][0-7]{2}|["\\abfnrtv])')
# Code points that some file systems ignore in names, so that ".g\u200cit" is ".git" there.
_IGNORED = re.compile("[\u200b-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def check_path(path: str, *, line: int = 0) -> str:
    """Return the path if a patch may name it, else raise `PatchError`."""

    def refuse(reason: PatchFailure, text: str) -> PatchError:
        return PatchError(reason, text, path=path, line=line)

    if path.startswith("/"):
        raise refuse(
            PatchFailure.PATH_ABSOLUTE, "absolute path; paths are relative to the repository"
        )
    parts = path.split("/")
    if ".." in parts:
        raise refuse(PatchFailure.PATH_ESCAPES, "'..' in a path; paths stay in the repository")
    if any(is_git_name(part) for part in parts):
        raise refuse(PatchFailure.PATH_GIT, "patches do not touch git's own directory")
    if not path or "\0" in path or "." in parts or "" in parts:
        raise refuse(PatchFailure.PATH_INVALID, f"not a relative file path: {path!r}")
    sizes = [len(os.fsencode(part)) for part in parts]
    if max(sizes) > _MAX_NAME_BYTES or sum(sizes) + len(parts) > MAX_PATH_BYTES:
        raise refuse(PatchFailure.PATH_INVALID, "the path is too long for a file system")
    return path


def refuse_outside(name: str, *, line: int = 0) -> None:
    """Raise `PatchError` if a name, still with its prefix, is absolute or has `..` in it."""
    if name.startswith("/") or ".." in name.split("/"):
        check_path(name, line=line)


def is_git_name(name: str) -> bool:
    """Return whether some file system takes this name for `.git`."""
    plain = _IGNORED.sub("", name).rstrip(" .").casefold()
    return plain in (".git", "git~1")


def check_link(path: str, target: str, *, line: int = 0) -> None:
    """Raise `PatchError` if a link at `path` would lead out of the tree, read as text."""
    depth = len(PurePosixPath(path).parts) - 1
    is_outside = target.startswith("/") or not target or "\0" in target
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        is_outside = is_outside or depth < 0
        if is_git_name(part):
            raise PatchError(PatchFailure.PATH_GIT, "a link into git's own directory", path=path)
    if is_outside:
        raise PatchError(
            PatchFailure.LINK_ESCAPES,
            f"the link's target {target!r} leads out of the repository",
            path=path,
            line=line,
        )


def quote(path: str) -> str:
    r"""Return the path as git writes it: in quotes with octal escapes if it needs them."""
    data = os.fsencode(path)
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in data):
        return path
    return '"' + "".join(_escape(byte) for byte in data) + '"'


def _escape(byte: int) -> str:
    if byte in _NAMES:
        return "\\" + _NAMES[byte]
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


def unquote(text: str) -> str | None:
    """Return the path in a quoted text, the text itself if it has no quotes, None if broken."""
    if not text.startswith('"'):
        return text
    found = _QUOTED.fullmatch(text)
    return None if found is None else _unescape(found[1])


def leading_quoted(text: str) -> tuple[str, str] | None:
    """Split `"quoted" rest` into the path and the rest; None if the text starts otherwise."""
    found = _QUOTED.match(text)
    return None if found is None else (_unescape(found[1]), text[found.end() :])


def _unescape(body: str) -> str:
    def character(found: re.Match[bytes]) -> bytes:
        code = found[1].decode("ascii")
        return bytes([_SIMPLE[code] if code in _SIMPLE else int(code, 8)])

    return os.fsdecode(_ESCAPE.sub(character, os.fsencode(body)))
