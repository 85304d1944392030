"""A patch as a model writes it: a unified diff or an envelope, alone or in a message's code block.

    parse_proposal(message).apply(files)

Not here: the two formats (`unified.py`, `envelope.py`).
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from katgym_envs.swe.patching.apply import apply_patches
from katgym_envs.swe.patching.envelope import (
    BEGIN,
    END,
    EnvelopePart,
    apply_envelope,
    parse_envelope,
)
from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.file_patch import LINK_MODE, FilePatch
from katgym_envs.swe.patching.shown_text import BYTE_ORDER_MARK
from katgym_envs.swe.patching.tree import Changes, Tree, as_tree, bytes_of
from katgym_envs.swe.patching.unified import parse_diff

_FENCE = re.compile(r"(`{3,}|~{3,})([^`]*)")
_DIFF_LANGUAGES = ("diff", "patch", "udiff")
_LOOKS_LIKE_DIFF = re.compile(r"^(diff --git |--- \S)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A parsed patch of either format."""

    diff: tuple[FilePatch, ...] = ()
    envelope: tuple[EnvelopePart, ...] = ()

    def apply(self, tree: Tree) -> Changes:
        """Return what it changes in a tree; `PatchError` if it does not fit."""
        return apply_patches(tree, self.diff) if self.diff else apply_envelope(tree, self.envelope)

    @property
    def paths(self) -> frozenset[str]:
        """Every path it reads or changes."""
        found = {p for part in self.diff for p in (part.old_path, part.new_path)}
        found |= {p for part in self.envelope for p in (part.path, part.move_to)}
        return frozenset(path for path in found if path is not None)

    @property
    def moves(self) -> dict[str, str]:
        """New path -> the path of the file that is moved or copied there."""
        pairs = [(part.new_path, part.old_path) for part in self.diff]
        pairs += [(part.move_to, part.path) for part in self.envelope]
        return {new: old for new, old in pairs if new and old and new != old}

    def edited_links(self, tree: Tree) -> frozenset[str]:
        """Return the links of a tree whose path stands for the file that they lead to.

        A part that only changes lines means the file, unless the lines are the link's target.
        """
        links = {p: bytes_of(e) for p, e in as_tree(tree).items() if e.link_target is not None}
        found = {part.path for part in self.envelope if part.kind == "update" and not part.move_to}
        for part in self.diff:
            is_link = LINK_MODE in (part.old_mode, part.new_mode) or links.get(
                part.path
            ) == b"".join(line for hunk in part.hunks for line in hunk.old_lines)
            if part.hunks and part.old_path == part.new_path and not is_link:
                found.add(part.path)
        return frozenset(found & links.keys())

    def with_files(self, files: Mapping[str, str]) -> Proposal:
        """Return it with `files[path]` in place of a path that it changes the lines of."""
        diff, envelope = list(self.diff), list(self.envelope)
        for at, part in enumerate(diff):
            if part.old_path == part.new_path and part.path in files:
                diff[at] = replace(part, old_path=files[part.path], new_path=files[part.path])
        for at, update in enumerate(envelope):
            if update.kind == "update" and update.path in files:
                envelope[at] = replace(update, path=files[update.path])
        return Proposal(diff=tuple(diff), envelope=tuple(envelope))


def parse_proposal(text: str) -> Proposal:
    """Return the one patch in a text; `PatchError` if there is none, or more than one."""
    patch = _patch_in(text)
    if patch.lstrip().startswith(BEGIN):
        return Proposal(envelope=parse_envelope(patch.strip()))
    diff = parse_diff(patch)
    return Proposal(diff=tuple(replace(part, is_as_shown=_is_as_shown(part)) for part in diff))


def _is_as_shown(part: FilePatch) -> bool:
    """Return whether the lines are what tools show; line ends of a file's own make them exact."""
    lines = [line for hunk in part.hunks for line in (*hunk.old_lines, *hunk.new_lines)]
    has_ends = not part.is_crlf and any(line.endswith(b"\r\n") for line in lines)
    return not has_ends and not any(BYTE_ORDER_MARK in line for line in lines)


def _patch_in(text: str) -> str:
    if text.count(BEGIN) > 1:
        raise PatchError(PatchFailure.MALFORMED, f"more than one {BEGIN!r}; send one patch")
    if BEGIN in text:
        start = text.index(BEGIN)
        end = text.find(END, start)
        if end < 0:
            raise PatchError(PatchFailure.MALFORMED, f"{BEGIN!r} without {END!r}")
        return text[start : end + len(END)]
    blocks = []
    for info, body in code_blocks(text):
        if info in _DIFF_LANGUAGES or (not info and _LOOKS_LIKE_DIFF.match(body)):
            blocks.append(body)
    if len(blocks) > 1:
        raise PatchError(PatchFailure.MALFORMED, "more than one code block with a patch; send one")
    if blocks:
        return blocks[0]
    if text.strip() and not _LOOKS_LIKE_DIFF.search(text):
        raise PatchError(
            PatchFailure.EMPTY,
            "no patch found: write a unified diff in a ```diff block, or '*** Begin Patch'",
        )
    return text


def code_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield language and body of each block between fences; the time is linear."""
    lines = text.split("\n")
    ends: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        if line.startswith(("```", "~~~")):
            ends.setdefault(line.rstrip(" \t"), []).append(index)
    at = 0
    while at < len(lines):
        opened = _FENCE.fullmatch(lines[at])
        closing = ends.get(opened[1], []) if opened else []
        following = bisect.bisect_right(closing, at)
        if opened and following < len(closing):
            end = closing[following]
            yield opened[2].strip().lower(), "".join(f"{line}\n" for line in lines[at + 1 : end])
            at = end
        at += 1
