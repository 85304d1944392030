"""Makes unified diffs that git applies, and that are the same bytes wherever they are made.

    make_diff({"x.py": b"a\\n"}, {"x.py": b"b\\n"})
    make_diff({"x.py": b"a\\n"}, {"x.py": None})          # deleted

Not here: reading them (`unified.py`).
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.paths import check_path, quote
from katgym_envs.swe.patching.tree import Tree, as_tree, bytes_of, mode_of, split_lines

_NUM_CONTEXT = 3
_NO_NEWLINE = b"\n\\ No newline at end of file\n"
_MAX_STEPS = 100_000_000
"""Of difflib on the middle, in the worst case; beyond it the middle is replaced as a whole."""


def make_diff(before: Tree, after: Mapping[str, bytes | FileEntry | None]) -> str:
    """Return the unified diff between two trees, sorted by path; "" if they are equal.

    A path that `after` lacks, or holds as None, is deleted. Modes count: a changed executable bit,
    a link. Bytes that are not UTF-8 become surrogates, as `parse_diff` takes them. `PatchError`
    for contents with NUL bytes, which no unified diff can carry.
    """
    old = as_tree(before)
    new = as_tree({path: entry for path, entry in after.items() if entry is not None})
    paths = sorted({*old, *new}, key=os.fsencode)
    data = b"".join(_file_diff(path, old.get(path), new.get(path)) for path in paths)
    return data.decode("utf-8", "surrogateescape")


def _file_diff(path: str, old: FileEntry | None, new: FileEntry | None) -> bytes:
    if old == new:
        return b""
    check_path(path)
    if old and new and (old.link_target is None) != (new.link_target is None):
        return _file_diff(path, old, None) + _file_diff(path, None, new)
    a, b = (os.fsencode(quote(side + path)) for side in ("a/", "b/"))
    lines = [b"diff --git " + a + b" " + b + b"\n", *_mode_lines(old, new)]
    old_data, new_data = _data(path, old), _data(path, new)
    if old_data == new_data:
        return b"".join(lines)
    mode = b" %o" % mode_of(old) if old and new and mode_of(old) == mode_of(new) else b""
    lines.append(b"index " + _blob(old) + b".." + _blob(new) + mode + b"\n")
    lines.append(b"--- " + _name(a, old) + b"\n+++ " + _name(b, new) + b"\n")
    return b"".join([*lines, *_hunks(split_lines(old_data), split_lines(new_data))])


def _name(quoted: bytes, entry: FileEntry | None) -> bytes:
    if entry is None:
        return b"/dev/null"
    return quoted + b"\t" if b" " in quoted and not quoted.startswith(b'"') else quoted


def _mode_lines(old: FileEntry | None, new: FileEntry | None) -> Iterator[bytes]:
    if old is None:
        assert new is not None
        yield b"new file mode %o\n" % mode_of(new)
    elif new is None:
        yield b"deleted file mode %o\n" % mode_of(old)
    elif mode_of(old) != mode_of(new):
        yield b"old mode %o\n" % mode_of(old)
        yield b"new mode %o\n" % mode_of(new)


def _data(path: str, entry: FileEntry | None) -> bytes:
    data = b"" if entry is None else bytes_of(entry)
    if b"\0" in data:
        raise PatchError(PatchFailure.BINARY, "a binary file; a unified diff has text", path=path)
    return data


def _blob(entry: FileEntry | None) -> bytes:
    """Return git's abbreviated name of the content."""
    if entry is None:
        return b"0" * 7
    data = bytes_of(entry)
    digest = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
    return digest.hexdigest()[:7].encode()


def _hunks(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[bytes]:
    for group in _groups(line_opcodes(old, new)):
        first, last = group[0], group[-1]
        yield b"@@ -%s +%s @@\n" % (
            _range(first[1], last[2] - first[1]),
            _range(first[3], last[4] - first[3]),
        )
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (_line(b" ", line) for line in old[i1:i2])
            else:
                yield from (_line(b"-", line) for line in old[i1:i2])
                yield from (_line(b"+", line) for line in new[j1:j2])


def _range(start: int, size: int) -> bytes:
    if size == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if size else start, size)


def _line(kind: bytes, line: bytes) -> bytes:
    return kind + (line if line.endswith(b"\n") else line + _NO_NEWLINE)


Opcode = tuple[str, int, int, int, int]
"""As of difflib: tag, start and end in the old lines, start and end in the new ones."""


def line_opcodes(old: Sequence[bytes], new: Sequence[bytes]) -> list[Opcode]:
    """Return what turns lines into others, in bounded time; equal ends are split off first."""
    limit = min(len(old), len(new))
    head = next((i for i in range(limit) if old[i] != new[i]), limit)
    tail = next((i for i in range(limit - head) if old[-1 - i] != new[-1 - i]), limit - head)
    middle_old, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
    edits: list[Opcode] = []
    in_old, in_new = Counter(middle_old), Counter(middle_new)
    num_pairs = sum(count * in_new[line] for line, count in in_old.items())
    if num_pairs * min(len(middle_old), len(middle_new)) > _MAX_STEPS:
        edits = [("replace", 0, len(middle_old), 0, len(middle_new))]
    elif middle_old or middle_new:
        matcher = difflib.SequenceMatcher(None, middle_old, middle_new, autojunk=False)
        edits = [*matcher.get_opcodes()]
    codes: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    codes += [(tag, i1 + head, i2 + head, j1 + head, j2 + head) for tag, i1, i2, j1, j2 in edits]
    if tail:
        codes.append(("equal", len(old) - tail, len(old), len(new) - tail, len(new)))
    return codes


def _groups(codes: list[Opcode]) -> Iterator[list[Opcode]]:
    """Group opcodes with their context, so that equal runs between two edits are short."""
    group: list[Opcode] = []
    for index, (tag, i1, i2, j1, j2) in enumerate(codes):
        if tag != "equal":
            group.append((tag, i1, i2, j1, j2))
            continue
        is_first, is_last = index == 0, index == len(codes) - 1
        if not is_first and not is_last and i2 - i1 <= 2 * _NUM_CONTEXT:
            group.append((tag, i1, i2, j1, j2))
            continue
        if group:
            end = min(i2, i1 + _NUM_CONTEXT)
            group.append((tag, i1, end, j1, j1 + end - i1))
            yield group
            group = []
        if not is_last:
            begin = max(i1, i2 - _NUM_CONTEXT)
            group = [(tag, begin, i2, j2 - (i2 - begin), j2)]
    if any(code[0] != "equal" for code in group):
        yield group
