"""A run's folder, changed and written again as a forger would, with the chain that fits or without.

Not here: the frauds (`tests/katgym/evaluation/test_verify_frauds.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from katgym import Reward, Rollout, Turn
from katgym.evaluation.chain import LINK, ChainLink, first_link, link_of
from katgym.evaluation.statistics.summary import summarize
from katgym.evaluation.store import group_id
from katgym.evaluation.verification.bundle import read_bundle
from katgym.rollout_store import RolloutStore, SessionStatus, StoredSession
from katgym.rollout_store.groups import by_group, chosen_attempts
from katgym.rollout_store.rollouts import as_rollout


@dataclass
class Forgery:
    """A run in the making: change what is to be told otherwise."""

    lock: dict[str, Any]
    sessions: list[StoredSession]
    summary: dict[str, Any] | None = None
    """None: computed from the sessions."""

    @property
    def rollouts(self) -> list[Rollout]:
        """The rollouts, in the order of their links."""
        return [as_rollout(session) for session in self.sessions]

    def change(self, index: int, rollout: Rollout) -> None:
        """Tell one rollout otherwise, its session with it."""
        self.sessions[index] = session_of(self.sessions[index], rollout)

    def change_all(self, change: Callable[[Rollout], Rollout]) -> None:
        """Tell every rollout otherwise."""
        for index, rollout in enumerate(self.rollouts):
            self.change(index, change(rollout))

    def regroup(self) -> None:
        """Give every session the group that the lock has for it, as the run would have."""
        names = ("policy", "split", "seed", "group_size", "sampling", "limits", "policy_details")
        shared = {name: self.lock[name] for name in names}
        envs = {env["env_id"]: env for env in self.lock["envs"]}
        for index, rollout in enumerate(self.rollouts):
            task = (rollout.task_id, rollout.task_sha256)
            record = self.sessions[index].record
            metadata = {**record.metadata, "group_size": self.lock["group_size"]}
            group = group_id(shared, envs[rollout.env_id], task)
            record = replace(record, group_id=group, metadata=metadata)
            self.sessions[index] = replace(self.sessions[index], record=record)


def session_of(session: StoredSession, rollout: Rollout) -> StoredSession:
    """Return a session that holds another rollout."""
    status = SessionStatus.FINISHED if rollout.reward.is_valid else SessionStatus.FAILED
    record = replace(
        session.record,
        session_id=rollout.episode_id,
        status=status,
        reward=rollout.reward,
        rollout=replace(rollout, turns=()),
    )
    return replace(session, record=record, turns=list(rollout.turns))


def with_reward(rollout: Rollout, value: float) -> Rollout:
    """Return a rollout that earned `value`, all of its components with it."""
    parts = {n: replace(c, score=value) for n, c in rollout.reward.components.items() if c.weight}
    metrics = {n: c for n, c in rollout.reward.components.items() if not c.weight}
    return replace(rollout, reward=Reward(value=value, components={**parts, **metrics}))


def with_turn(rollout: Rollout, index: int, **changes: Any) -> Rollout:
    """Return a rollout with fields of one turn changed."""
    turns: list[Turn] = list(rollout.turns)
    turns[index] = msgspec.structs.replace(turns[index], **changes)
    return replace(rollout, turns=turns)


def read_forgery(folder: Path) -> Forgery:
    """Read an honest run to begin with."""
    bundle, _ = read_bundle(folder)
    return Forgery(lock=json.loads(json.dumps(bundle.raw_lock)), sessions=list(bundle.sessions))


def write_forgery(forged: Forgery, folder: Path, *, is_patient: bool = True) -> Path:
    """Write it as a run's folder.

    is_patient: links and root are computed anew; else those of the honest run are kept.
    """
    folder.mkdir(parents=True)
    (folder / "lock.json").write_text(json.dumps(forged.lock))
    link, sessions = first_link(forged.lock), []
    for session in forged.sessions:
        known = link_of(session.record)
        link = replace(link, segment=known.segment if known else link.segment)
        link = link.extend(session)
        metadata = dict(session.record.metadata)
        if is_patient:
            metadata[LINK] = asdict(link)
        sessions.append(replace(session, record=replace(session.record, metadata=metadata)))
    if not is_patient:
        links = [found for session in sessions if (found := link_of(session.record))]
        link = max(links, key=lambda found: found.number, default=ChainLink(
            number=0, segment=1, sha256=""))  # fmt: skip
    with RolloutStore.open(folder) as store:
        store.add_sessions(sessions)
    summary = forged.summary
    if summary is None:
        groups = by_group(session.record for session in sessions)
        chosen = {r.session_id for found in groups.values() for r in chosen_attempts(found)}
        rollouts = [as_rollout(s) for s in sessions if s.record.session_id in chosen]
        summary = replace(summarize(rollouts), root=link.sha256).to_json()
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
