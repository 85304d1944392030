"""`katgym/SWE-v0`: repair a repository in a sandbox; hidden tests decide.

    env = katgym.make("katgym/SWE-v0", tasks="shipped", split="train")

Not here: the tools (`tools/`), mode "edit-run-retry" (`edit_run_retry.py`), grading (`grading/`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import katgym
from katgym.environment.failure import FailureKind
from katgym.environment.messages import Action, Message
from katgym.environment.reward import ScoringFailure, Trust
from katgym.environment.scheduler import ToolResult
from katgym.environment.task import SPLITS
from katgym.errors import UsageError, unknown_name
from katgym.sandbox import SandboxLimits, SandboxSpec, WorkspaceDiff, shared_backend
from katgym_envs.swe.edit_run_retry import EditRunRetry
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import GradeReport, Outcome
from katgym_envs.swe.parse_source import parse_source
from katgym_envs.swe.patching import (
    PatchError,
    PatchFailure,
    make_workspace_diff,
    regular_files,
    workspace_changes,
)
from katgym_envs.swe.revert_metrics import RevertTracker
from katgym_envs.swe.run_metrics import RunMetrics
from katgym_envs.swe.sources.open_source import SHIPPED, open_source
from katgym_envs.swe.swe_task import SweTask
from katgym_envs.swe.task_source import TaskSource
from katgym_envs.swe.tools.bash_tool import BashTool
from katgym_envs.swe.tools.edit_tools import EditTools, ViewTool
from katgym_envs.swe.tools.episode_tools import EpisodeTools
from katgym_envs.swe.tools.orphan_commit import orphan_commit_layer
from katgym_envs.swe.tools.search_tools import SearchTools
from katgym_envs.swe.tools.workspace_env import WorkspaceEnv

MODES = ("tools", "edit-run-retry")
_READING = ("view", "grep", "find")
"""Tools of mode "edit-run-retry"."""
_CHANGING = frozenset({"bash", "create", "str_replace", "insert", "apply_patch", "run_tests"})
_LIMITS = SandboxLimits(wall_s=600.0, output_bytes=1 << 20)
_MAX_TRACKED_BYTES = 1 << 20


class SweEnv(RunMetrics, ViewTool, BashTool, EditTools, SearchTools, EpisodeTools, WorkspaceEnv):
    """One repository with one bug per episode; reward 1 if the hidden tests pass."""

    default_max_turns: ClassVar[int] = 40
    visible_artifacts: Sequence[str] = ("model_patch",)

    def __init__(
        self,
        *,
        tasks: str = SHIPPED,
        mode: str = "tools",
        max_attempts: int = 3,
        limits: SandboxLimits | None = None,
        **kwargs: Any,
    ) -> None:
        """Prepare an env; the list of tasks is read, nothing is started before `reset`.

        tasks: "shipped", "toy" (a small repository of katgym's own; needs no network), or a folder
            that `katgym swe make` or `from-prs` wrote.
        mode: "tools", or "edit-run-retry": a message with a patch is applied and tried, taken back
            if visible tests get worse, and may be tried again, `max_attempts` times in all.
        limits: of the agent's sandbox; None is 600 s a command and the defaults of `SandboxLimits`.
        kwargs: those of `WorkspaceEnv`.
        """
        if mode not in MODES:
            raise UsageError(unknown_name("mode", mode, MODES))
        if max_attempts < 1:
            raise UsageError(f"max_attempts is at least 1, got {max_attempts!r}")
        self.splits = _splits(tasks)
        super().__init__(**kwargs)
        self.tasks_name = tasks
        self.mode = mode
        self.max_attempts = max_attempts
        self.limits = limits or _LIMITS
        if mode == "edit-run-retry":
            self.tools = {n: self.class_tools[n] for n in _READING}
        self.retry: EditRunRetry | None = None

    @property
    def source(self) -> TaskSource:
        """Where the tasks come from; holds what is hidden, so no tool may reach it."""
        return _source(self.tasks_name)

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        return [
            katgym.Task(
                task_id=task.instance_id,
                prompt=task.problem_statement,
                data={"repo": task.repo, "version": task.version},
                trust=task.trust or Trust.PARTIAL,
            )
            for task in self.source.tasks(split)
        ]

    def reward_trust(self) -> tuple[Trust, str] | None:
        if self.report is None or self.report.trust is None:
            return super().reward_trust()
        return self.report.trust, self.report.trust_reason

    async def setup(self) -> None:
        """Open the workspace in a fresh sandbox."""
        self.report = None
        self.final: Mapping[str, bytes] = {}
        self.swe_task = _visible(self.tasks_name, self.task.task_id)
        self.visible_tests = self.swe_task.visible_tests
        source, task_id = self.source, self.task.task_id
        base = await asyncio.to_thread(source.workspace, task_id)
        self.base_tree = await asyncio.to_thread(source.base_tree, task_id)
        self.base_files = regular_files(self.base_tree)
        backend = shared_backend(self.sandbox_name)
        recipe = self.swe_task.env
        layers = [] if base.layer is None else [base.layer]
        if base.layer is not None:
            git = await orphan_commit_layer(backend, base.layer)
            layers += [] if git is None else [git]
        below = [path.strip("./") and f"/{path}" for path in recipe.python_path]
        path = ":".join(recipe.workdir + part for part in below)
        spec = SandboxSpec(
            layers=tuple(layers),
            workdir=recipe.workdir,
            env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **recipe.env},
            limits=self.limits,
            python=base.python,
            image=recipe.image or None,
        )
        await self.open_workspace(spec)
        self.reverts = RevertTracker(base=self.base_files)
        self.retry = None
        if self.mode == "edit-run-retry":
            self.retry = EditRunRetry(
                task=self.swe_task, base=base, base_tree=self.base_tree, backend=backend
            )

    def opening(self) -> str:
        task = self.swe_task
        where = f"The repository of {task.repo} {task.version} is in {task.env.workdir}."
        if self.retry is not None:
            return (
                f"{where}\n\n{task.problem_statement}\n{self.retry.instructions(self.max_attempts)}"
            )
        return (
            f"{where} Repair the problem below by changing its code; hidden tests decide whether it"
            " is solved. Changes to tests and to their configuration do not count. Call `submit`"
            f" when you are done.\n\n{task.problem_statement}"
        )

    async def after_tools(self, results: Sequence[ToolResult]) -> Sequence[Message]:
        """Follow what is edited and taken back."""
        if self._sandbox is not None and any(r.name in _CHANGING for r in results):
            diff = await self._sandbox.diff(max_file_bytes=_MAX_TRACKED_BYTES, max_changes=2_000)
            self._observe(diff)
        return await super().after_tools(results)

    def _observe(self, diff: WorkspaceDiff) -> None:
        try:
            changes = workspace_changes(diff).changes
        except PatchError:
            return  # what cannot be graded is not followed either
        self.reverts.observe(
            {
                path: None if entry is None else entry.content
                for path, entry in changes.items()
                if path in self.base_files or path.endswith(".py")
            }
        )

    async def reply(self, message: Message) -> str | None:
        """Try a proposed patch in mode "edit-run-retry"; else ask for a tool call, once."""
        if self.retry is not None:
            answer = await self.retry.attempt(message["content"])
            if self.retry.is_accepted or self.retry.num_attempts >= self.max_attempts:
                self.finish("accepted" if self.retry.is_accepted else "no attempts left")
            return answer
        return await super().reply(message)

    async def grade_patch(self) -> GradeReport:
        """Return the grader's report: the agent's sandbox ends, its changes are graded elsewhere.

        Raises `ScoringFailure` when nothing is known about them.
        """
        if self.report is None:
            patch = await self._final_patch()
            await self.teardown()
            task = await asyncio.to_thread(GradedTask.load, self.source, self.task.task_id)
            self.hidden = task.hidden
            self.report = await grade(task, patch, backend=shared_backend(self.sandbox_name))
            self.artifacts = {
                "model_patch": self._as_text(patch),
                "outcome": str(self.report.outcome),
                "dropped_paths": dict(self.report.dropped_paths),
                "rejected_paths": dict(self.report.rejected_paths),
                "suspicions": list(self.report.suspicions),
            }
        if self.report.outcome is Outcome.INFRA_ERROR:
            raise ScoringFailure(self.report.reason, kind=FailureKind.VERIFIER_UNAVAILABLE)
        return self.report

    async def regrade(
        self, task: katgym.Task, messages: Sequence[Message], artifacts: Mapping[str, Any]
    ) -> float | None:
        """Grade the diff that an episode left; None where the record has none that can be."""
        patch = artifacts.get("model_patch")
        if not isinstance(patch, str) or (
            not patch and artifacts.get("outcome") != Outcome.PATCH_EMPTY
        ):
            return None
        graded = await asyncio.to_thread(GradedTask.load, self.source, task.task_id)
        report = await grade(graded, patch, backend=shared_backend(self.sandbox_name))
        is_known = report.outcome is not Outcome.INFRA_ERROR
        return float(report.is_resolved) if is_known else None

    async def candidate_problem(self, task: katgym.Task, artifacts: Mapping[str, Any]) -> str:
        """Return why a patch cannot be right by what its agent could see, or "".

        It has to apply, its Python files to parse, and visible tests that passed to pass; in a
        sandbox of its own, without the hidden tests.
        """
        base = await asyncio.to_thread(self.source.workspace, task.task_id)
        retry = EditRunRetry(
            task=_visible(self.tasks_name, task.task_id),
            base=base,
            base_tree=await asyncio.to_thread(self.source.base_tree, task.task_id),
            backend=shared_backend(self.sandbox_name),
        )
        told = await retry.attempt(artifacts["model_patch"])
        if not retry.is_accepted:
            return told
        base_files = regular_files(retry.base_tree)
        for path, content in retry.final_files.items():
            if path.endswith(".py") and content != base_files.get(path):
                try:
                    parse_source(content)
                except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
                    return f"{path} is not Python: {e}"
        return ""

    async def _final_patch(self) -> str | WorkspaceDiff:
        if self.retry is not None:
            self.final = self.retry.final_files
            return self.retry.final_patch
        assert self._sandbox is not None
        diff = await self._sandbox.diff()
        self._observe(diff)
        try:
            changes = workspace_changes(diff).changes
        except PatchError:
            changes = {}
        final = dict(self.base_files)
        for path, entry in changes.items():
            final.pop(path, None)
            if entry is not None and entry.link_target is None:
                final[path] = entry.content
        self.final = final
        return diff

    def _as_text(self, patch: str | WorkspaceDiff) -> str:
        """Return what was graded as a unified diff; "" for what no diff can say."""
        if isinstance(patch, str):
            return patch
        try:
            text = make_workspace_diff(self.base_tree, patch)
        except PatchError:
            return ""
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def apply_failures(self) -> Mapping[PatchFailure, int]:
        """Return the edits that were refused, by reason."""
        return self.workspace.failures if self.retry is None else self.retry.failures

    def oracle_action(self) -> Action:
        """Apply the gold patch and submit."""
        patch = self.source.load_hidden(self.task.task_id).gold_patch
        if self.mode == "edit-run-retry":
            return f"```diff\n{patch}```"
        return katgym.assistant("", [("apply_patch", {"patch": patch}), ("submit", {})])

    def random_action(self, rng: random.Random) -> Action:
        """Look at something, or submit."""
        path = rng.choice(sorted(self.base_files))
        calls: list[tuple[str, dict[str, Any]]] = [
            ("view", {"path": path}),
            ("grep", {"pattern": "def "}),
            ("find", {"name": "*.py"}),
        ]
        if self.mode == "tools":
            calls += [("bash", {"command": f"wc -l {path!r}"}), ("submit", {})]
        elif rng.random() < 0.3:
            return "I cannot repair it."
        return katgym.assistant("", [rng.choice(calls)])


@lru_cache(maxsize=8)
def _source(name: str) -> TaskSource:
    return open_source(name)


@lru_cache(maxsize=8)
def _splits(name: str) -> tuple[str, ...]:
    """Return the splits that a set has tasks of; tasks of one package are all in one."""
    found = {task.split for task in _source(name).tasks()}
    if not found:
        raise UsageError(f"the set {name!r} has no task")
    return tuple(split for split in SPLITS if split in found)


@lru_cache(maxsize=4096)
def _visible(name: str, instance_id: str) -> SweTask:
    return next(task for task in _source(name).tasks() if task.instance_id == instance_id)
