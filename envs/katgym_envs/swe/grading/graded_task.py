"""Everything the grader needs of one task, in one object.

Not here: where it comes from (`task_source.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from katgym.environment.reward import Trust
from katgym_envs.swe.hidden import HiddenTests
from katgym_envs.swe.patching import Tree, regular_files
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.swe_task import Workspace
from katgym_envs.swe.task_source import TaskSource


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedTask:
    """One task as the grader sees it."""

    hidden: HiddenTests
    base: Tree
    """The base state; empty if it is in an image."""
    workspace: Workspace
    env: EnvironmentRecipe
    allowed_paths: tuple[str, ...] = ()
    """Test infrastructure that gold itself changes, and a patch may, too."""
    source_roots: tuple[str, ...] = ()
    """Directories or files that hold the product; empty if the row does not say."""
    trust: Trust | None = None
    """As it was measured, None: it was not."""
    is_unsafe_allowed: bool = False
    """Grade although FAIL_TO_PASS tests have no canary (imported rows): forgers go unnoticed."""

    @property
    def base_files(self) -> Mapping[str, bytes]:
        """The base state's regular files."""
        return regular_files(self.base)

    @property
    def instance_id(self) -> str:
        """The task's id."""
        return self.hidden.instance_id

    @classmethod
    def load(cls, source: TaskSource, instance_id: str) -> GradedTask:
        """Return a task of a source; blocks where the source has to make it first."""
        row = source.row(instance_id)
        return cls(
            hidden=source.load_hidden(instance_id),
            base=source.base_tree(instance_id),
            workspace=source.workspace(instance_id),
            env=row.katgym.env,
            source_roots=row.katgym.source_roots,
            trust=row.katgym.trust,
            is_unsafe_allowed=row.katgym.origin.kind == "import",
        )
