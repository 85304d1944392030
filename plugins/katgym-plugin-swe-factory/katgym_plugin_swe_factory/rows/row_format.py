"""The data sets whose rows are read, and how a row's own is told from its keys.

Not here: reading them (`normalise.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class RowFormat(StrEnum):
    """Whose keys a row has."""

    KATGYM = "katgym"
    """Ours: SWE-bench's and the key `katgym`."""
    SWE_BENCH = "swe-bench"
    """2.x to 4.x, and 5.x with `image`, `eval_script`, `log_parser`, `eval_type`."""
    SWE_SMITH = "swe-smith"
    """`image_name`; `patch` makes the bug, so gold is its reverse; no `test_patch`."""
    SWE_REBENCH = "swe-rebench"
    """`install_config`, or SWE-bench-Live's `test_cmds`, `rebuild_cmds`, `docker_image`."""


_REBENCH_KEYS = ("install_config", "test_cmds", "rebuild_cmds", "docker_image")


def detect_format(data: Mapping[str, Any]) -> RowFormat:
    """Return the format whose keys the object has.

    A row with `image_name` and neither `test_patch` nor `base_commit` is SWE-smith's: read as any
    other it would have the bug as its gold patch.
    """
    if data.get("katgym"):
        return RowFormat.KATGYM
    if any(data.get(key) for key in _REBENCH_KEYS):
        return RowFormat.SWE_REBENCH
    if data.get("image_name") and not (data.get("test_patch") or data.get("base_commit")):
        return RowFormat.SWE_SMITH
    return RowFormat.SWE_BENCH
