"""Whatever nodes hold comes back bit for bit, from SQLite and from a shard."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_rollouts_of_loop import version_spans
from made_sessions import turn

from katgym import Reward, Turn
from katgym.environment.reward import Component
from katgym.policies.base import BranchReason
from katgym.rollout_store import (
    RolloutStore,
    SessionRecord,
    SessionStatus,
)
from katgym.rollout_store.encoding import TURN_COLUMNS, encode_turn

LOGPROBS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from([-0.0, 0.0, 5e-324, -5e-324, 1e-45, -1.4e-45, -1e308, 1e39, -0.1]),
)
IDS = st.lists(st.one_of(st.integers(0, 50), st.integers(0, 2**31 - 1)), max_size=6)
WORDS = st.text(alphabet=st.characters(codec="utf-8"), max_size=8)
JSON = st.dictionaries(WORDS, st.one_of(st.none(), st.booleans(), st.integers(-5, 5), WORDS))


@st.composite
def sessions(draw: st.DrawFn) -> list[Turn]:
    """Draw turns with parents, shared prefixes of every length, and several answers a call."""
    made: list[Turn] = []
    lengths: list[int] = []
    for index in range(draw(st.integers(0, 5))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        num_shared = 0 if parent is None else draw(st.integers(0, lengths[parent]))
        prompt, completion = draw(IDS), draw(IDS)
        num = len(completion)
        logprobs = draw(st.lists(LOGPROBS, min_size=num, max_size=num) | st.just([]))
        lengths.append(num_shared + len(prompt) + num)
        said = draw(WORDS)
        drawn = turn(
            index, parent, num_shared, prompt, completion,
            [{"role": "user", "content": said * draw(st.integers(0, 100))}],
            draw(st.none() | st.just({"role": "assistant", "content": said})),
            draw(st.integers(0, 3)),
            tools=draw(st.sampled_from([[], [{"type": "function", "function": {"name": said}}]])),
            choice=draw(st.integers(0, 2)),
            policy_logprobs=logprobs,
            version_spans=draw(version_spans(num)),
            branch=draw(st.none() | st.sampled_from(BranchReason)),
            finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls"])),
            model=draw(WORDS),
            sampling=draw(JSON),
            completed_s=draw(st.floats(0, 2e9)),
        )  # fmt: skip
        made.append(drawn)
    return made


def bits(turns: Sequence[Turn]) -> list[bytes]:
    """The log-probs as bytes, as -0.0 equals 0.0."""
    logprobs = [turn.tokens.policy_logprobs for turn in turns if turn.tokens]
    return [struct.pack(f"<{len(found)}d", *found) for found in logprobs]


@pytest.mark.slow
@settings(max_examples=25)
@given(drawn=sessions(), metadata=JSON, reward=st.none() | st.floats(-10, 10))
@example(drawn=[], metadata={}, reward=None)
def test_a_session_round_trips_through_both(
    drawn: list[Turn], metadata: dict[str, object], reward: float | None
) -> None:
    with tempfile.TemporaryDirectory() as folder, RolloutStore.open(folder) as store:
        store.create_session(SessionRecord(session_id="s", metadata=metadata, created_s=0.25))
        store.append("s", drawn)
        record = store.update_session(
            "s", status=SessionStatus.FINISHED, ended_s=0.75,
            reward=None if reward is None else
            Reward(value=reward, components={"it": Component(score=reward)}),
        )  # fmt: skip
        for is_sealed in (False, True):
            if is_sealed:
                assert store.seal().sealed == ["s"]
                with store.connections.read() as connection:
                    assert connection.execute("SELECT count(*) FROM turns").fetchone()[0] == 0
            assert (store.turns("s"), bits(store.turns("s"))) == (drawn, bits(drawn))
            assert store.session("s") == record
            assert store.sessions() == [record]
            (whole,) = store.each()
            assert (whole.record, whole.turns) == (record, drawn)
        assert store.problems() == []


def test_logprobs_take_four_bytes_where_that_loses_nothing() -> None:
    def size(values: list[float]) -> int:
        made = turn(0, None, 0, [], [1] * len(values), policy_logprobs=values)
        return len(encode_turn(made, 0, None).values[TURN_COLUMNS.index("policy_logprobs")])

    assert size([-0.5, -0.25, -(2.0**-149)]) == 12  # the last is subnormal in float32
    assert size([-0.5, -0.1]) == 16
    assert size([-0.5, -1e300]) == 16
    assert size([5e-324]) == 8


def test_the_whole_size_is_that_of_the_new_tokens(tmp_path: Path) -> None:
    """A thousand calls on a growing history: the database grows by what each adds."""
    num, new = 300, 40
    with RolloutStore.open(tmp_path) as store:
        store.create_session(SessionRecord(session_id="s"))
        for index in range(num):
            shared = index * (new + 8)
            parent = None if index == 0 else index - 1
            made = turn(index, parent, shared, list(range(new)), list(range(8)))
            store.append("s", [made], first=index)
        with store.connections.read() as connection:
            total = connection.execute(
                "SELECT sum(length(prompt_ids) + length(completion_ids)) FROM turns"
            ).fetchone()[0]
    assert total == num * (new + 8) * 4
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size < num * 1000, json.dumps(size)
