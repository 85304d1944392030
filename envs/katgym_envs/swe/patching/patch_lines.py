"""The lines of a patch, and the way over what tools and mails write between its parts.

Text is skipped before the first part and after the head of a mail or commit. Anywhere else a
damaged header would be lost that way: lines that are not known are refused. Not here: reading a
part (`unified.py`).
"""

from __future__ import annotations

import os
import re

from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.git_header import GIT_LINE
from katgym_envs.swe.patching.tree import split_lines

_BARE_LF_HEADER = re.compile(rb"^(?:diff --git |--- |\+\+\+ |@@ -)(?:.*[^\r\n])?\n", re.MULTILINE)
_CRLF_HEADER = re.compile(rb"^(?:diff --git |@@ -).*\r\n", re.MULTILINE)

# Lines that start a part; `--- ` does if `+++ ` follows.
DIFFER = re.compile(rb"Binary files (?=.* and )(.+) differ\r?\n")
SUBMODULE = re.compile(rb"Submodule (.+) ([0-9a-f]{4,64})\.{2,3}([0-9a-f]{4,64})(?::| \().*\n")
_COMBINED = re.compile(rb"diff --(?:cc|combined) |@@@+ -")
# Lines between parts: a mail's or commit's head, a mail's end, and what tools write on the side.
_HEAD = re.compile(
    rb"From \S+ .*\d\d:\d\d|(?:From|Subject): |commit [0-9a-f]{7,64}\b|# HG changeset patch"
    rb"|changeset: +\d+:[0-9a-f]+"
)
_SHORT_HEAD = re.compile(rb"[0-9a-f]{7,64}(?: .*)?\r?\n")
_MAIL_HEADER = re.compile(rb"[A-Za-z][A-Za-z0-9-]*: ?")
_SIGNATURE = re.compile(rb"(?:-- ?|-{10}[\w.-]*--)\r?\n")
_FIRST_THREE = "dif,---,@@ ,@@@,Bin,Sub,Fro,com,cha,# H"
_NOTABLE = frozenset(os.fsencode(_FIRST_THREE).split(b","))
"""How the lines start that matter in free text, so that the others cost little."""
_SIDE_LINE = re.compile(
    rb"diff (?!--(?:git|cc|combined) )|Index: |={10,}\r?\n|Only in |base-commit: "
    rb"|prerequisite-patch-id: |Submodule .* contains (?:untracked|modified) content"
)


class PatchLines:
    """The lines of a patch and how far they are read."""

    def __init__(self, data: bytes) -> None:
        self.lines = split_lines(data)
        self.at = 0
        self.commit = 0
        """Number of heads of mails and commits up to here."""
        self.is_crlf = (
            _BARE_LF_HEADER.search(data) is None and _CRLF_HEADER.search(data) is not None
        )
        """Whether all header lines end in CRLF."""

    def error(self, reason: PatchFailure, text: str, path: str = "") -> PatchError:
        """Return what is wrong with the line at hand."""
        return PatchError(reason, text, path=path, line=min(self.at, len(self.lines) - 1) + 1)

    def starts(self, prefix: bytes, at: int | None = None) -> bool:
        """Return whether there is a line, the one at hand or another, that starts so."""
        at = self.at if at is None else at
        return at < len(self.lines) and self.lines[at].startswith(prefix)

    def header_text(self) -> bytes:
        """Return a header's line without its end: git puts a name that ends in CR in quotes."""
        return self.lines[self.at].removesuffix(b"\n").removesuffix(b"\r")

    def is_at_part(self) -> bool:
        """Return whether a part starts here; `PatchError` for one of a merge's combined diff."""
        line = self.lines[self.at]
        if line.startswith(b"--- "):
            return self.starts(b"+++ ", self.at + 1)
        if line.startswith(GIT_LINE):
            return True
        if _COMBINED.match(line):
            raise self.error(
                PatchFailure.MALFORMED,
                "a combined diff of a merge; make a diff against one parent: git diff PARENT MERGE",
            )
        return DIFFER.fullmatch(line) is not None or SUBMODULE.fullmatch(line) is not None

    def skip_text(self, *, is_signature: bool = False) -> None:
        """Go to the next part, over free text; a hunk in it has lost its header."""
        for at in range(self.at, len(self.lines)):
            line = self.lines[at]
            if line[:3] not in _NOTABLE and not (is_signature and line[:1] in b"+-"):
                continue
            self.at = at
            if self.is_at_part():
                return
            if _HEAD.match(line):
                self.commit += 1
                is_signature = False
            elif line.startswith(b"@@ -"):
                raise self.error(PatchFailure.MALFORMED, "a hunk before any '--- a/PATH' line")
            elif is_signature and line[:1] in b"+-":
                raise self._not_understood()
        self.at = len(self.lines)

    def skip_between(self) -> None:
        """Go to the next part, over what tools and mails have between two."""
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.isspace():
                self.at += 1
            elif self.is_at_part():
                return
            elif _SIDE_LINE.match(line):
                self.at += 1
            elif self._skip_short_heads():
                self.commit += 1
            elif _SIGNATURE.fullmatch(line):
                self.at += 1
                self.skip_text(is_signature=True)
            elif self._is_at_head():
                self.skip_text()
            else:
                raise self._not_understood()

    def _skip_short_heads(self) -> bool:
        """Go over a short log's lines, `HASH Subject`, if a part or the end follows them."""
        at = self.at
        while at < len(self.lines) and (
            _SHORT_HEAD.fullmatch(self.lines[at]) or (at > self.at and self.lines[at].isspace())
        ):
            at += 1
        if at == self.at or (at < len(self.lines) and not self.starts(b"diff --", at)):
            return False
        self.at = at
        return True

    def _is_at_head(self) -> bool:
        """Return whether a commit's head is here, or mail headers with a sender or a subject."""
        at = self.at
        while at < len(self.lines) and not _HEAD.match(self.lines[at]):
            is_header = _MAIL_HEADER.match(self.lines[at])
            if not is_header and (at == self.at or self.lines[at][:1] not in b" \t"):
                return False  # neither a header nor the rest of one
            at += 1
        return at < len(self.lines)

    def _not_understood(self) -> PatchError:
        shown = self.lines[self.at][:60].decode("utf-8", "replace").rstrip("\r\n")
        return self.error(
            PatchFailure.MALFORMED,
            f"expected a hunk or the next file's header, got {shown!r}; are a hunk's line counts"
            " right?",
        )
