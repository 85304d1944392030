"""Rollouts of the agent loop go into a store and come back as they were."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from made_rollouts_of_loop import rollouts_of_loop
from made_sessions import add
from plain_rollout import plain_json, plain_rollout

import katgym
from katgym import (
    FailureKind,
    Limits,
    Reward,
    Rollout,
    RolloutStatus,
    TokenRecord,
    Turn,
    UsageError,
    assistant,
    user,
)
from katgym.environment.reward import Component
from katgym.policies.base import BranchReason, Completion, EpisodeContext, Policy, Session
from katgym.policies.version_span import VersionSpan
from katgym.rollout_store import (
    RolloutStore,
    SessionStatus,
    as_rollout,
    record_rollout,
    record_rollouts,
    rollouts,
)
from katgym.rollout_store.rollouts import as_session
from katgym.testing import EchoEnv, ScriptedPolicy


class Tokens(Policy):
    """Answers `answers` in turn, with tokens; raises what is no text."""

    name = "tokens"
    records_tokens = True

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    def start(self, context: EpisodeContext) -> Session:
        return _TokenSession(self.answers)


class _TokenSession(Session):
    def __init__(self, answers: Sequence[Any]) -> None:
        self.answers = list(answers)
        self.lengths: list[int] = []

    async def complete(self, messages: Sequence[Any], *, max_tokens: int) -> Completion:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        turn = len(self.lengths)
        is_branch = turn == 2
        record = TokenRecord(
            parent=turn - 1 if turn else None,
            num_shared=0 if not turn else 1 if is_branch else self.lengths[-1],
            prompt_ids=[turn, 7],
            completion_ids=[8, 9, 2],
            policy_logprobs=[-0.1, -1e-300, -0.0],
            version_spans=(
                VersionSpan(version=3 + turn, start=0, end=1),
                VersionSpan(version=4 + turn, start=1, end=3),
            ),
            branch=BranchReason.THINK_STRIPPED if is_branch else None,
        )
        self.lengths.append(record.num_shared + 5)
        return Completion(message=answer, tokens=record, num_prompt_tokens=record.num_shared + 2,
                          num_completion_tokens=3, finish_reason="tool_calls")  # fmt: skip


def call(text: str) -> Any:
    return assistant("", [("echo", {"text": text}), ("note", {"text": text}), ("gone", {})])


DONE = assistant("word734779")
"""What the env asks for with seed 3."""


def play(policy: Policy, **more: Any) -> Rollout:
    return asyncio.run(katgym.run_rollout(EchoEnv(), policy, **{"seed": 3, **more}))


def bits(logprobs: Sequence[float]) -> bytes:
    return struct.pack(f"{len(logprobs)}d", *logprobs)


T, C, F = RolloutStatus.TERMINATED, RolloutStatus.TRUNCATED, RolloutStatus.FAILED
ENDS = {
    "terminated": (Tokens(call("a"), call("b"), DONE), {}, T),
    "without tokens": (ScriptedPolicy([call("a"), DONE]), {}, T),
    "truncated": (Tokens(call("a"), call("b")), {"limits": Limits(max_turns=2)}, C),
    "out of tokens": (Tokens(call("a"), call("b")), {"limits": Limits(max_tokens=3)}, C),
    "failed": (Tokens(call("a"), RuntimeError("lost")), {}, F),
    "failed at once": (Tokens(RuntimeError("lost")), {}, F),
}


def test_a_played_rollout_comes_back_as_it_was(store: RolloutStore) -> None:
    played = {}
    for end, (policy, more, status) in ENDS.items():
        rollout = played[end] = play(policy, **more)
        assert rollout.status is status
        before_s = time.time()
        assert record_rollout(store, rollout, group_id="g", metadata={"who": "me"})
        record = store.session(rollout.episode_id)
        assert record.group_id == "g"
        assert record.metadata["who"] == "me"
        assert record.ended_s is not None and before_s <= record.ended_s <= time.time()
        assert record.ended_s - record.created_s == pytest.approx(rollout.wall_s, abs=1e-3)
    for _ in range(2):  # live, then sealed
        for end, rollout in played.items():
            found = rollouts(store, rollout.episode_id)
            assert plain_json(found) == plain_json(rollout), end
            assert found.tool_results == rollout.tool_results
            assert found.messages == rollout.messages
            assert list(found.tools) == list(rollout.tools)
            for one, other in zip(found.turns, rollout.turns, strict=True):
                if one.tokens is not None and other.tokens is not None:
                    assert bits(one.tokens.policy_logprobs) == bits(other.tokens.policy_logprobs)
                    assert one.tokens.version_spans == other.tokens.version_spans
        store.seal()


@pytest.mark.slow
@given(rollout=rollouts_of_loop())
def test_any_rollout_comes_back_as_it_was_out_of_both_kinds_of_files(rollout: Rollout) -> None:
    stored = as_session(rollout, group_id="", metadata={}, ended_s=1e9)
    assert as_rollout(stored) == rollout
    if "\\ud" not in json.dumps(rollout.to_json()):  # no JSON file has a lone surrogate
        assert Rollout.from_json(plain_json(rollout)).to_json() == plain_json(rollout)
    with tempfile.TemporaryDirectory() as folder, RolloutStore.open(folder) as store:
        (session_id,) = record_rollouts(store, [rollout])
        assert plain_json(rollouts(store, session_id)) == plain_json(rollout)
        store.seal()
        assert plain_json(rollouts(store, session_id)) == plain_json(rollout)


def test_what_a_session_shows_to_others(store: RolloutStore) -> None:
    rollout = play(Tokens(call("a"), call("b"), DONE))
    record_rollout(store, rollout, metadata={"mine": 1})
    record = store.session(rollout.episode_id)
    assert record.metadata == {"mine": 1}
    assert record.rollout == dataclasses.replace(rollout, turns=())
    assert (record.status, record.reward) == (SessionStatus.FINISHED, rollout.reward)
    turns = store.turns(record.session_id)
    tokens = [turn.tokens for turn in turns if turn.tokens]
    assert [record.parent for record in tokens] == [None, 0, 1]
    assert [record.branch for record in tokens] == [None, None, BranchReason.THINK_STRIPPED]
    assert {(t.model, t.route, t.finish_reason) for t in turns} == {
        ("tokens", "katgym/agent-loop", "tool_calls")
    }
    assert [[span.version for span in record.version_spans] for record in tokens] == [
        [3, 4], [4, 5], [5, 6],
    ]  # fmt: skip
    # Messages are kept once: each call adds the results of the calls before.
    first = len(rollout.turns[0].messages)
    assert [len(turn.messages) for turn in turns] == [first, 3, 3]
    assert [turn.num_shared_messages for turn in turns] == [0, first + 1, first + 5]
    with store.connections.read() as connection:
        kept = [json.loads(r[0]) for r in connection.execute("SELECT tool_results FROM turns")
                if r[0]]  # fmt: skip
    assert {"content" in result for results in kept for result in results} == {False}
    # A failure stands where a gateway's stands.
    record_rollout(store, lost := play(Tokens(RuntimeError("lost"))))
    record = store.session(lost.episode_id)
    assert record.status is SessionStatus.FAILED
    assert record.reward is not None and record.reward.failure_kind == "policy_bug"
    assert "lost" in record.reward.reason


def made(**more: Any) -> Rollout:
    """A rollout of one turn."""
    turn = Turn(messages=[user("?")], answer=assistant("!"), num_completion_tokens=1,
                tokens=TokenRecord(completion_ids=[1]))  # fmt: skip
    components = {"a": Component(score=0.25, weight=2.0)}
    values = {
        "turns": [turn],
        "sampling_seed": None,
        "reward": Reward(value=0.5, components=components),
    }
    return plain_rollout(**{**values, **more})


def test_the_same_rollout_again_changes_nothing(store: RolloutStore) -> None:
    assert record_rollout(store, made(), group_id="g")
    before = store.stored("e")
    assert not record_rollout(store, made(), group_id="h", metadata={"more": 1})
    assert store.stored("e") == before
    store.seal()
    assert not record_rollout(store, made())
    assert store.num_sessions() == 1
    assert record_rollouts(store, [made(), made(episode_id="f"), made(episode_id="f")]) == ["f"]


def test_many_are_written_or_none(store: RolloutStore) -> None:
    broken = TokenRecord(completion_ids=[1], policy_logprobs=[float("nan")])
    bad = made(episode_id="f", turns=[msgspec.structs.replace(made().turns[0], tokens=broken)])
    with pytest.raises(UsageError, match=r"policy_logprobs\[0\] is nan"):
        record_rollouts(store, [made(), bad])
    assert store.num_sessions() == 0
    names = {"e": "one", "f": "two"}
    pair = [made(), made(episode_id="f")]
    assert record_rollouts(store, pair, group_id=lambda r: names[r.episode_id]) == ["e", "f"]
    assert [record.group_id for record in store.sessions()] == ["one", "two"]


def test_seats_of_an_episode_are_sessions_of_their_own(store: RolloutStore) -> None:
    pair = [made(seat="white"), made(seat="black")]
    assert record_rollouts(store, pair) == ["e-white", "e-black"]
    found = [rollouts(store, name) for name in ("e-white", "e-black")]
    assert [(r.episode_id, r.seat) for r in found] == [("e", "white"), ("e", "black")]


def test_a_session_of_a_gateway_can_be_recorded_elsewhere(store: RolloutStore) -> None:
    """With branches, spans of versions and all its messages, it is the rollout that it was."""
    add(store, "s1", reward=1.0)
    rollout = rollouts(store, "s1")
    with tempfile.TemporaryDirectory() as folder, RolloutStore.open(folder) as other:
        record_rollout(other, rollout)
        assert rollouts(other, "s1") == rollout


def test_a_reward_that_is_told_later_counts(store: RolloutStore) -> None:
    record_rollout(store, made())
    later = Reward(value=2.0, components={"b": Component(score=3.0, weight=0.0)})
    store.update_session("e", reward=later)
    assert rollouts(store, "e").reward == later
    store.update_session("e", status=SessionStatus.FAILED, reward=None)
    found = rollouts(store, "e")
    assert (found.status, found.reward.value) == (RolloutStatus.FAILED, None)
    assert found.failure_kind is FailureKind.INFRASTRUCTURE_ERROR
    store.update_session("e", status=SessionStatus.FINISHED, reward=later)
    assert rollouts(store, "e").status is RolloutStatus.TERMINATED


def test_what_does_not_hold_together_is_refused(store: RolloutStore) -> None:
    lost = msgspec.structs.replace(made().turns[0], tokens=TokenRecord(parent=3))
    with pytest.raises(UsageError, match="turn 0 has parent 3; a parent comes before"):
        record_rollout(store, made(turns=[lost]))
    with pytest.raises(UsageError, match="metadata has the key 'seed'"):
        record_rollout(store, made(), metadata={"seed": 1})
    with pytest.raises(UsageError, match="rollout has to be plain JSON"):
        record_rollout(store, made(artifacts={"a": {1, 2}}))
    assert store.num_sessions() == 0
