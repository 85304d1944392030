"""Facts of a run's `lock.json`, as names and texts for a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_MAX_TEXT = 400
_MAX_PAIRS = 120


def evaluation_facts(lock: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the few facts that tell one evaluation from another."""
    envs = []
    for env in lock["envs"]:
        kwargs = "&".join(f"{name}={value}" for name, value in env.get("kwargs", {}).items())
        envs.append(f"{env['env_id']}?{kwargs}" if kwargs else str(env["env_id"]))
    return _said(
        ("policy", lock.get("policy")),
        ("test-time scaling", lock.get("tts")),
        ("envs", ", ".join(envs)),
        ("rollouts a task", lock.get("group_size")),
        ("split", lock.get("split")),
        ("seed", lock.get("seed")),
        ("temperature", _named(lock.get("sampling"), "temperature")),
        ("begun", _minute(lock.get("created"))),
        ("katgym", lock.get("katgym_version")),
    )


def training_facts(lock: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the few facts that tell one training run from another."""
    kind, model, trainer, loop, envs = (
        _named(lock.get("run"), name) for name in ("kind", "model", "trainer", "loop", "envs")
    )
    return _said(
        ("kind", kind),
        ("model", _named(model, "path")),
        ("envs", ", ".join(str(_named(env, "id")) for env in envs) if envs else ""),
        ("algorithm", _named(loop, "algorithm")),
        ("learning rate", _named(trainer, "learning_rate")),
        ("begun", _minute(lock.get("created"))),
        ("katgym", _named(lock.get("versions"), "katgym")),
    )


def config_pairs(lock: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the whole lock as dotted names and texts; lists of tasks and tools as their number."""
    pairs = list(_flattened(lock, ""))
    if len(pairs) > _MAX_PAIRS:
        left = len(pairs) - _MAX_PAIRS
        pairs = [*pairs[:_MAX_PAIRS], ("...", f"{left} more in lock.json")]
    return [(n, t if len(t) <= _MAX_TEXT else t[: _MAX_TEXT - 3] + "...") for n, t in pairs]


def _flattened(value: Any, name: str) -> Sequence[tuple[str, str]]:
    if name.endswith((".tasks", ".tools")) and isinstance(value, Mapping | list):
        return [(name, f"{len(value)} entries")]
    if isinstance(value, Mapping) and value:
        entries = value.items()
        return [p for k, v in entries for p in _flattened(v, f"{name}.{k}".lstrip("."))]
    if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
        return [p for i, v in enumerate(value) for p in _flattened(v, f"{name}.{i}")]
    return [(name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))]


def _said(*facts: tuple[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in facts if value not in (None, "", {}, [])]


def _named(value: Any, name: str) -> Any:
    """Return an entry of a mapping; None of anything else."""
    return value.get(name) if isinstance(value, Mapping) else None


def _minute(time: object) -> str:
    """Return `2026-03-01 10:00` of an ISO time."""
    return str(time or "")[:16].replace("T", " ")
