"""Verdicts of `katgym verify` on this machine, kept by the root of a run, outside of its folder.

A mark in the folder would be worth nothing: whoever sends a run could write it. A mark says what
was found when the run was verified; it does not see what was changed later by somebody who left the
links of its chain as they were. Not here: verifying (`verify.py`).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from katgym.evaluation.chain import CHAIN_FORMAT, last_link
from katgym.evaluation.verification.report import VerifyReport
from katgym.rollout_store import SessionRecord
from katgym.system import write_atomically

logger = logging.getLogger(__name__)


def keep_mark(report: VerifyReport) -> None:
    """Keep what was found, in `~/.cache/katgym/verified` (`KATGYM_CACHE` moves it)."""
    if (path := _path(report.root)) is None:
        return
    now = datetime.now(UTC).isoformat(timespec="minutes")
    told = {"verdict": str(report.verdict), "grounds": report.grounds, "verified": now}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(told).encode())
    except OSError as e:
        logger.warning("the verdict is not kept for katgym view: %s", e)


def find_mark(lock: Mapping[str, Any], records: Iterable[SessionRecord]) -> str:
    """Return what was found of a run that ends in these sessions, with the day; "" for nothing.

    Example:
        "✓ rewards; policy not (2026-03-01)"
    """
    path = _path(last_link(lock, records).sha256) if lock.get("chain") == CHAIN_FORMAT else None
    try:
        told = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
        sign = {"verified": "✓ ", "refuted": "✗ "}.get(told["verdict"], "")
        return f"{sign}{told['grounds']} ({told['verified'][:10]})"
    except (OSError, ValueError, KeyError):
        return ""


def _path(root: str) -> Path | None:
    """Return where a root's mark is; None for what is no root, as a folder may say anything."""
    if not re.fullmatch(r"[0-9a-f]{64}", root):
        return None
    cache = Path(os.environ.get("KATGYM_CACHE", "~/.cache/katgym")).expanduser()
    return cache / "verified" / f"{root}.json"
