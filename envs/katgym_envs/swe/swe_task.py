"""The visible side of a task, for a rollout worker, its tools and its sandbox: nothing graded.

Not here: gold patch, tests that are graded, canaries (`hidden.py`); whole rows (`row.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from katgym.environment.reward import Trust
from katgym.sandbox import Layer
from katgym_envs.swe.row import EnvironmentRecipe, SweRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SweTask:
    """The visible side of one task.

    Example:
        SweTask(instance_id="inflection-0.5.1-3fa9", repo="inflection", version="0.5.1",
                problem_statement="`pluralize('ox')` returns ...", visible_tests=("test_a.py",))
    """

    instance_id: str
    repo: str
    problem_statement: str
    version: str = ""
    hints_text: str = ""
    split: str = "train"
    env: EnvironmentRecipe = field(default_factory=EnvironmentRecipe)
    source_roots: tuple[str, ...] = ()
    visible_tests: tuple[str, ...] = ()
    license: str = ""
    trust: Trust | None = None

    @classmethod
    def from_row(cls, row: SweRow) -> SweTask:
        """Return the visible side of a row."""
        return cls(
            instance_id=row.instance_id,
            repo=row.repo,
            problem_statement=row.problem_statement,
            version=row.version,
            hints_text=row.hints_text,
            split=row.katgym.split,
            env=row.katgym.env,
            source_roots=row.katgym.source_roots,
            visible_tests=row.katgym.visible_tests,
            license=row.katgym.license,
            trust=row.katgym.trust,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The base state the agent starts from, ready for a sandbox."""

    layer: Layer | None
    """None when the image holds it."""
    python: str | None
    """Interpreter of the task's venv on this machine; None with an image."""
