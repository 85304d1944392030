"""Mode "edit-run-retry": a patch per message, strict, tried, taken back if it makes things worse.

    propose a diff -> apply it strictly -> run the visible tests -> take it back on a regression ->
    try again, up to k times -> graded once, by hidden tests

Every attempt starts from the base state. Not here: the env around it (`env.py`), patches
(`patching/`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from katgym.environment.tool_output import readable_text, shorten
from katgym.sandbox import SandboxBackend, SandboxError
from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.patching import (
    PatchError,
    PatchFailure,
    Tree,
    make_diff,
    parse_proposal,
    regular_files,
    update_tree,
)
from katgym_envs.swe.swe_task import SweTask, Workspace
from katgym_envs.swe.test_run import TestPlan, TestRun, can_be_warm, run_tests, test_spec

_TIMEOUT_S = 150.0
"""Of the visible tests; see `TestPlan.timeout_s`."""
_MAX_SHOWN_TESTS = 5
_MAX_MESSAGE_CHARS = 1_500


@dataclass(kw_only=True)
class EditRunRetry:
    """The attempts of one episode."""

    task: SweTask
    base: Workspace
    base_tree: Tree
    backend: SandboxBackend
    num_attempts: int = 0
    num_applied: int = 0
    num_taken_back: int = 0
    is_accepted: bool = False
    failures: Counter[PatchFailure] = field(default_factory=Counter)
    _changes: Mapping[str, FileEntry | None] = field(default_factory=dict)
    _baseline: frozenset[str] | None = None

    @staticmethod
    def instructions(max_attempts: int) -> str:
        """Return what the policy is told to do."""
        return (
            "Look around with the tools, then answer with one patch in a ```diff block (unified,"
            " paths with a/ and b/) or in a `*** Begin Patch` envelope. It has to apply exactly."
            " It is taken back if tests that you can see fail with it; you have"
            f" {max_attempts} attempts. Hidden tests decide in the end."
        )

    async def attempt(self, message: str) -> str:
        """Try the patch in a message; return what the policy is told."""
        self.num_attempts += 1
        try:
            changes = parse_proposal(message).apply(self.base_tree)
        except PatchError as e:
            self.failures[e.reason] += 1
            return f"The patch was not applied: {e}. Nothing was changed; send a whole new patch."
        self.num_applied += 1
        problem = await self._regression(changes)
        if problem is not None:
            self.num_taken_back += 1
            return f"The patch was applied and taken back: {problem}\nSend a whole new patch."
        self._changes = changes
        self.is_accepted = True
        return "The patch was applied, and no visible test fails that passed before."

    async def _regression(self, changes: Mapping[str, FileEntry | None]) -> str | None:
        """Return how visible tests got worse, or None."""
        if not self.task.visible_tests:
            return None
        if self._baseline is None:
            before = await self._run_base()
            self._baseline = frozenset(
                node for node, s in before.statuses().items() if s is TestStatus.PASSED
            )
        after = await self._run(changes)
        if after.is_timed_out:
            await self._run_base()  # else the machine may be to blame
            return f"the visible tests did not end within {_TIMEOUT_S:g} s of processor time."
        if after.collection_errors:
            text = readable_text("\n".join(after.collection_errors))
            return f"the tests cannot be imported.\n{shorten(text, _MAX_MESSAGE_CHARS)}"
        status = after.statuses()
        broken = sorted(n for n in self._baseline if status.get(n) is not TestStatus.PASSED)
        if not broken:
            return None
        shown = "\n".join(f"  {readable_text(node)}" for node in broken[:_MAX_SHOWN_TESTS])
        more = len(broken) - _MAX_SHOWN_TESTS
        return f"{len(broken)} tests that passed before fail now:\n{shown}" + (
            f"\n  and {more} more" if more > 0 else ""
        )

    async def _run_base(self) -> TestRun:
        run = await self._run({})
        if run.is_timed_out:
            raise SandboxError("the visible tests do not end in time on the base state")
        return run

    async def _run(self, changes: Mapping[str, FileEntry | None]) -> TestRun:
        plan = TestPlan(
            files=self.task.visible_tests,
            timeout_s=_TIMEOUT_S,
            python_path=self.task.env.python_path,
            put={p: e.content for p, e in changes.items() if e and e.link_target is None},
            links={p: e.link_target for p, e in changes.items() if e and e.link_target},
            executables=frozenset(p for p, e in changes.items() if e and e.is_executable),
            remove=tuple(p for p, e in changes.items() if e is None),
        )
        is_warm = await can_be_warm(self.backend)
        spec = test_spec(self.base, self.task.env, is_warm=is_warm)
        async with await self.backend.create(spec) as sandbox:
            return await run_tests(sandbox, plan)

    @property
    def final_files(self) -> Mapping[str, bytes]:
        """Files of the repository after the accepted patch, or the base state's."""
        return regular_files(update_tree(self.base_tree, self._changes))

    @property
    def final_patch(self) -> str:
        """The accepted patch as a unified diff; "" if none was."""
        return make_diff(self.base_tree, update_tree(self.base_tree, self._changes))

    @property
    def rollback_rate(self) -> float | None:
        """Share of applied patches that were taken back; None without any."""
        return self.num_taken_back / self.num_applied if self.num_applied else None
