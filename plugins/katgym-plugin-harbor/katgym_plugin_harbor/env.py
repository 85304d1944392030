"""`harbor/Tasks-v0`: Harbor's task folders, played with the tools of `katgym/SWE-v0`.

    env = katgym.make("harbor/Tasks-v0", path="tasks")

After the episode the task's tests run in a fresh sandbox, which has the agent's workspace and
nothing else of the agent's, or with a separate verifier the environment and the artifacts. Not
here: reading folders (`task_folder.py`), running the tests (`verifier.py`).
"""

from __future__ import annotations

import asyncio
import base64
import random
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import katgym
from katgym.environment.messages import Action
from katgym.environment.task import SPLITS
from katgym.errors import UsageError
from katgym.sandbox import SandboxLimits, SandboxSpec, layer_store, shared_backend
from katgym.sandbox.limits import MEBIBYTE
from katgym.sandbox.venvs import ensure_venv
from katgym_envs.swe.tools.bash_tool import BashTool
from katgym_envs.swe.tools.edit_tools import EditTools, ViewTool
from katgym_envs.swe.tools.search_tools import SearchTools
from katgym_envs.swe.tools.workspace_env import WorkspaceEnv
from katgym_plugin_harbor.task_config import mebibytes, resolve
from katgym_plugin_harbor.task_folder import TaskFolder, read_folders
from katgym_plugin_harbor.verifier import (
    FOLDERS,
    MAX_ARTIFACT_BYTES,
    VerifierReward,
    copy_artifacts,
    make_folders,
    verify,
)

EXAMPLE = Path(__file__).parent / "example"
"""Tasks to try the env with."""
_CHUNK = 96_000
"""Characters of a solution in one command: the system takes no longer arguments than 128 KiB."""
_MAX_COMMAND_S = 600


class HarborTasks(ViewTool, BashTool, EditTools, SearchTools, WorkspaceEnv):
    """A task of a folder; the reward is what its tests write."""

    default_max_turns: ClassVar[int] = 40

    def __init__(
        self,
        *,
        path: str = "",
        sandbox: str = "local",
        image: str = "",
        only_playable: bool = False,
        **kwargs: Any,
    ) -> None:
        """Read the folders; nothing is started before `reset`.

        path: a folder of tasks, or one task's; "" is three examples.
        sandbox: name of the backend; with "docker" a task needs `docker_image` or `image`.
        image: pattern of the images that hold the tasks' environments, `{task}` for the name.
        only_playable: leave out the tasks that cannot be played, instead of refusing them.
        """
        has_images = sandbox.partition(":")[0] == "docker"
        if image and not has_images:
            raise UsageError(f"image={image!r} is for sandbox='docker', got sandbox={sandbox!r}")
        found = read_folders(Path(path) if path else EXAMPLE, image=image, has_images=has_images)
        refused = [folder for folder in found if folder.problems]
        if refused and (not only_playable or len(refused) == len(found)):
            reasons = "\n".join(f"  {f.name}: {'; '.join(f.problems)}" for f in refused)
            hint = "Hint: only_playable=true leaves them out" if len(refused) < len(found) else ""
            raise UsageError(
                f"tasks that sandbox {sandbox!r} cannot play:\n{reasons}\n{hint}".strip()
            )
        self.folders = {folder.name: folder for folder in found if not folder.problems}
        self.splits = tuple(s for s in SPLITS if any(f.split == s for f in self.folders.values()))
        super().__init__(sandbox=sandbox, **kwargs)

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        return [
            katgym.Task(task_id=name, prompt=folder.instruction, data={"sha256": folder.sha256})
            for name, folder in self.folders.items()
            if folder.split == split
        ]

    @property
    def folder(self) -> TaskFolder:
        """The episode's task; holds what is hidden, so no tool may reach it."""
        return self.folders[self.task.task_id]

    async def setup(self) -> None:
        """Open the environment in a fresh sandbox."""
        self._spec = await asyncio.to_thread(_sandbox_spec, self.folder)
        await make_folders(await self.open_workspace(self._spec))

    def opening(self) -> str:
        return (
            f"{self.task.prompt}\n\nYou work in {self.folder.recipe.workdir}. When you are done,"
            " call `submit`: tests that you do not see then decide."
        )

    @katgym.tool()
    def submit(self) -> str:
        """End the episode with the files as they are; hidden tests then decide."""
        self.finish("submitted")
        return "Submitted."

    @katgym.scorer()
    async def verified(self) -> float:
        """What the tests say, in a sandbox where the agent never was."""
        assert self._sandbox is not None
        config, problem = self.folder.config, ""
        if config.verifier.is_separate:
            fresh = await shared_backend(self.sandbox_name).create(self._spec)
        else:
            (fresh,) = await self._sandbox.fork()
        async with fresh:
            if config.verifier.is_separate:
                problem = await copy_artifacts(self._sandbox, fresh, config.artifact_sources)
            await self.teardown()
            verdict = (
                VerifierReward(problem=problem) if problem else await verify(fresh, self.folder)
            )
        self.artifacts = {
            "rewards": verdict.rewards,
            "problem": verdict.problem,
            "verifier_log": verdict.log,
        }
        return verdict.reward

    def oracle_action(self) -> Action:
        """Put the folder `solution` at /solution, run its solve.sh there, and submit."""
        folder = self.folder
        if not (folder.path / "solution" / "solve.sh").is_file():
            raise NotImplementedError(f"task {folder.name!r} has no solution/solve.sh")
        packed = base64.b64encode(folder.to_tar("solution")).decode()
        parts = [packed[at : at + _CHUNK] for at in range(0, len(packed), _CHUNK)]
        commands = [f"printf %s {part} >> /solution/.packed" for part in parts]
        variables = resolve(folder.config.solution.env).items()
        exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in variables)
        commands.append(
            f"{exports}base64 -d /solution/.packed | tar -xf - -C /solution && /solution/solve.sh"
        )
        limit = min(_MAX_COMMAND_S, int(folder.config.agent.timeout_sec or _MAX_COMMAND_S))
        calls: list[tuple[str, dict[str, Any]]] = [
            ("bash", {"command": command, "timeout_s": limit}) for command in commands
        ]
        return katgym.assistant("", [*calls, ("submit", {})])

    def random_action(self, rng: random.Random) -> Action:
        """Look at something, or submit."""
        calls: list[tuple[str, dict[str, Any]]] = [
            ("view", {"path": "."}),
            ("find", {"name": "*"}),
            ("bash", {"command": "ls -la"}),
            ("submit", {}),
        ]
        return katgym.assistant("", [rng.choice(calls)])


def _sandbox_spec(folder: TaskFolder) -> SandboxSpec:
    """Return what the task's sandboxes are made from; a venv is made on first use (blocking)."""
    recipe, environment = folder.recipe, folder.config.environment
    python = None
    if recipe.is_python or recipe.requirements:
        python = ensure_venv(tuple(recipe.requirements))
    memory = mebibytes(environment.memory_mb, environment.memory) or 2048
    disk = mebibytes(environment.storage_mb, environment.storage) or 1024
    return SandboxSpec(
        layers=(layer_store().add_files(recipe.workspace()),) if recipe.files else (),
        workdir=recipe.workdir,
        folders=FOLDERS,
        env={**recipe.env, **resolve(environment.env)},
        python=python,
        image=folder.image_name,
        limits=SandboxLimits(
            wall_s=max(float(_MAX_COMMAND_S), folder.config.verifier.timeout_sec),
            memory_bytes=memory * MEBIBYTE,
            disk_bytes=disk * MEBIBYTE,
            output_bytes=MAX_ARTIFACT_BYTES,
        ),
    )
