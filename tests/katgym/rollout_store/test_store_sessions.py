"""Sessions, calls and failures come back bit for bit; mistakes are refused and leave nothing."""

from __future__ import annotations

import json
import struct
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_rollouts_of_loop import version_spans
from made_sessions import BRANCHED, FAILED, TOOLS, TWO_ANSWERS, add, turn
from plain_rollout import plain_rollout

from katgym import (
    InfrastructureError,
    Reward,
    Turn,
    UnknownNameError,
    UsageError,
    assistant,
    user,
)
from katgym.environment.reward import Component
from katgym.policies.base import BranchReason
from katgym.policies.version_span import VersionSpan, one_span
from katgym.rollout_store import RolloutStore, SessionRecord, SessionStatus, record_rollout
from katgym.rollout_store.connections import _CHECKPOINT_BYTES
from katgym.rollout_store.encoding import TURN_COLUMNS, encode_turn

REWARD = Reward(value=0.1, components={"tests": Component(score=0.1, weight=0.0)})


def test_a_session_comes_back_as_it_was_written(store: RolloutStore) -> None:
    written = SessionRecord(
        session_id="s1",
        group_id="task-7",
        metadata={"env_id": "katgym/Swe-v0", "deep": {"a": [1, None, "ä"]}},
        created_s=1.7e9 + 1 / 3,
        key_sha256="ab" * 32,
        max_calls=5,
        max_tokens=6,
        deadline_s=1.8e9,
    )
    store.create_session(written)
    assert store.session("s1") == written
    changed = store.update_session(
        "s1", status=SessionStatus.FINISHED, reward=REWARD, ended_s=1.71e9
    )
    assert changed == store.session("s1")
    assert changed == replace(written, status=SessionStatus.FINISHED, reward=REWARD, ended_s=1.71e9)
    store.create_session(SessionRecord(session_id="s2"))
    assert [r.session_id for r in store.sessions()] == ["s1", "s2"]
    assert [r.session_id for r in store.sessions(SessionStatus.OPEN)] == ["s2"]


def test_turns_and_failed_calls_come_back(store: RolloutStore) -> None:
    add(store, "s1", BRANCHED, failed=[FAILED])
    add(store, "s2", TWO_ANSWERS)
    assert store.turns("s1") == BRANCHED
    assert store.failed_calls("s1") == [FAILED]
    assert store.turns("s2") == TWO_ANSWERS
    assert store.failed_calls("s2") == []
    with store.connections.read() as connection:
        assert connection.execute("SELECT count(*) FROM tools").fetchone()[0] == 1
        row = connection.execute("SELECT metadata FROM sessions").fetchone()
        assert json.loads(row[0]) == {"env_id": "katgym/Echo-v0"}  # readable columns are JSON
        assert json.loads(connection.execute("SELECT tools FROM tools").fetchone()[0]) == TOOLS


def test_appending_the_same_again_changes_nothing(store: RolloutStore) -> None:
    add(store, "s1", BRANCHED[:2], status=SessionStatus.OPEN, failed=[FAILED])
    store.append("s1", BRANCHED, [FAILED])
    assert store.turns("s1") == BRANCHED
    assert store.failed_calls("s1") == [FAILED]
    other = turn(3, None, 0, [1], [2])
    with pytest.raises(UsageError, match=r"turn 2 .* there already: choice 0 of call 'call-2'"):
        store.append("s1", [msgspec.structs.replace(BRANCHED[2], choice=1), other], first=2)
    assert len(store.turns("s1")) == 3  # nothing of a refused append is kept


def test_several_sessions_in_one_transaction_are_all_or_nothing(store: RolloutStore) -> None:
    for name in ("s1", "s2"):
        store.create_session(SessionRecord(session_id=name))
    store.append_many([("s1", 0, BRANCHED, []), ("s2", 0, TWO_ANSWERS, [FAILED])])
    assert (len(store.turns("s1")), len(store.turns("s2"))) == (3, 2)
    with pytest.raises(UsageError, match="there is no session 'nowhere'"):
        store.append_many([("s1", 3, [turn(3, None, 0, [1], [2])], []), ("nowhere", 0, [], [])])
    assert len(store.turns("s1")) == 3


BAD_TURNS = [
    (turn(0, None, 0, [-1], []), "prompt_ids holds -1"),
    (turn(0, None, 0, [2**31], []), "prompt_ids is a list of token ids"),
    (turn(0, None, 0, [1.5], []), "prompt_ids is a list of token ids"),
    (turn(0, None, 0, [], [1], policy_logprobs=[float("-inf")]), r"logprobs\[0\] is -inf"),
    (turn(0, None, 0, [], [1], policy_logprobs=[float("nan")]), r"logprobs\[0\] is nan"),
    (turn(0, None, 0, [], [1, 2], policy_logprobs=[-0.5]), "1 policy_logprobs for 2"),
    (turn(0, None, 3, [], [1]), "no parent to share 3 tokens with"),
    (turn(0, 0, 0, [], [1]), "turn 0 has parent 0; a parent comes before"),
    (turn(0, None, 0, [], [1], sampling={"x": float("nan")}), "sampling has to be plain JSON"),
    (turn(0, None, 0, [], [1], sampling={"x": object()}), "sampling has to be plain JSON"),
    (turn(0, None, 0, [], [1], model="\ud800"), "lone surrogates"),
    (turn(0, None, 0, [], [1], started_s=float("inf")), "finite"),
]  # fmt: skip


def test_a_turn_that_does_not_hold_together_is_refused(
    store: RolloutStore, subtests: pytest.Subtests
) -> None:
    store.create_session(SessionRecord(session_id="s1"))
    for bad, why in BAD_TURNS:
        with subtests.test(why=why), pytest.raises(UsageError, match=why):
            store.append("s1", [bad])
    assert store.turns("s1") == []
    with pytest.raises(UsageError, match="spans of a completion end at 2"):
        turn(0, None, 0, [], [1], version_spans=one_span(1, 2))
    with pytest.raises(UsageError, match="spans of a completion leave a gap"):
        turn(0, None, 0, [], [1, 2], version_spans=[VersionSpan(version=1, start=1, end=2)])


def test_turns_come_in_their_order_and_share_no_more_than_there_is(store: RolloutStore) -> None:
    add(store, "s1", BRANCHED[:1], status=SessionStatus.OPEN)
    with pytest.raises(UsageError, match="shares 5 tokens with turn 0, which has 4"):
        store.append("s1", [turn(1, 0, 5, [], [1])], first=1)
    with pytest.raises(UsageError, match="turn 5 of session 's1' is appended before turn 4"):
        store.append("s1", [turn(5, 0, 0, [], [1])], first=5)
    with pytest.raises(UsageError, match="at most 1048575"):
        store.append("s1", [turn(1, 0, 0, [], [1])], first=2**20)
    assert store.turns("s1") == BRANCHED[:1]


def test_mistakes_with_sessions_are_named(store: RolloutStore, subtests: pytest.Subtests) -> None:
    add(store, "s1")
    infinite = Reward(value=1.0, components={"tests": Component(score=float("inf"))})
    for made, error, why in (
        ({"session_id": "s1"}, UsageError, "session 's1' exists already"),
        ({"session_id": "s3", "metadata": {"env_id": 3}}, UsageError, "'s3': Expected .*env_id"),
        ({"session_id": ""}, UsageError, "session_id is empty"),
    ):
        with subtests.test(why=why), pytest.raises(error, match=why):
            store.create_session(SessionRecord(**made))
    for change, error, why in (
        ({"rewards": 1.0}, UsageError, r"unknown field .* 'rewards'\. Did you mean 'reward'"),
        ({"reward": 0.5}, UsageError, r"is a katgym\.Reward or None, got 0\.5"),
        ({"reward": infinite}, UsageError, "reward has to be plain JSON"),
        ({"metadata": {"seed": "x"}}, UsageError, r"'s1': Expected `int \| null`"),
        ({"metadata": {"x": {1, 2}}}, UsageError, "metadata has to be plain JSON"),
        ({"status": "done"}, ValueError, "is not a valid SessionStatus"),
        ({"max_calls": 2**70}, UsageError, "fit 64 bits"),
    ):
        with subtests.test(why=why), pytest.raises(error, match=why):
            store.update_session("s1", **change)
    with pytest.raises(UnknownNameError, match=r"unknown session 's2'\. Known: 's1'"):
        store.session("s2")
    with pytest.raises(UnknownNameError, match="unknown session"):
        store.turns("s2")


def test_text_of_any_kind_is_kept(store: RolloutStore) -> None:
    store.create_session(SessionRecord(session_id="s1"))
    odd = ["", "\ud800 alone", "long " * 5000, "\x00 and ünïcödé 🙂"]
    turns = [turn(0, None, 0, [1], [], [user(said)], assistant(said)) for said in odd]
    store.append("s1", [*turns, Turn()])
    assert store.turns("s1") == [*turns, Turn(messages=[], tools=[], tool_results=[])]
    add(store, "s2", [], failed=[replace(FAILED, reason="unknown model '\ud800'")])
    assert store.failed_calls("s2")[0].reason == "unknown model '?'"


def test_threads_may_share_a_store(store: RolloutStore) -> None:
    """More bytes than start a checkpoint, while another thread reads."""
    num_threads, num_turns, num_ids = 3, 20, 80_000
    assert num_threads * num_turns * num_ids * 4 > _CHECKPOINT_BYTES
    for number in range(num_threads):
        store.create_session(SessionRecord(session_id=str(number)))

    def write(number: int) -> None:
        for index in range(num_turns):
            made = turn(index, None, 0, [number] * num_ids, [index])
            store.append(str(number), [made], first=index)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(num_threads)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = [t.call_id for t in store.turns("0")]
        assert found == [f"call-{index}" for index in range(len(found))]
    for thread in threads:
        thread.join()
    for number in range(num_threads):
        found = store.turns(str(number))
        sampled = [t.tokens.completion_ids for t in found if t.tokens]
        assert sampled == [[index] for index in range(num_turns)]
        assert {t.tokens.prompt_ids[0] for t in found if t.tokens} == {number}


def test_many_sessions_come_in_the_order_that_is_asked_for_live_or_sealed(
    store: RolloutStore,
) -> None:
    for name in ("a", "b"):
        add(store, name)
    store.seal()
    add(store, "c")
    add(store, "d", [])
    store.seal()
    add(store, "e")
    names = ["e", "b", "d", "a", "c"]
    found = store.stored_many(names)
    assert found == [store.stored(name) for name in names]
    assert store.stored_many([]) == []
    with pytest.raises(UnknownNameError, match="unknown session 'x'"):
        store.stored_many(["a", "x"])


def test_whole_sessions_are_added_once(store: RolloutStore) -> None:
    add(store, "a")
    stored = store.stored("a")
    other = replace(stored, record=replace(stored.record, session_id="b"))
    assert store.add_sessions([stored, other, other]) == ["b"]
    store.seal()
    assert store.add_sessions([stored, other]) == []
    assert replace(store.stored("b"), record=stored.record) == store.stored("a")


def test_sessions_of_some_groups_are_left_out(store: RolloutStore) -> None:
    for name, group in (("a", "g"), ("b", "h"), ("c", "")):
        add(store, name, group_id=group)
    for _ in range(2):
        found = store.sessions(without_groups={"g", ""})
        assert [record.session_id for record in found] == ["b"]
        store.seal()


def test_nothing_is_added_to_a_rollout_that_was_recorded_or_to_a_closed_store(
    store: RolloutStore,
) -> None:
    record_rollout(store, plain_rollout())
    with pytest.raises(UsageError, match="session 'e' was recorded whole; nothing can be added"):
        store.append("e", [turn(0, None, 0, [1], [2])])
    store.close()
    store.close()
    with pytest.raises(InfrastructureError, match="is closed"):
        store.sessions()


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
