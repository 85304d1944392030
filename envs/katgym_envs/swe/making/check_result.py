"""What a check says of one task.

Not here: checking (`task_check.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What is wrong with one task; nothing for a sound one.

    Example:
        CheckResult(instance_id="toy-1", problems=("gold: t.py::test_a is failed in run 1 of 3",))
    """

    instance_id: str
    problems: tuple[str, ...] = ()
    num_canaries: int = 0
    """Canaries of its graded tests that were seen to fail on correct code."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems
