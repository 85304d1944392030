"""Result of the check of one task.

Not here: checking (`task_check.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheckResult:
    """What is wrong with one task; no problem and no fault for a sound one.

    Example:
        TaskCheckResult(instance_id="toy-1", problems=("FAIL_TO_PASS is empty",))
    """

    instance_id: str
    problems: tuple[str, ...] = ()
    num_canaries: int = 0
    """Canaries of its graded tests that were seen to fail on correct code."""
    fault: str = ""
    """Why the task could not be checked: a sandbox failed, so that nothing is known of the task."""

    @property
    def is_sound(self) -> bool:
        """Whether it was checked and nothing is wrong."""
        return not self.problems and not self.fault
