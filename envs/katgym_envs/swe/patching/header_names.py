r"""Names on a diff's header lines, with quotes, timestamps and prefixes, and the paths they mean.

    read_name("b/x.py\t2024-05-01 10:00:00 +0200").name    # "b/x.py"
    path_of_names("old/x.py", "new/x.py")                  # "x.py"

Not here: which paths a patch may name (`paths.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from katgym_envs.swe.patching.paths import leading_quoted, unquote

PREFIXES = frozenset("abciow12")
"""What git puts before paths: a and b, or commit, index, object, worktree, 1 and 2."""
_TIMESTAMP = re.compile(
    r"[ \t](\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))? ([-+]\d\d):?(\d\d)[ \t]*$"
)
_SUFFIX = re.compile(r"[.~_-][^/]*")
_MAX_PREFIX = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderName:
    """What stands after `---` or `+++`.

    Example:
        HeaderName(name="a/x.py")
    """

    name: str | None
    """With its prefix; None: /dev/null."""
    is_epoch: bool = False
    """Whether its timestamp is the start of 1970: `diff -N` has that where there is no file."""


def read_name(text: str) -> HeaderName | None:
    """Return the name in the rest of a `---` or `+++` line; None if its quotes are broken."""
    stamp = _TIMESTAMP.search(text[-60:])
    is_epoch = stamp is not None and _is_epoch(*stamp.groups(default=""))
    if text.startswith('"'):
        split = leading_quoted(text)
        if split is None:
            return None
        name = split[0]
    elif "\t" in text:
        name = text.partition("\t")[0]
    else:
        name = text if stamp is None else text.removesuffix(stamp[0])
    return HeaderName(name=None if name == "/dev/null" else name, is_epoch=is_epoch)


def _is_epoch(moment: str, fraction: str, hours: str, minutes: str) -> bool:
    try:
        seconds = datetime.fromisoformat(f"{moment}{hours}:{minutes}").timestamp()
    except ValueError:  # no such day
        return False
    return seconds == 0 and not fraction.strip("0")


def path_of_names(old: str, new: str) -> str | None:
    """Return the path of the one file that `--- OLD` and `+++ NEW` mean; None if it is not clear.

    First components that differ are prefixes. The file is the one with the shorter name if the
    other has `.orig`, `~` or the like behind it.
    """
    first, _, old_rest = old.partition("/")
    second, _, new_rest = new.partition("/")
    if old_rest and new_rest and (first != second or first == "."):
        old, new = old_rest, new_rest
    elif first == second and first in ("a", "b"):
        return None  # a folder of that name, or one prefix written twice
    shorter, longer = sorted((old, new), key=len)
    suffix = longer.removeprefix(shorter)
    is_same = shorter == longer or (suffix != longer and _SUFFIX.fullmatch(suffix) is not None)
    return shorter if is_same else None


def path_of_name(name: str) -> str | None:
    """Return the path that a name opposite /dev/null means; None if it is not clear."""
    first, slash, rest = name.partition("/")
    if not slash:
        return name
    return rest if first in PREFIXES or first == "." else None


def names_of_git_line(text: str) -> tuple[str, str] | None:
    """Return both names after `diff --git`; None if they cannot be told apart.

    Names without quotes may have blanks; two that differ by more than a prefix are in quotes or
    stand on rename lines too.
    """
    if text.startswith('"'):
        first = leading_quoted(text)
        second = None if first is None else unquote(first[1].removeprefix(" "))
        return None if first is None or second is None else (first[0], second)
    half = len(text) // 2
    if text[half : half + 1] == " ":
        return text[:half], text[half + 1 :]
    # Prefixes of two lengths: OLD/PATH NEW/PATH.
    prefix, _, rest = text.partition("/")
    for size in range(1, _MAX_PREFIX + 1):
        half = len(rest) - size - 2
        path = rest[: max(half, 0) // 2]
        if half > 0 and rest[len(path) :].startswith(" ") and rest.endswith("/" + path):
            return f"{prefix}/{path}", rest[len(path) + 1 :]
    return None


def path_of_git_names(old: str, new: str) -> str | None:
    """Return the path of both names of a `diff --git` line; None if they name two files.

    Names that are equal have no prefix: those of two sides differ.
    """
    if old == new:
        return old
    old_rest, new_rest = old.partition("/")[2], new.partition("/")[2]
    return old_rest if old_rest and old_rest == new_rest else None
