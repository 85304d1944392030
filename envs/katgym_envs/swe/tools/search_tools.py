"""Tools `grep` and `find`; they change nothing, so calls of one turn run side by side.

Not here: `view` (`edit_tools.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import katgym
from katgym.environment.tool_output import readable_line, readable_text, shorten
from katgym.errors import ToolError
from katgym.sandbox import SandboxLimits
from katgym_envs.swe.tools.open_workspace import MAX_OUTPUT_CHARS, OpenWorkspace, check_texts

_LIMITS = SandboxLimits(wall_s=30.0, output_bytes=256 << 10)
_MAX_LINES = 200
_MAX_LINE_CHARS = 300
_BRACKETS = r"\[\^?\]?(?:\[[:.=].*?[:.=]\]|[^\]])*\]"
_LINE_END = re.compile(rf"(\\.|{_BRACKETS})|\$", re.DOTALL)
"""`$`, but for one that is escaped or in brackets."""


class SearchTools:
    """Mixed into the env, which has `workspace`."""

    workspace: OpenWorkspace

    @katgym.tool(parallel=True)
    async def grep(
        self, pattern: str, path: str = ".", glob: str = "", ignore_case: bool = False
    ) -> str:
        """Search file contents; returns `path:line:text` for each line that matches.

        Args:
            pattern: A POSIX extended regular expression.
            path: A directory or file, relative to the repository's root.
            glob: Search only files with such a name, for example `*.py`.
            ignore_case: Whether letters match in either case.
        """
        check_texts(pattern=pattern, glob=glob)
        command = ["grep", "-rnHIEZ", "--exclude-dir=.git", "--exclude-dir=__pycache__"]
        command += ["-i"] if ignore_case else []
        command += [f"--include={glob}"] if glob else []
        # What is shown of a line with CRLF is what is before that.
        shown = _LINE_END.sub(lambda found: found[1] or "\r?$", pattern)
        command += ["-e", shown, "--", self.workspace.show_path(path)]
        result = await self.workspace.sandbox.exec(command, cwd=self.workspace.root, limits=_LIMITS)
        if result.exit_code == 1 and not result.stdout:
            return "[no match]"
        if not result.stdout:
            raise ToolError(readable_text(result.text()).strip() or "grep failed")
        # A record is `path NUL line:text`; of a path with line breaks, too.
        output = result.stdout
        if result.stdout_omitted:
            output = output[: output.rfind(b"\n", 0, result.stdout_split) + 1]
        lines: list[bytes] = []
        while output:
            name, _, rest = output.partition(b"\0")
            text, _, output = rest.partition(b"\n")
            lines.append(name + b":" + text.removesuffix(b"\r"))
        return _list(lines, cut=bool(result.stdout_omitted or result.is_timed_out))

    @katgym.tool(parallel=True)
    async def find(self, name: str = "*", path: str = ".") -> str:
        """Find files and directories by name; returns their paths, sorted.

        Args:
            name: A name with wildcards, for example `test_*.py`.
            path: The directory to search, relative to the repository's root.
        """
        check_texts(name=name)
        place = self.workspace.show_path(path)
        place = place if place.startswith(("/", ".")) else f"./{place}"  # a name may start with "-"
        command = [
            "find", "-H", place, "-name", ".git", "-prune", "-o", "-name", "__pycache__", "-prune",
            "-o", "-name", name, "-print0",
        ]  # fmt: skip
        result = await self.workspace.sandbox.exec(command, cwd=self.workspace.root, limits=_LIMITS)
        if not result.ok and not result.stdout:
            raise ToolError(readable_text(result.text()).strip() or "find failed")
        names = result.stdout.split(b"\0")
        found = sorted(name.removeprefix(b"./") for name in names if name not in (b"", b"."))
        return _list(found, cut=bool(result.stdout_omitted)) if found else "[nothing found]"


def _list(entries: Iterable[bytes], *, cut: bool) -> str:
    lines = [readable_line(entry.decode("utf-8", "replace")) for entry in entries]
    shown = [
        line if len(line) <= _MAX_LINE_CHARS else line[:_MAX_LINE_CHARS] + " ..." for line in lines
    ]
    more = len(shown) - _MAX_LINES
    text = "\n".join(shown[:_MAX_LINES])
    if more > 0 or cut:
        text += f"\n[{more if more > 0 else 'some'} more lines; search for less]"
    return shorten(text, MAX_OUTPUT_CHARS)
