"""The grader: a patch against hidden tests, in a sandbox the agent never was in. See README.md.

`grade` is in `grader.py`; here is only what the rest needs without it (`report.py`), since reading
a result takes no sandbox.
"""

from katgym_envs.swe.grading.report import GradeReport, Outcome, TestStatus

__all__ = ["GradeReport", "Outcome", "TestStatus"]
