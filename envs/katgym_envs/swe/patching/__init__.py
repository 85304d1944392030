"""Patches as pure functions over file trees: parse, apply strictly, make. See README.md."""

from katgym_envs.swe.patching.apply import apply_patches
from katgym_envs.swe.patching.envelope import BEGIN, apply_envelope, parse_envelope
from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.file_patch import FilePatch, Hunk
from katgym_envs.swe.patching.make_diff import line_opcodes, make_diff
from katgym_envs.swe.patching.proposal import Proposal, parse_proposal
from katgym_envs.swe.patching.shown_text import ShownText
from katgym_envs.swe.patching.tree import Changes, Tree, as_tree, regular_files, update_tree
from katgym_envs.swe.patching.unified import parse_diff
from katgym_envs.swe.patching.workspace import (
    WorkspaceChanges,
    directory_diff,
    is_artefact,
    is_git_path,
    make_workspace_diff,
    workspace_changes,
)

__all__ = [
    "BEGIN",
    "Changes",
    "FilePatch",
    "Hunk",
    "PatchError",
    "PatchFailure",
    "Proposal",
    "ShownText",
    "Tree",
    "WorkspaceChanges",
    "apply_envelope",
    "apply_patches",
    "as_tree",
    "directory_diff",
    "is_artefact",
    "is_git_path",
    "line_opcodes",
    "make_diff",
    "make_workspace_diff",
    "parse_diff",
    "parse_envelope",
    "parse_proposal",
    "regular_files",
    "update_tree",
    "workspace_changes",
]
