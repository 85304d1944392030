"""Turns a unified diff around, as text: what it adds is deleted, and the other way round.

Not here: applying it (`katgym_envs.swe.patching`).
"""

from __future__ import annotations

import itertools
import re

from katgym_plugin_swe_factory.rows.broken_row import RowError

_HUNK = re.compile(r"@@ -(\d+(?:,\d+)?) \+(\d+(?:,\d+)?) @@(.*)", re.DOTALL)
_SWAPPED = {
    "new file mode ": "deleted file mode ",
    "deleted file mode ": "new file mode ",
    "old mode ": "new mode ",
    "new mode ": "old mode ",
    "rename from ": "rename to ",
    "rename to ": "rename from ",
}
_ORDER = ("old mode ", "new mode ", "rename from ", "rename to ")


def reverse_patch(patch: str) -> str:
    r"""Return the diff that undoes `patch`; twice gives the same text for what git writes.

    `RowError` for a binary diff, a copy, and text that is no unified diff.

    Example:
        >>> print(reverse_patch("--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a\n+b\n+c\n"), end="")
        --- a/x
        +++ b/x
        @@ -1,2 +1 @@
        -b
        -c
        +a
    """
    lines = [line for line in re.split(r"(?<=\n)", patch) if line]
    result: list[str] = []
    position = 0
    while position < len(lines):
        found = _HUNK.fullmatch(lines[position])
        if found is not None:
            result.append(f"@@ -{found[2]} +{found[1]} @@{found[3]}")
            num_old, num_new = (int(found[i].partition(",")[2] or 1) for i in (1, 2))
            position = _reverse_hunk(lines, position + 1, num_old, num_new, result)
            continue
        end = next((i for i in range(position, len(lines)) if _HUNK.fullmatch(lines[i])), None)
        # The lines between two hunks; each `diff --git` starts a file of its own.
        header = lines[position:end]
        starts = [i for i, line in enumerate(header) if line.startswith("diff --git ")]
        for a, b in itertools.pairwise([0, *starts, len(header)]):
            result += _reverse_file(header[a:b])
        position = len(lines) if end is None else end
    if not any(_HUNK.fullmatch(line) for line in result) and "rename from " not in patch:
        raise RowError("patch", "not a unified diff: it has no hunk")
    return "".join(result)


def _reverse_hunk(
    lines: list[str], position: int, num_old: int, num_new: int, result: list[str]
) -> int:
    """Append the hunk's lines turned around; return the position after it."""
    deleted: list[str] = []
    added: list[str] = []
    while num_old > 0 or num_new > 0 or (position < len(lines) and lines[position][:1] == "\\"):
        if position == len(lines):
            raise RowError("patch", "a hunk ends before its lines do")
        line = lines[position]
        kind = line[:1]
        if kind == "\\":
            # The marker belongs to the line before it, wherever that goes.
            (added or deleted or result).append(line)
        elif kind == "-":
            if added:
                result += [*added, *deleted]
                deleted, added = [], []
            deleted.append("+" + line[1:])
            num_old -= 1
        elif kind == "+":
            added.append("-" + line[1:])
            num_new -= 1
        elif kind == " " or not line.strip():
            result += [*added, *deleted, line]
            deleted, added = [], []
            num_old, num_new = num_old - 1, num_new - 1
        else:
            raise RowError("patch", f"line {position + 1} is no line of a hunk: {line[:60]!r}")
        position += 1
    result += [*added, *deleted]
    return position


def _reverse_file(lines: list[str]) -> list[str]:
    if any(line.startswith(("GIT binary patch", "Binary files ", "copy from ")) for line in lines):
        raise RowError("patch", "a binary diff or a copy cannot be turned around")
    result: list[str] = []
    for line in lines:
        key = next((k for k in _SWAPPED if line.startswith(k)), None)
        if key is not None:
            result.append(_SWAPPED[key] + line[len(key) :])
        elif line.startswith("diff --git "):
            result.append(_reverse_git_line(line, lines))
        elif line.startswith("index ") and ".." in line:
            hashes, *mode = line[len("index ") :].rstrip("\n").split(" ")
            old, _, new = hashes.partition("..")
            result.append("index " + " ".join([f"{new}..{old}", *mode]) + "\n")
        elif line.startswith("--- "):
            result.append("+++ " + _other_side(line[4:], "b/"))
        elif line.startswith("+++ "):
            result.append("--- " + _other_side(line[4:], "a/"))
        else:
            result.append(line)
    # Old goes before new again, for every pair that was swapped.
    for first, second in (_ORDER[:2], _ORDER[2:], ("--- ", "+++ ")):
        at = [i for i, line in enumerate(result) if line.startswith((first, second))]
        ordered = sorted((result[i] for i in at), key=lambda line: not line.startswith(first))
        for i, line in zip(at, ordered, strict=True):
            result[i] = line
    return result


def _reverse_git_line(line: str, lines: list[str]) -> str:
    """Return `diff --git`, whose names only differ for a rename."""
    ends = {
        key: next((other[len(key) :].rstrip("\n") for other in lines if other.startswith(key)), "")
        for key in ("rename from ", "rename to ")
    }
    old, new = ends.values()
    return f"diff --git a/{new} b/{old}\n" if old and new else line


def _other_side(name: str, prefix: str) -> str:
    has_prefix = name.startswith(("a/", "b/"))
    if name.startswith(('"a/', '"b/')):
        return '"' + prefix + name[3:]
    return prefix + name[2:] if has_prefix else name
