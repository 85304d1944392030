"""A package's study as JSON, so that a resumed run need not repeat it.

Not here: making the study (`package_study.py`).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from katgym.errors import UsageError
from katgym.storage import write_atomically
from katgym_envs.swe.making.package_study import PackageStudy
from katgym_envs.swe.making.reach import Reach


class _StoredStudy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tests: dict[str, dict[str, tuple[str, ...]]]
    flaky: tuple[str, ...]
    failing: tuple[str, ...]
    duration_s: float
    durations: list[tuple[str, str, float]]
    functions: list[tuple[str, str, str]]
    reach: list[tuple[str, int, tuple[int, ...]]]
    """File, first line of a function, numbers in `functions` of the tests that call it."""
    at_import: list[tuple[str, int]]
    is_reach_known: bool


def write_study(path: Path, study: PackageStudy) -> None:
    """Write a study."""
    numbers = {node: number for number, node in enumerate(study.functions)}
    reach = study.reach
    stored = _StoredStudy(
        tests=study.tests,
        flaky=study.flaky,
        failing=study.failing,
        duration_s=study.duration_s,
        durations=[(*name, seconds) for name, seconds in study.durations.items()],
        functions=[(node, *name) for node, name in study.functions.items()],
        reach=[(*p, tuple(sorted(numbers[n] for n in found))) for p, found in reach.tests.items()],
        at_import=sorted(reach.at_import),
        is_reach_known=reach.is_known,
    )
    write_atomically(path, msgspec.json.encode(stored), mode=0o600)


def read_study(path: Path) -> PackageStudy | None:
    """Return a study, or None if there is none; `UsageError` for what cannot be read."""
    if not path.exists():
        return None
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_StoredStudy)
    except (OSError, msgspec.MsgspecError) as e:
        raise UsageError(f"{str(path)!r} cannot be read: {e}") from e
    nodes = [node for node, _, _ in stored.functions]
    return PackageStudy(
        tests=stored.tests,
        flaky=stored.flaky,
        failing=stored.failing,
        duration_s=stored.duration_s,
        durations={(path, name): seconds for path, name, seconds in stored.durations},
        functions={node: (path, name) for node, path, name in stored.functions},
        reach=Reach(
            tests={
                (p, line): frozenset(nodes[n] for n in found) for p, line, found in stored.reach
            },
            at_import=frozenset(stored.at_import),
            every_test=frozenset(nodes),
            is_known=stored.is_reach_known,
        ),
    )
