"""Sessions as columns of SQLite and Parquet: metadata, rewards and rollouts as JSON.

Not here: turns (`encoding.py`).
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

import msgspec

from katgym.environment.failure import FailureKind
from katgym.environment.reward import Reward
from katgym.errors import UsageError
from katgym.play.rollout import Rollout
from katgym.rollout_store.encoding import to_json
from katgym.rollout_store.records import FailedCall, SessionRecord, SessionStatus

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def record_to_columns(record: SessionRecord) -> dict[str, Any]:
    """Return a session as the columns that have the names of its fields; the reward is JSON."""
    return {
        **{name: getattr(record, name) for name in SessionRecord.__slots__},
        "metadata": to_json("metadata", dict(record.metadata)),
        "status": str(SessionStatus(record.status)),
        "reward": reward_to_column(record.reward),
        "rollout": rollout_to_column(record.rollout),
    }


def record_from_columns(row: Any, reward_json: str | None) -> SessionRecord:
    """Return the session that `record_to_columns` wrote; row: anything with its columns by name."""
    reward = None if reward_json is None else msgspec.convert(json.loads(reward_json), Reward)
    values = {name: row[name] for name in SessionRecord.__slots__}
    values["metadata"] = msgspec.convert(json.loads(values["metadata"]), dict)
    values["status"] = SessionStatus(values["status"])
    values["rollout"] = rollout_from_column(values["rollout"], reward)
    return SessionRecord(**{**values, "reward": reward})


def reward_to_column(reward: Reward | None) -> str | None:
    """Return a reward as JSON without what is at its default."""
    if reward is None:
        return None
    if not isinstance(reward, Reward):
        raise UsageError(f"the reward of a session is a katgym.Reward or None, got {reward!r}")
    components = {name: _changed(component) for name, component in reward.components.items()}
    return to_json("reward", {**_changed(reward), "components": components})


def rollout_to_column(rollout: Rollout | None) -> str | None:
    """Return a rollout as JSON, without turns and reward, and without what is at its default."""
    if rollout is None:
        return None
    values = _changed(rollout)
    values = {name: value for name, value in values.items() if name not in ("turns", "reward")}
    for name in ("env_kwargs", "artifacts"):
        values[name] = dict(values.get(name, {}))
    for name in ("success", "sampling"):
        if values.get(name) is not None:
            values[name] = _changed(values[name])
    return to_json("rollout", {**values, "final_messages": list(rollout.final_messages)})


def rollout_from_column(text: str | None, reward: Reward | None) -> Rollout | None:
    """Return the rollout that `rollout_to_column` wrote, with its session's reward."""
    if text is None:
        return None
    values = json.loads(text)
    messages = values.pop("final_messages")
    invalid = Reward.invalid(FailureKind.VERIFIER_UNAVAILABLE, "its reward was taken back")
    rollout = msgspec.convert({**values, "reward": {"value": 0.0}}, Rollout)
    return replace(rollout, reward=reward or invalid, final_messages=messages)


def _changed(value: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass that are not at their defaults."""
    found = {each.name: getattr(value, each.name) for each in fields(value)}
    return {
        each.name: found[each.name]
        for each in fields(value)
        if found[each.name]
        != (each.default if each.default_factory is MISSING else each.default_factory())
    }


def failed_to_columns(call: FailedCall) -> tuple[Any, ...]:
    """Return a failed call's values; lone surrogates of the reason, which may quote, become `?`."""
    reason = call.reason.encode("utf-8", "replace").decode()
    return call.call_id, call.route, call.status, call.kind, reason, call.received_s
