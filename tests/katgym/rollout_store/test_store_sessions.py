"""Sessions, calls and failures go in and come back; mistakes are refused and leave nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from made_sessions import BRANCHED, FAILED, TWO_ANSWERS, add, turn
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
from katgym.policies.version_span import VersionSpan, one_span
from katgym.rollout_store import RolloutStore, SessionRecord, SessionStatus, record_rollout
from katgym.rollout_store.connections import _CHECKPOINT_BYTES

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


@pytest.mark.parametrize(
    ("bad", "why"),
    [
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
    ],
)  # fmt: skip
def test_a_turn_that_does_not_hold_together_is_refused(
    store: RolloutStore, bad: Turn, why: str
) -> None:
    store.create_session(SessionRecord(session_id="s1"))
    with pytest.raises(UsageError, match=why):
        store.append("s1", [bad])
    assert store.turns("s1") == []


def test_spans_that_do_not_fit_their_tokens_make_no_turn() -> None:
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


def test_mistakes_with_sessions_are_named(store: RolloutStore) -> None:
    add(store, "s1")
    with pytest.raises(UsageError, match="session 's1' exists already"):
        store.create_session(SessionRecord(session_id="s1"))
    with pytest.raises(UnknownNameError, match=r"unknown session 's2'\. Known: 's1'"):
        store.session("s2")
    with pytest.raises(UnknownNameError, match="unknown session"):
        store.turns("s2")
    with pytest.raises(UsageError, match=r"unknown field .* 'rewards'\. Did you mean 'reward'"):
        store.update_session("s1", rewards=1.0)
    with pytest.raises(UsageError, match=r"is a katgym\.Reward or None, got 0\.5"):
        store.update_session("s1", reward=0.5)
    with pytest.raises(UsageError, match="reward has to be plain JSON without NaN and infinity"):
        components = {"tests": Component(score=float("inf"))}
        store.update_session("s1", reward=Reward(value=1.0, components=components))
    with pytest.raises(UsageError, match=r"metadata of session 's1': Expected `int \| null`"):
        store.update_session("s1", metadata={"seed": "x"})
    with pytest.raises(UsageError, match=r"metadata of session 's3': Expected `str`.*env_id"):
        store.create_session(SessionRecord(session_id="s3", metadata={"env_id": 3}))
    with pytest.raises(UsageError, match="metadata has to be plain JSON"):
        store.update_session("s1", metadata={"x": {1, 2}})
    with pytest.raises(UsageError, match="session_id is empty"):
        store.create_session(SessionRecord(session_id=""))
    with pytest.raises(ValueError, match="is not a valid SessionStatus"):
        store.update_session("s1", status="done")
    with pytest.raises(UsageError, match="fit 64 bits"):
        store.update_session("s1", max_calls=2**70)


def test_text_of_any_kind_is_kept(store: RolloutStore) -> None:
    store.create_session(SessionRecord(session_id="s1"))
    odd = ["", "\ud800 alone", "long " * 5000, "\x00 and ünïcödé 🙂"]
    turns = [turn(0, None, 0, [1], [], [user(said)], assistant(said)) for said in odd]
    store.append("s1", [*turns, Turn()])
    assert store.turns("s1") == [*turns, Turn(messages=[], tools=[], tool_results=[])]


def test_a_refused_reason_is_kept_without_its_surrogates(store: RolloutStore) -> None:
    add(store, "s1", [], failed=[replace(FAILED, reason="unknown model '\ud800'")])
    assert store.failed_calls("s1")[0].reason == "unknown model '?'"


def test_threads_may_share_a_store(store: RolloutStore) -> None:
    """More bytes than start a checkpoint, while another thread reads."""
    num_threads, num_turns, num_ids = 4, 60, 20_000
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


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = RolloutStore.open(tmp_path)
    store.close()
    store.close()
    with pytest.raises(InfrastructureError, match="is closed"):
        store.sessions()


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


def test_nothing_is_added_to_a_rollout_that_was_recorded(store: RolloutStore) -> None:
    record_rollout(store, plain_rollout())
    with pytest.raises(UsageError, match="session 'e' was recorded whole; nothing can be added"):
        store.append("e", [turn(0, None, 0, [1], [2])])
