r"""Reads unified diffs as git, mercurial, GNU diff and mail programs write them.

    parse_diff("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n")[0].hunks[0].new_lines    # (b"b\n",)

Strict: what is not understood is refused. Not here: the text around parts (`patch_lines.py`),
applying (`apply.py`), the other format that models write (`envelope.py`).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from katgym_envs.swe.patching.binary import (
    MAX_BINARY_BYTES,
    BinaryError,
    BinaryPatch,
    hunk_end,
    is_full_name,
    is_hunk_start,
    read_hunk,
)
from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.file_patch import FILE_MODE, SUBMODULE_MODE, FilePatch, Hunk
from katgym_envs.swe.patching.git_header import (
    GIT_LINE,
    MAX_HEADER_BYTES,
    GitHeader,
    submodule_problem,
)
from katgym_envs.swe.patching.header_names import (
    HeaderName,
    path_of_name,
    path_of_names,
    read_name,
)
from katgym_envs.swe.patching.patch_lines import DIFFER, SUBMODULE, PatchLines
from katgym_envs.swe.patching.paths import MAX_PATH_BYTES, check_path, refuse_outside

MAX_DIFF_BYTES = 64 << 20
MAX_FILES = 10_000
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@.*\n")
_PLUS, _MINUS, _BLANK, _MARK = b"+- \\"


def parse_diff(text: str | bytes) -> tuple[FilePatch, ...]:
    """Return a unified diff's parts; `PatchError` says which line is wrong and why."""
    try:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError as e:
        raise PatchError(PatchFailure.MALFORMED, f"half a character: {e}") from e
    if len(data) > MAX_DIFF_BYTES:
        raise PatchError(PatchFailure.TOO_LARGE, f"a patch of {len(data)} bytes")
    if not data.strip():
        raise PatchError(PatchFailure.EMPTY, "the patch is empty")
    return tuple(_Reader(data if data.endswith(b"\n") else data + b"\n").parts())


class _Reader(PatchLines):
    """Reads one part after the other."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.binary_bytes_left = MAX_BINARY_BYTES

    def parts(self) -> list[FilePatch]:
        found: list[FilePatch] = []
        num_read = 0
        self.skip_text()
        while self.at < len(self.lines):
            if num_read == MAX_FILES:
                text = f"more than {MAX_FILES} files are changed"
                raise self.error(PatchFailure.TOO_LARGE, text)
            num_read += 1
            part = self._part()
            if part is not None:
                found.append(replace(part, commit=self.commit))
            self.skip_between()
        if not found:
            raise self.error(
                PatchFailure.MALFORMED,
                "not a unified diff: no 'diff --git' or '--- a/PATH' line is in it",
            )
        return found

    def _part(self) -> FilePatch | None:
        line = self.lines[self.at]
        if line.startswith(GIT_LINE):
            return self._git_part()
        differ, submodule = DIFFER.fullmatch(line), SUBMODULE.fullmatch(line)
        if differ is not None:
            return self._differ_part(differ[1])
        if submodule is not None:
            return self._submodule_part(*submodule.groups())
        return self._plain_part()

    def _plain_part(self) -> FilePatch:
        start = self.at + 1
        old, new = self._names()
        path = self._path_of(old.name, new.name)
        hunks = self._hunks(path)
        if not hunks:
            raise self.error(PatchFailure.MALFORMED, "a file's header without a hunk", path)
        is_new = old.name is None or (old.is_epoch and not any(h.old_lines for h in hunks))
        is_deleted = new.name is None or (new.is_epoch and not any(h.new_lines for h in hunks))
        part = FilePatch(
            old_path=None if is_new else path,
            new_path=None if is_deleted else path,
            new_mode=FILE_MODE if is_new else None,
            line=start,
        )
        return self._with_hunks(part, hunks)

    def _names(self) -> tuple[HeaderName, HeaderName]:
        """Read the lines `---` and `+++`."""
        names = []
        for prefix in (b"--- ", b"+++ "):
            if not self.starts(prefix):
                raise self.error(PatchFailure.MALFORMED, "a '--- ' line without a '+++ ' line")
            text = os.fsdecode(self.header_text()[len(prefix) :])
            name = read_name(text) if len(text) <= MAX_HEADER_BYTES else None
            if name is None:
                text = f"a broken quoted path, or one too long: {text[:60]!r}"
                raise self.error(PatchFailure.MALFORMED, text)
            refuse_outside(name.name or "", line=self.at + 1)
            names.append(name)
            self.at += 1
        return names[0], names[1]

    def _path_of(self, old: str | None, new: str | None) -> str:
        """Return the path that a header without `diff --git` means; None is /dev/null."""
        if old is None and new is None:
            raise self.error(PatchFailure.MALFORMED, "both sides are /dev/null")
        if old is None or new is None:
            path = path_of_name(old or new or "")
        else:
            path = path_of_names(old, new)
        if path is None:
            shown = " and ".join(repr((name or "/dev/null")[:200]) for name in (old, new))
            raise self.error(
                PatchFailure.MALFORMED,
                "which file is meant? paths start with 'a/' and 'b/' as in `git diff`, got"
                f" {shown}; a rename needs lines 'diff --git', 'rename from' and 'rename to'",
            )
        return check_path(path, line=self.at)

    def _git_part(self) -> FilePatch | None:
        """Read a part with `diff --git`; None for that line alone, of a file that is as it was."""
        header = GitHeader(self.header_text(), self.at + 1)
        self.at += 1
        while self.at < len(self.lines) and header.add(self.header_text(), self.at + 1):
            self.at += 1
        part = header.part()
        if self.starts(b"--- "):
            start = self.at
            names = self._names()
            for side, path in zip(names, (part.old_path, part.new_path), strict=True):
                name = side.name
                if path != name and (name is None or path != name.partition("/")[2]):
                    self.at = start
                    raise self.error(
                        PatchFailure.MALFORMED, "the paths differ from the 'diff --git' header's"
                    )
            hunks = self._hunks(part.path)
            if not hunks:
                raise self.error(PatchFailure.MALFORMED, "no hunk", part.path)
            return part if part.problem is not None else self._with_hunks(part, hunks)
        if self.starts(b"GIT binary patch"):
            return self._with_binary(part, header.blobs)
        if self.at < len(self.lines) and DIFFER.fullmatch(self.lines[self.at]):
            problem = part.problem or _no_content(part.path, part.line)
            part = replace(part, problem=problem)
            self.at += 1
        if not header.has_lines and part.problem is None:
            return None
        is_new_mode = None not in (part.old_mode, part.new_mode) and part.old_mode != part.new_mode
        if part.old_path == part.new_path and not is_new_mode and part.problem is None:
            raise self.error(PatchFailure.MALFORMED, "no hunk", part.path)
        return part

    def _with_binary(self, part: FilePatch, blobs: tuple[str, str]) -> FilePatch:
        self.at += 1
        try:
            is_delta, data, num_bytes, self.at = read_hunk(
                self.lines, self.at, self.binary_bytes_left
            )
            # The way back follows; nothing here needs it.
            if self.at < len(self.lines) and is_hunk_start(self.lines[self.at]):
                self.at = hunk_end(self.lines, self.at) + 1
        except BinaryError as e:
            raise self.error(PatchFailure.BINARY, str(e), part.path) from e
        self.binary_bytes_left -= num_bytes
        old, new = blobs
        if part.problem is not None:
            return part
        if not is_full_name(old) or not is_full_name(new):
            text = "a binary patch whose index line is not full; `git diff --binary` writes it"
            problem = PatchError(PatchFailure.BINARY, text, path=part.path, line=part.line)
            return replace(part, problem=problem)
        binary = BinaryPatch(data=data, is_delta=is_delta, old_blob=old, new_blob=new)
        return replace(part, binary=binary)

    def _differ_part(self, names: bytes) -> FilePatch:
        """Read `Binary files OLD and NEW differ` without a header, as `diff -r` writes it."""
        if len(names) > 2 * MAX_PATH_BYTES:
            raise self.error(PatchFailure.MALFORMED, "two names too long for a file system")
        words = os.fsdecode(names).split(" and ")
        half = len(words) // 2  # names with " and " in them have it on both sides
        sides = [" and ".join(side) for side in (words[:half], words[half:])]
        for side in sides:
            refuse_outside("" if side == "/dev/null" else side, line=self.at + 1)
        old, new = (None if side == "/dev/null" else side for side in sides)
        self.at += 1
        path = self._path_of(old, new)
        return FilePatch(
            old_path=None if old is None else path,
            new_path=None if new is None else path,
            problem=_no_content(path, self.at),
            line=self.at,
        )

    def _submodule_part(self, name: bytes, old: bytes, new: bytes) -> FilePatch:
        """Read what `git diff --submodule=log` writes: a header, and commits one a line."""
        path = check_path(os.fsdecode(name), line=self.at + 1)
        self.at += 1
        start = self.at
        while self.starts(b"  > ") or self.starts(b"  < "):
            self.at += 1
        is_new, is_deleted = not old.strip(b"0"), not new.strip(b"0")
        return FilePatch(
            old_path=None if is_new else path,
            new_path=None if is_deleted and not is_new else path,
            old_mode=None if is_new else SUBMODULE_MODE,
            new_mode=None if is_deleted else SUBMODULE_MODE,
            problem=submodule_problem(path, start),
            line=start,
        )

    def _with_hunks(self, part: FilePatch, hunks: tuple[Hunk, ...]) -> FilePatch:
        is_crlf = self.is_crlf
        if is_crlf and any(
            line.endswith(b"\r\r\n") for h in hunks for line in (*h.old_lines, *h.new_lines)
        ):
            # A program put a CR even where one was: the lines are exact without it.
            hunks, is_crlf = tuple(hunk.with_lf() for hunk in hunks), False
        return replace(part, hunks=hunks, is_crlf=is_crlf)

    def _hunks(self, path: str) -> tuple[Hunk, ...]:
        found = []
        while self.starts(b"@@ "):
            found.append(self._hunk(path))
        return tuple(found)

    def _hunk(self, path: str) -> Hunk:
        start = self.at + 1
        numbers = _HUNK.fullmatch(self.lines[self.at])
        if numbers is None:
            raise self.error(
                PatchFailure.MALFORMED, "a hunk's header is '@@ -START,NUM +START,NUM @@'", path
            )
        old_start, old_num, new_start, new_num = (int(g) if g else 1 for g in numbers.groups())
        old: list[bytes] = []
        new: list[bytes] = []
        kind, is_change = 0, False
        lines, at = self.lines, self.at + 1  # read millions of times
        while at < len(lines):
            line = lines[at]
            kind_before, kind = kind, line[0]
            if kind == _MARK and line.startswith(b"\\ "):  # "\ No newline ...", in any language
                for side, sign in ((old, _MINUS), (new, _PLUS)):
                    if kind_before in (_BLANK, sign):
                        side[-1] = side[-1].removesuffix(b"\n")
                        side[-1] = side[-1].removesuffix(b"\r") if self.is_crlf else side[-1]
            elif len(old) >= old_num and len(new) >= new_num:
                break
            elif kind == _PLUS:
                new.append(line[1:])
                is_change = True
            elif kind == _MINUS:
                old.append(line[1:])
                is_change = True
            elif kind == _BLANK:
                old.append(line[1:])
                new.append(line[1:])
            elif line in (b"\n", b"\r\n"):  # an editor took the blank of an empty context line
                kind = _BLANK
                old.append(line)
                new.append(line)
            else:
                text = (
                    f"a hunk's lines start with ' ', '-' or '+', got {line[:60]!r}; are the line"
                    " counts in its header right?"
                )
                raise PatchError(PatchFailure.MALFORMED, text, path=path, line=at + 1)
            at += 1
        self.at = at
        problem = ""
        if len(old) < old_num or len(new) < new_num:
            problem = "the patch ends within a hunk"
        elif (len(old), len(new)) != (old_num, new_num):
            problem = "a hunk's lines are not as many as its header says"
        elif (old_num and not old_start) or (new_num and not new_start):
            problem = "lines count from 1"
        elif not is_change:
            problem = "a hunk changes nothing"
        if problem:
            raise PatchError(PatchFailure.MALFORMED, problem, path=path, line=start)
        return Hunk(old_start=old_start, old_lines=tuple(old), new_lines=tuple(new), line=start)


def _no_content(path: str, line: int) -> PatchError:
    text = "a binary file whose content is not in the patch; `git diff --binary` writes it"
    return PatchError(PatchFailure.BINARY, text, path=path, line=line)
