"""Tools that show and change files: `view`, `create`, `str_replace`, `insert`, `apply_patch`.

Every change is strict: it applies exactly as it is written, or not at all. Not here: patches
(`katgym_envs.swe.patching`).
"""

from __future__ import annotations

import asyncio

import katgym
from katgym.environment.tool_output import readable_line, readable_text, shorten
from katgym.errors import ToolError
from katgym_envs.swe.patching import PatchError, PatchFailure, ShownText, parse_proposal
from katgym_envs.swe.patching.tree import split_lines
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
        lines = split_shown((await self.workspace.read_shown(path)).text)
        if start_line > max(len(lines), 1):
            raise ToolError(f"{self.workspace.show_path(path)} has {len(lines)} lines")
        last = min(end_line or start_line + _MAX_VIEW_LINES - 1, len(lines))
        text = number_lines(lines, start_line, last)
        left = len(lines) - last
        return text + (f"\n[{left} more lines]" if left > 0 else "") if lines else "[empty file]"

    async def _list_folder(self, place: str) -> str:
        command = [
            "find", "-H", place, "-mindepth", "1", "-maxdepth", "2", "-name", ".git", "-prune",
            "-o", "-name", "__pycache__", "-prune", "-o", "-mindepth", "1", "-printf", "%P%y\\0",
        ]  # fmt: skip
        result = await self.workspace.sandbox.exec(command)
        if not result.ok:
            raise ToolError(result.text().strip())
        items = [item.decode("utf-8", "replace") for item in result.stdout.split(b"\0") if item]
        items.sort(key=lambda item: item[:-1])
        shown = [readable_line(i[:-1]) + ("/" if i.endswith("d") else "") for i in items]
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
        (state,) = await self.workspace.states([path])
        self.workspace.check_links(path, state)
        if state.mode is not None:
            raise self.workspace.refuse_text(
                PatchFailure.ALREADY_EXISTS,
                f"{self.workspace.show_path(path)} is there already; change it with str_replace",
            )
        data = self.workspace.encode(path, content)
        await self.workspace.write(path, data)
        num_lines = len(split_shown(ShownText(data).text))
        return f"Created {self.workspace.show_path(path)} ({num_lines} lines)."

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
        # A text with line ends of its own is meant byte for byte, if it is there.
        is_exact = "\r" in old or "\ufeff" in old
        text = await self.workspace.read_shown(path, is_exact=is_exact)
        shown = _decode(text.text)
        if is_exact and old not in shown:
            old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
            text = await self.workspace.read_shown(path)
            shown = _decode(text.text)
        self._check_replacement(path, shown, old, new)
        at = shown.index(old)
        end = at + len(old)
        first, last = shown.count("\n", 0, at), shown.count("\n", 0, end)
        start = shown.rfind("\n", 0, at) + 1
        stop = shown.find("\n", end) + 1 or len(shown)
        block = split_lines(self.workspace.encode(path, shown[start:at] + new + shown[end:stop]))
        num_lines = len(text.lines[first : last + 1])
        content = text.edit([(first, num_lines, block)])
        await self.workspace.write(path, content)
        return self._show_change(path, content, first, len(block))

    def _check_replacement(self, path: str, shown: str, old: str, new: str) -> None:
        count, name = shown.count(old), self.workspace.show_path(path)
        if count == 0:
            is_escaped = old in readable_text(shown)
            hint = "; write a control character itself, not the escape that shows it"
            raise self.workspace.refuse_text(
                PatchFailure.CONTEXT_MISMATCH,
                f"the text does not occur in {name}, character by character"
                + (hint if is_escaped else ""),
            )
        if count > 1:
            numbers = ", ".join(map(str, _line_numbers(shown, old)))
            raise self.workspace.refuse_text(
                PatchFailure.CONTEXT_AMBIGUOUS,
                f"the text occurs {count} times in {name}, at lines {numbers}; take in more lines",
            )
        if old == new:
            raise self.workspace.refuse_text(PatchFailure.EMPTY, "old and new are the same")

    @katgym.tool()
    async def insert(self, path: str, line: int, text: str) -> str:
        """Insert text after a line of a file.

        Args:
            path: Relative to the repository's root, or absolute.
            line: The line it follows; 0 is the start of the file.
            text: Whole lines.
        """
        shown = await self.workspace.read_shown(path)
        num_lines = len(shown.lines)
        if not 0 <= line <= num_lines:
            raise ToolError(
                f"{self.workspace.show_path(path)} has {num_lines} lines, got line {line}"
            )
        if not text:
            raise ToolError("text is empty")
        if num_lines:  # the lines end as the file's do
            text = text.replace("\r\n", "\n")
        added = split_lines(self.workspace.encode(path, text.removesuffix("\n") + "\n"))
        if line == num_lines and not shown.is_ended:
            content = shown.edit([(line - 1, 1, [shown.lines[-1] + b"\n", *added])])
        else:
            content = shown.edit([(line, 0, added)])
        await self.workspace.write(path, content)
        return self._show_change(path, content, line, len(added))

    def _show_change(self, path: str, content: bytes, start: int, size: int) -> str:
        """Return what is told of lines that were changed, with those around them."""
        lines = split_shown(ShownText(content).text)
        first, last = max(1, start + 1 - _AROUND), min(len(lines), start + size + _AROUND)
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
            links = proposal.edited_links(before)
            if links:
                proposal = proposal.with_files(await workspace.linked_files(links))
                before |= await workspace.entries(proposal.paths - before.keys())
            changes = await asyncio.to_thread(proposal.apply, before)
        except PatchError as e:
            raise workspace.refuse(e) from e
        await workspace.put(changes, before, proposal.moves)
        lines = [
            f"{'D' if entry is None else 'M' if path in before else 'A'} {readable_line(path)}"
            for path, entry in sorted(changes.items())
        ]
        return "Applied:\n" + "\n".join(lines)


def number_lines(lines: list[str], first: int, last: int) -> str:
    """Return lines `first` to `last` (from 1) with their numbers, fit for a prompt."""
    width = len(str(last))
    shown = (f"{i:{width}}\t{readable_line(lines[i - 1])}" for i in range(first, last + 1))
    return shorten("\n".join(shown), MAX_OUTPUT_CHARS)


def split_shown(text: bytes) -> list[str]:
    """Return a shown text's lines without their line ends."""
    lines = _decode(text).split("\n")
    return lines if lines[-1] else lines[:-1]


def _decode(text: bytes) -> str:
    """Return a text; bytes that are not UTF-8 become surrogates, and are kept so."""
    return text.decode("utf-8", "surrogateescape")


def _line_numbers(text: str, part: str) -> list[int]:
    """Return the lines, from 1, of the first five places of a part."""
    found, at = list[int](), text.find(part)
    while at >= 0 and len(found) < 5:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(part, at + len(part))
    return found
