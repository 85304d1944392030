"""What tests call, recorded in one run: functions of the workspace, clocks, chance.

    recording = await record(lab, modules)

It misses what a test does in another process. Not here: the recorder itself, which runs in the
sandbox (`recorder_plugin.py`), what follows for bugs (`reach.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import msgspec

from katgym.errors import UsageError
from katgym_envs.swe.test_run import TestPlan
from katgym_plugin_swe_factory.studies.lab import PackageLab

logger = logging.getLogger(__name__)

_PLUGIN = "katgym_recorder"
_RESULT = "katgym_recorded.json"
_SLOWER = 4
"""Times that recorded tests may take of what others may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What the tests of one run called."""

    places: tuple[tuple[str, int], ...]
    """Functions of the workspace: file and first line."""
    tests: Mapping[str, tuple[int, ...]]
    """Node id -> numbers of places that it called; "" for what importing called."""
    uncertain: Mapping[str, str]
    """Node id -> what it asks of a clock or of chance, which may decide it."""


async def record(lab: PackageLab, modules: tuple[str, ...]) -> Recording | None:
    """Run test modules on correct code with the recorder; it slows them down a few times.

    None, and a warning, if they do not come to their end so.
    """
    plugin = (files(__package__ or "") / "recorder_plugin.py").read_bytes()
    plan = TestPlan(
        files=modules,
        put={f"{_PLUGIN}.py": plugin},
        env={"PYTEST_PLUGINS": _PLUGIN},
        timeout_s=lab.timeout_s * _SLOWER,
        python_path=lab.tree.package.python_path,
    )
    run, data = await lab.run_and_read(plan, _RESULT)
    if data is not None and run.is_finished:
        try:
            return msgspec.json.decode(data, type=Recording)
        except msgspec.MsgspecError as e:  # tests ran in the process that wrote it
            raise UsageError(f"{lab.label}: its tests change what is recorded of them: {e}") from e
    why = f"stopped by {run.execution.limit_hit}" if run.is_timed_out else "they ended early"
    logger.warning(
        "%s: its tests do not run to their end while it is recorded what they call (%s): all of"
        " them run on every bug, and those that a clock decides are not known",
        lab.label,
        why,
    )
    return None
