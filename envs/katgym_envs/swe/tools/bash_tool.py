"""Tool `bash`: one command in a fresh shell that starts where the last one ended.

Not here: what confines it (the sandbox).
"""

from __future__ import annotations

import re
from typing import ClassVar

import katgym
from katgym.errors import ToolError
from katgym.sandbox import SandboxLimits
from katgym.sandbox.base import SandboxFileError
from katgym_envs.swe.tools.open_workspace import OpenWorkspace, check_texts, output_text

_STATE = "/tmp/.shell-state"
_MAX_STATE_BYTES = 128 << 10
_MAX_TIMEOUT_S = 600
_MAX_COMMAND_BYTES = 4 << 20
"""What the other tools take for a file."""
# The shell tells where it ends and what it exported, unless the command replaces the trap or the
# shell itself; then the state of before is kept. /usr/bin/env: the agent's PATH may have another.
# The command comes on stdin, as arguments have a limit; what it runs has no input. On one line, so
# that errors count the command's own lines.
_SCRIPT = (
    "exec 2>&1; trap 'katgym_code=$?;"
    f" {{ pwd -P; /usr/bin/env -0; }} > {_STATE} 2>/dev/null; exit $katgym_code' EXIT;"
    ' set -- "$(/bin/cat 2> /dev/null && echo .)";'
    ' [ "$1" ] || { echo "the command cannot be read with the variables exported"; exit 1; };'
    ' set -- "${1%.}"; exec < /dev/null; eval "$1"'
)
_NOT_KEPT = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "katgym_code"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BashTool:
    """Mixed into the env, which has `workspace`."""

    workspace: OpenWorkspace
    command_limits: ClassVar[SandboxLimits] = SandboxLimits(output_bytes=256 << 10)

    @katgym.tool(timeout_s=_MAX_TIMEOUT_S + 30.0)
    async def bash(self, command: str, timeout_s: int = 120) -> str:
        """Run a command with bash; returns its output (stdout and stderr) and exit code.

        The working directory and exported variables are kept for the next call; processes in the
        background are not. There is no network, and no terminal or input.

        Args:
            command: What to run; may have several lines.
            timeout_s: Seconds after which it is stopped, from 1 to 600.
        """
        if not 1 <= timeout_s <= _MAX_TIMEOUT_S:
            raise ToolError(f"timeout_s is from 1 to {_MAX_TIMEOUT_S}, got {timeout_s}")
        check_texts(command=command)
        script = command.encode("utf-8", "surrogateescape")
        if len(script) > _MAX_COMMAND_BYTES:
            raise ToolError(
                f"a command has at most {_MAX_COMMAND_BYTES} bytes, got {len(script)}; write long"
                " texts to files, in parts"
            )
        workspace = self.workspace
        limits = SandboxLimits(wall_s=float(timeout_s)).tighten(self.command_limits)
        argv = ["/bin/bash", "-c", _SCRIPT, "bash"]
        cwd = workspace.cwd or None
        result = await workspace.sandbox.exec(
            argv, cwd=cwd, env=workspace.env, stdin=script, limits=limits
        )
        if result.exit_code == 126 and cwd is not None:
            gone = (await workspace.sandbox.exec(["true"], cwd=cwd)).exit_code == 126
            if gone:
                workspace.cwd = ""
                raise ToolError(f"the working directory {cwd!r} is gone; back in {workspace.root}")
        # The next command starts where this one ended, unless it left no state or too large a one.
        try:
            data = await workspace.sandbox.read(_STATE, max_bytes=_MAX_STATE_BYTES)
        except SandboxFileError:
            return output_text(result)
        where, _, rest = data.partition(b"\n")
        cwd = where.decode("utf-8", "surrogateescape")
        pairs = (
            item.decode("utf-8", "surrogateescape").partition("=") for item in rest.split(b"\0")
        )
        env = {name: value for name, _, value in pairs if _NAME.fullmatch(name)}
        if cwd.startswith("/") and "\0" not in cwd:
            workspace.cwd = cwd
            workspace.env = {k: v for k, v in env.items() if k not in _NOT_KEPT}
        return output_text(result)
