"""A patch made ready for grading: read strictly, judged by path, or refused.

Not here: running anything. A patch is data up to here: no program of the repository, and no git,
ever sees it on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from katgym.sandbox import WorkspaceDiff
from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.hack_scan import suspicions
from katgym_envs.swe.grading.path_policy import PathRules, judge_paths
from katgym_envs.swe.patching import (
    PatchError,
    PatchFailure,
    Tree,
    WorkspaceChanges,
    apply_patches,
    parse_diff,
    workspace_changes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePatch:
    """What of a patch is graded."""

    changes: Mapping[str, FileEntry | None] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    """If there are any, nothing is graded."""
    suspicions: tuple[str, ...] = ()


def read_candidate(patch: str | bytes | WorkspaceDiff, task: GradedTask) -> CandidatePatch:
    """Return what is graded of a unified diff, or of a workspace's changes."""
    base = task.base_files
    try:
        found = WorkspaceChanges()
        if isinstance(patch, WorkspaceDiff):
            found = workspace_changes(patch)
        elif patch.strip():
            left_out: dict[str, str] = {}
            changes = apply_patches(task.base, parse_diff(patch), left_out=left_out)
            found = WorkspaceChanges(changes=changes, left_out=left_out)
    except PatchError as e:
        if e.reason is PatchFailure.EMPTY:
            return CandidatePatch()
        return CandidatePatch(rejected={e.path: e.text})
    hidden = task.hidden
    installed = [r.partition("==")[0].partition("[")[0].strip() for r in task.env.requirements]
    rules = PathRules(
        hidden=tuple(hidden.files),
        protected=hidden.protected_paths,
        allowed=task.allowed_paths,
        gold=_gold_paths(task),
        source_roots=task.source_roots,
        python_path=task.env.python_path,
        requirements=tuple(name.replace("-", "_") for name in installed if name),
    )
    judged = judge_paths(found.changes, base=base, rules=rules, unreadable=found.unreadable)
    kept = {p: e for p, e in judged.kept.items() if not _is_same(p, e, task.base)}
    return CandidatePatch(
        changes=kept,
        dropped={**found.left_out, **judged.dropped},
        rejected=judged.rejected,
        suspicions=suspicions(kept, base),
    )


def _gold_paths(task: GradedTask) -> frozenset[str]:
    """Return the paths that gold changes; none if it cannot be read (grading it says why)."""
    try:
        patches = parse_diff(task.hidden.gold_patch)
    except PatchError:
        return frozenset()
    return frozenset(path for p in patches for path in (p.old_path, p.new_path) if path)


def _is_same(path: str, entry: FileEntry | None, base: Tree) -> bool:
    """Return whether a change leaves a path as it is."""
    before = base.get(path)
    return entry == (FileEntry(content=before) if isinstance(before, bytes) else before)
