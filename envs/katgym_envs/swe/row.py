"""Task rows: SWE-bench's JSON Lines, its names and types, and one key `katgym` beside them.

A row is what tools exchange. What a rollout worker may see of it is `SweTask` (`swe_task.py`); the
rest (`HiddenTests`, `hidden.py`) is the grader's. Not here: reading files (`task_source.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from katgym.environment.reward import Trust
from katgym.errors import UsageError

SCHEMA = 1


class Origin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a task comes from; known to the grader only."""

    kind: str
    """"mutation", "pr", "import" or "handmade"."""
    package: str = ""
    """Name in `packages/`, for a mutation."""
    version: str = ""
    sha256: str = ""
    """Of the sdist."""
    url: str = ""
    """Of the pull request."""


class EnvironmentRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tests and tools of a task run with."""

    kind: str = "venv"
    """"venv": made from `requirements` and mounted read-only; "image": the row's `image`."""
    requirements: tuple[str, ...] = ("pytest==9.2.0",)
    """Pinned; of a venv."""
    image: str = ""
    """With digest or a local id."""
    workdir: str = "/workspace"
    python_path: tuple[str, ...] = (".",)
    """Directories of the workspace that are imported from: the workspace is the installed copy."""
    env: dict[str, str] = {}


class KatgymPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What katgym adds to a row."""

    schema: int = SCHEMA
    split: str = "train"
    env: EnvironmentRecipe = EnvironmentRecipe()
    source_roots: tuple[str, ...] = ()
    """Directories or files that hold the product; an agent may change others as well."""
    visible_tests: tuple[str, ...] = ()
    """Test files the agent sees."""
    hidden_files: dict[str, str] = {}
    """Path -> sha256 of every file only the grader has (tests, their data)."""
    protected_paths: tuple[str, ...] = ()
    """Further paths whose changes are dropped before grading, besides test infrastructure."""
    workspace_sha256: str = ""
    """Digest of the workspace's layer."""
    canaries: str = ""
    """Name of the canary catalogue in the hidden store, or of the package."""
    timeout_s: float = 60.0
    """Processor seconds of one run of all the task's tests; it is ended after twice as many by the
    wall as well."""
    trust: Trust | None = None
    """How far the grader's verdicts can be trusted, as it was measured; None: it was not."""
    origin: Origin = Origin(kind="handmade")
    license: str = ""
    validation: dict[str, Any] = {}
    """What `katgym swe make` established: runs, flaky tests, mutants killed."""


class SweRow(msgspec.Struct, kw_only=True):
    """One row; all fields but the last two are SWE-bench's.

    `FAIL_TO_PASS` and `PASS_TO_PASS` are also read from JSON text, as SWE-bench ships them. Keys
    that katgym does not use (`eval_script`, `log_parser`) are kept in `other` and written back.
    """

    instance_id: str
    repo: str = ""
    base_commit: str = ""
    patch: str = ""
    test_patch: str = ""
    problem_statement: str = ""
    hints_text: str = ""
    created_at: str = ""
    version: str = ""
    FAIL_TO_PASS: list[str] = []
    PASS_TO_PASS: list[str] = []
    image: str = ""
    katgym: KatgymPart = KatgymPart()
    other: dict[str, Any] = {}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SweRow:
        """Return the row of a JSON object; `UsageError` names the field that does not fit."""
        known = {name: data[name] for name in cls.__struct_fields__ if data.get(name) is not None}
        known["other"] = {k: v for k, v in data.items() if k not in cls.__struct_fields__}
        try:
            for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
                if isinstance(known.get(name), str):
                    known[name] = msgspec.json.decode(known[name], type=list[str])
            row = msgspec.convert(known, cls)
        except msgspec.MsgspecError as e:
            name = data.get("instance_id", "?")
            raise UsageError(f"task row {name!r}: {e}") from e
        if not row.instance_id or "/" in row.instance_id or "\0" in row.instance_id:
            raise UsageError(f"an instance_id is a name without '/', got {row.instance_id!r}")
        return row

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with SWE-bench's keys, the kept ones, and `katgym`."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        other = data.pop("other")
        return {**{k: v for k, v in data.items() if v is not None}, **other}
