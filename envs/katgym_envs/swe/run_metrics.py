"""The scorers of a SWE episode: `resolved`, and metrics of weight 0 (docs/concepts/swe-metrics.md).

Not here: grading (`env.py`, `grading/`), how a number comes about (`edit_metrics.py`,
`revert_metrics.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import katgym
from katgym_envs.swe.edit_metrics import edit_distance, locality, num_changed_lines
from katgym_envs.swe.grading.report import GradeReport, Outcome, TestStatus
from katgym_envs.swe.hidden import HiddenTests
from katgym_envs.swe.patching import PatchFailure

if TYPE_CHECKING:
    from katgym_envs.swe.edit_run_retry import EditRunRetry
    from katgym_envs.swe.revert_metrics import RevertTracker

_CONTEXT = (
    PatchFailure.CONTEXT_MISMATCH,
    PatchFailure.CONTEXT_AMBIGUOUS,
    PatchFailure.WRONG_LINE,
)
_MISSING = (PatchFailure.NOT_FOUND, PatchFailure.NOT_A_FILE, PatchFailure.ALREADY_EXISTS)
_FORMAT = (PatchFailure.MALFORMED, PatchFailure.EMPTY, PatchFailure.BINARY, PatchFailure.TOO_LARGE)


class RunMetrics:
    """Mixed into the env, which has these once an episode was graded."""

    report: GradeReport | None
    hidden: HiddenTests
    base_files: Mapping[str, bytes]
    final: Mapping[str, bytes]
    """Files of the repository as the episode left them."""
    reverts: RevertTracker
    retry: EditRunRetry | None

    if TYPE_CHECKING:

        def apply_failures(self) -> Mapping[PatchFailure, int]:
            """See `SweEnv.apply_failures`."""

        async def grade_patch(self) -> GradeReport:
            """See `SweEnv.graded`."""

    def _grade_or_invalid(self) -> GradeReport:
        assert self.report is not None, "`resolved` is scored first"
        return self.report

    @katgym.scorer()
    async def resolved(self) -> bool:
        """Whether every hidden test passes and nothing was forged: the reward."""
        return (await self.grade_patch()).is_resolved

    @katgym.scorer(weight=0.0, low=0.0, high=1.0)
    def fail_to_pass_fraction(self) -> float:
        """FAIL_TO_PASS tests that pass, as a share."""
        return self._grade_or_invalid().fail_to_pass_fraction

    @katgym.scorer(weight=0.0, low=0.0, high=1.0)
    def pass_to_pass_fraction(self) -> float:
        """PASS_TO_PASS tests that still pass, as a share."""
        return self._grade_or_invalid().pass_to_pass_fraction

    @katgym.scorer(weight=0.0)
    def tampered(self) -> bool:
        """Whether a test result was forged."""
        return self._grade_or_invalid().outcome is Outcome.TAMPERED

    @katgym.scorer(weight=0.0)
    def patch_empty(self) -> bool:
        """Whether nothing was left to grade."""
        return self._grade_or_invalid().outcome is Outcome.PATCH_EMPTY

    @katgym.scorer(weight=0.0)
    def patch_invalid(self) -> bool:
        """Whether the changes were refused."""
        return self._grade_or_invalid().outcome is Outcome.PATCH_INVALID

    @katgym.scorer(weight=0.0)
    def tests_timeout(self) -> bool:
        """Whether the tests did not end in time."""
        return self._grade_or_invalid().outcome is Outcome.TIMEOUT

    @katgym.scorer(weight=0.0)
    def regressed(self) -> bool:
        """Whether a PASS_TO_PASS test fails."""
        statuses = self._grade_or_invalid().pass_to_pass.values()
        return any(status is not TestStatus.PASSED for status in statuses)

    @katgym.scorer(weight=0.0, low=0.0)
    def num_changed_lines(self) -> int:
        """Lines added and deleted in product files."""
        return num_changed_lines(self._product(self.base_files), self._product(self.final))

    @katgym.scorer(weight=0.0, low=0.0)
    def edit_distance(self) -> float | None:
        """Distance to gold, in units of gold's own size; None without a gold patch."""
        gold = self._gold()
        if gold is None:
            return None
        base, final = self._product(self.base_files), self._product(self.final)
        return edit_distance(base, final, gold)

    @katgym.scorer(weight=0.0, low=0.0, high=1.0)
    def locality(self) -> float | None:
        """Share of the changed lines that lie in the functions gold changes."""
        gold = self._gold()
        if gold is None:
            return None
        return locality(self._product(self.base_files), self._product(self.final), gold)

    @katgym.scorer(weight=0.0, low=0.0, high=0.5)
    def churn(self) -> float | None:
        """Share of line changes that undid an earlier one."""
        return self.reverts.churn

    @katgym.scorer(weight=0.0)
    def null_final(self) -> bool | None:
        """Whether the episode edited and ended where it began."""
        return self.reverts.is_null_final

    @katgym.scorer(weight=0.0, low=0.0, high=1.0)
    def rollback_rate(self) -> float | None:
        """Share of applied patches that were taken back; mode "edit-run-retry" alone."""
        return None if self.retry is None else self.retry.rollback_rate

    @katgym.scorer(weight=0.0, low=0.0)
    def apply_failures_total(self) -> int:
        """Edits that did not apply strictly."""
        return sum(self.apply_failures().values())

    @katgym.scorer(weight=0.0, low=0.0)
    def apply_failures_context(self) -> int:
        """Of those: the lines to change are not there, or not there alone."""
        return sum(self.apply_failures().get(reason, 0) for reason in _CONTEXT)

    @katgym.scorer(weight=0.0, low=0.0)
    def apply_failures_file(self) -> int:
        """Of those: the file is missing, no file, or there already."""
        return sum(self.apply_failures().get(reason, 0) for reason in _MISSING)

    @katgym.scorer(weight=0.0, low=0.0)
    def apply_failures_format(self) -> int:
        """Of those: the text is no patch."""
        return sum(self.apply_failures().get(reason, 0) for reason in _FORMAT)

    def _gold(self) -> Mapping[str, bytes] | None:
        gold = dict(self._product(self.base_files)) | dict(self.hidden.gold_files)
        gold = dict(self._product(gold))
        return gold if gold != self._product(self.base_files) else None

    def _product(self, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return text files that are no graded or visible tests."""
        return {
            path: content
            for path, content in files.items()
            if path not in self.hidden.files and b"\0" not in content
        }
