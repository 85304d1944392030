"""Tools that show and change files: `view`, `create`, `str_replace`, `insert`, `apply_patch`.

Every change is strict: it applies exactly as it is written, or not at all. Not here: patches
(`katgym_envs.swe.patching`).
"""

from __future__ import annotations

import asyncio

import katgym
from katgym.environment.tool_output import readable_text, shorten
from katgym.errors import ToolError
from katgym_envs.swe.patching import PatchError, PatchFailure, parse_proposal
from katgym_envs.swe.tools.open_workspace import MAX_OUTPUT_CHARS, OpenWorkspace

_MAX_VIEW_LINES = 400
_MAX_LISTED = 200
_AROUND = 3


class ViewTool:
    """Mixed into the env, which has `workspace`."""

    workspace: OpenWorkspace

    @katgym.tool(parallel=True)
    async def view(self, path: str, start_line: int = 1, end_line: int | None = None) -> str:
        """Show a file with line numbers, or list a directory two levels deep.

        Args:
            path: Relative to the repository's root, or absolute.
            start_line: First line to show, from 1.
            end_line: Last line to show; by default 400 lines are shown.
        """
        place = self.workspace.absolute(path)
        if (await self.workspace.sandbox.exec(["test", "-d", place])).ok:
            return await self._list_folder(place)
        if start_line < 1 or (end_line is not None and end_line < start_line):
            raise ToolError(f"lines from {start_line} to {end_line}: count from 1, first to last")
        lines = (await self.workspace.read_text(path)).split("\n")
        if lines[-1] == "":
            lines.pop()
        if start_line > max(len(lines), 1):
            raise ToolError(f"{self.workspace.show_path(path)} has {len(lines)} lines")
        last = min(end_line or start_line + _MAX_VIEW_LINES - 1, len(lines))
        text = number_lines(lines, start_line, last)
        left = len(lines) - last
        return text + (f"\n[{left} more lines]" if left > 0 else "") if lines else "[empty file]"

    async def _list_folder(self, place: str) -> str:
        command = [
            "find", place, "-mindepth", "1", "-maxdepth", "2", "-name", ".git", "-prune", "-o",
            "-name", "__pycache__", "-prune", "-o", "-mindepth", "1", "-printf", "%P%y\\0",
        ]  # fmt: skip
        result = await self.workspace.sandbox.exec(command)
        if not result.ok:
            raise ToolError(result.text().strip())
        items = [item.decode("utf-8", "replace") for item in result.stdout.split(b"\0") if item]
        items.sort(key=lambda item: item[:-1])
        shown = [readable_text(i[:-1]) + ("/" if i.endswith("d") else "") for i in items]
        more = f"\n[{len(shown) - _MAX_LISTED} more]" if len(shown) > _MAX_LISTED else ""
        return ("\n".join(shown[:_MAX_LISTED]) + more) or "[empty directory]"


class EditTools:
    """Mixed into the env, which has `workspace`."""

    workspace: OpenWorkspace

    @katgym.tool()
    async def create(self, path: str, content: str) -> str:
        """Create a new file; its directories are made as needed.

        Args:
            path: Relative to the repository's root, or absolute.
            content: The whole content.
        """
        if await self.workspace.is_there(path):
            raise self.workspace.refuse_text(
                PatchFailure.ALREADY_EXISTS,
                f"{self.workspace.show_path(path)} is there already; change it with str_replace",
            )
        await self.workspace.write_text(path, content)
        return f"Created {self.workspace.show_path(path)} ({len(content.splitlines())} lines)."

    @katgym.tool()
    async def str_replace(self, path: str, old: str, new: str) -> str:
        """Replace a text that occurs exactly once in a file.

        Args:
            path: Relative to the repository's root, or absolute.
            old: The text to replace, with its whitespace; several lines if one would not be unique.
            new: What to put in its place.
        """
        if not old:
            raise ToolError("old is empty; use insert to add text")
        text = await self.workspace.read_text(path)
        count = text.count(old)
        shown = self.workspace.show_path(path)
        if count == 0:
            raise self.workspace.refuse_text(
                PatchFailure.CONTEXT_MISMATCH,
                f"the text does not occur in {shown}, character by character",
            )
        if count > 1:
            numbers = ", ".join(map(str, _line_numbers(text, old)))
            raise self.workspace.refuse_text(
                PatchFailure.CONTEXT_AMBIGUOUS,
                f"the text occurs {count} times in {shown}, at lines {numbers}; take in more lines",
            )
        if old == new:
            raise self.workspace.refuse_text(PatchFailure.EMPTY, "old and new are the same")
        at = text.index(old)
        changed = text[:at] + new + text[at + len(old) :]
        await self.workspace.write_text(path, changed)
        return f"Changed {shown}:\n{_around(changed, at, len(new))}"

    @katgym.tool()
    async def insert(self, path: str, line: int, text: str) -> str:
        """Insert text after a line of a file.

        Args:
            path: Relative to the repository's root, or absolute.
            line: The line it follows; 0 is the start of the file.
            text: Whole lines.
        """
        lines = (await self.workspace.read_text(path)).split("\n")
        has_newline = lines[-1] == ""
        if has_newline:
            lines.pop()
        if not 0 <= line <= len(lines):
            raise ToolError(
                f"{self.workspace.show_path(path)} has {len(lines)} lines, got line {line}"
            )
        if not text:
            raise ToolError("text is empty")
        new = text.removesuffix("\n").split("\n")
        lines[line:line] = new
        is_ended = has_newline or line == len(lines) - len(new)
        await self.workspace.write_text(path, "\n".join(lines) + ("\n" if is_ended else ""))
        first, last = max(1, line + 1 - _AROUND), min(len(lines), line + len(new) + _AROUND)
        return f"Changed {self.workspace.show_path(path)}:\n{number_lines(lines, first, last)}"

    @katgym.tool()
    async def apply_patch(self, patch: str) -> str:
        """Change files with a unified diff (as of git) or a `*** Begin Patch` envelope.

        It applies to all files or to none, exactly where it says: no fuzz.

        Args:
            patch: The patch; paths are relative to the repository's root.
        """
        workspace = self.workspace
        try:
            proposal = await asyncio.to_thread(parse_proposal, patch)
            before = await workspace.entries(proposal.paths)
            changes = await asyncio.to_thread(proposal.apply, before)
        except PatchError as e:
            raise workspace.refuse(e) from e
        await workspace.put(changes, before)
        lines = [
            f"{'D' if entry is None else 'M' if path in before else 'A'} {readable_text(path)}"
            for path, entry in sorted(changes.items())
        ]
        return "Applied:\n" + "\n".join(lines)


def number_lines(lines: list[str], first: int, last: int) -> str:
    """Return lines `first` to `last` (from 1) with their numbers, fit for a prompt."""
    width = len(str(last))
    shown = (f"{i:{width}}\t{lines[i - 1]}" for i in range(first, last + 1))
    return shorten(readable_text("\n".join(shown)), MAX_OUTPUT_CHARS)


def _line_numbers(text: str, part: str) -> list[int]:
    """Return the lines, from 1, of the first five places of a part."""
    found, at = list[int](), text.find(part)
    while at >= 0 and len(found) < 5:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(part, at + len(part))
    return found


def _around(text: str, at: int, size: int) -> str:
    lines = text.split("\n")
    first = text.count("\n", 0, at) + 1
    last = text.count("\n", 0, at + size) + 1
    return number_lines(lines, max(1, first - _AROUND), min(len(lines), last + _AROUND))
