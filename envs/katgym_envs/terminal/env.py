"""`katgym/Terminal-v0`: tasks in a sandboxed shell; the files in the end decide, no output does.

    env = katgym.make("katgym/Terminal-v0", level=2)

Not here: the tasks (`task_set.py`, `skills/`), what is compared (`state/`).
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

import katgym
from katgym.environment.messages import Action
from katgym.sandbox import SandboxError, SandboxLimits, SandboxSpec, shared_backend
from katgym.sandbox.venvs import ensure_venv
from katgym_envs.swe.tools.bash_tool import BashTool
from katgym_envs.swe.tools.workspace_env import WorkspaceEnv
from katgym_envs.terminal.state.entries import GitRepository, Tree, tree_of_json
from katgym_envs.terminal.state.final_state import MAX_CHANGES, MAX_FILE_BYTES, final_state
from katgym_envs.terminal.state.workspace import pack
from katgym_envs.terminal.task_set import LEVELS, check_choice, task_set

_LIMITS = SandboxLimits(
    wall_s=600.0, memory_bytes=1 << 30, max_processes=128, disk_bytes=256 << 20, max_files=20_000
)
_RULES = (
    "You have a shell in a sandbox without network: bash, coreutils, git and python3. The workspace"
    " is /workspace. Do what is asked below, then call `submit`. Only the files in /workspace"
    " decide, all of them: change, add and remove nothing that is not asked for, and use /tmp for"
    " what you need on the way."
)


class TerminalEnv(BashTool, WorkspaceEnv):
    """One task of 1 to 4 exercises per episode; reward 1 if the workspace ends as it should."""

    default_max_turns: ClassVar[int] = 20
    nudge: ClassVar[str] = (
        "That message called no tool. Work with `bash`; when you are done, call submit."
    )
    levels = {str(level): {"level": level} for level in LEVELS}  # noqa: RUF012 - a ClassVar of Env

    def __init__(
        self, *, level: int | None = None, skill: str | None = None, **kwargs: Any
    ) -> None:
        """Prepare an env; nothing is started before `reset`.

        level: 1 to 4, the number of exercises of a task; None lets the levels take turns.
        skill: one of `task_set.SKILLS` alone, "git" for example; None takes different ones.
        kwargs: those of `WorkspaceEnv`.
        """
        super().__init__(**kwargs)
        check_choice(level, skill)
        self.level = level
        self.skill = skill
        self._python: str | None = None

    def load_tasks(self, split: str) -> katgym.TaskSet:
        return task_set(split, level=self.level, skill=self.skill)

    async def setup(self) -> None:
        """Make the workspace in a fresh sandbox."""
        backend = shared_backend(self.sandbox_name)
        has_python = "python" in (await backend.enforcement()).capabilities
        # Of a venv the base's packages are hidden: katgym and its solutions may be among them.
        self._python = await asyncio.to_thread(ensure_venv, ()) if has_python else None
        env = {"PYTHONDONTWRITEBYTECODE": "1", "TZ": "UTC"}
        sandbox = await self.open_workspace(
            SandboxSpec(limits=_LIMITS, python=self._python, env=env)
        )
        before: Tree = tree_of_json(self.task.data["before"])
        command = "tar -xpf -"
        for path, entry in before.items():
            if isinstance(entry, GitRepository):
                command += f" && git -C {path.removesuffix('/.git')} reset -q"
        result = await sandbox.exec(command, stdin=pack(before))
        if not result.ok:
            raise SandboxError(f"the workspace cannot be made: {result.text().strip()[:500]}")

    def opening(self) -> str:
        return f"{_RULES}\n\n{self.task.prompt}"

    @katgym.tool()
    def submit(self) -> str:
        """End the episode with the workspace as it is."""
        self.finish("submitted")
        return "Submitted."

    @katgym.scorer()
    async def correct(self) -> bool:
        """Whether every file of the workspace is as it should be, and none is beside them."""
        assert self._sandbox is not None
        expected = tree_of_json(self.task.answer)
        diff = await self._sandbox.diff(max_file_bytes=MAX_FILE_BYTES, max_changes=MAX_CHANGES)
        state = await final_state(
            diff, expected, backend=shared_backend(self.sandbox_name), python=self._python
        )
        found = ["too many files"] if state is None else state.differences(expected)
        self.artifacts = {"differences": found}
        return not found

    def oracle_action(self) -> Action:
        """Run the task's script and submit."""
        return katgym.assistant(
            "", [("bash", {"command": self.task.data["script"]}), ("submit", {})]
        )

    def random_action(self, rng: random.Random) -> Action:
        """Look around, make or remove something, or submit."""
        command = rng.choice(["ls -R", "head */*", "touch done.txt", "rm -f */*.txt", "git status"])
        calls: list[tuple[str, dict[str, Any]]] = [("bash", {"command": command}), ("submit", {})]
        return katgym.assistant("", [rng.choice(calls)])
