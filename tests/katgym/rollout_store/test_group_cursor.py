"""A reader's place in a store: every complete group once, whatever happens between two looks."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_sessions import add

from katgym import Reward
from katgym.rollout_store import RolloutStore, SessionRecord, SessionStatus, stored_groups
from katgym.rollout_store.changes import (
    first_changes,
    known_groups,
    num_trainable,
    read_changes,
    read_groups,
)
from katgym.rollout_store.collecting import collect
from katgym.rollout_store.group_cursor import GroupCursor
from katgym.rollout_store.groups import GRADING_S, held_out_rollouts
from katgym.rollout_store.schema import foreign_parts

HELD_OUT = {"is_held_out": True}


def names(cursor: GroupCursor, num: int = 1000) -> list[str]:
    """Take so many groups at most."""
    return [group_id for group_id, _ in islice(cursor.groups(), num)]


class World:
    """A store with two writers, a reader that is killed and goes on, and what it ought to yield."""

    def __init__(self, folder: Path) -> None:
        self.root, self.num_copies, self.num_sessions = folder, 0, 0
        self.folder = folder / "store"
        self.writers = [RolloutStore.open(self.folder) for _ in "ab"]
        self.cursor = GroupCursor(self.writers[0], group_size=2)
        self.taken: list[str] = []
        self.held_out: list[str] = []
        self.saved = (json.dumps(self.cursor.state_dict()), 0, 0)
        self.copies: list[Path] = []
        self.is_diverged = False

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def sessions(self, *, is_open: bool) -> list[SessionRecord]:
        with self.writers[0].connections.read() as connection:
            ids = [r[0] for r in connection.execute("SELECT session_id FROM sessions")]
        found = self.writers[0].records(ids)
        return [r for r in found if (r.status is SessionStatus.OPEN) == is_open]

    def begin_pair(self, number: int) -> None:
        self.begin(number)
        self.begin(number)

    def begin(self, number: int, *, is_held_out: bool = False) -> None:
        self.num_sessions += 1
        self.writers[number % 2].create_session(
            SessionRecord(
                session_id=f"s{self.num_copies}-{self.num_sessions}",
                group_id="" if is_held_out and number % 2 else f"g{number % 8}",
                metadata=HELD_OUT if is_held_out else {},
                created_s=float(self.num_sessions),
            )
        )

    def end(self, number: int) -> None:
        for _ in range(1 + number % 4):
            self.end_one(number)

    def end_one(self, number: int) -> None:
        if found := self.sessions(is_open=True):
            reward = None if number % 3 == 0 else Reward(value=1.0)
            self.writers[number % 2].update_session(
                found[number % len(found)].session_id,
                status=SessionStatus.FINISHED, ended_s=time.time(), reward=reward,
            )  # fmt: skip

    def judge(self, number: int) -> None:
        if found := self.sessions(is_open=False):
            session_id = found[number % len(found)].session_id
            self.writers[number % 2].update_session(session_id, reward=Reward(value=0.5))

    def take(self, number: int) -> None:
        self.taken += names(self.cursor, 1 + number % 3)
        self.held_out += [rollout.episode_id for rollout in self.cursor.held_out()]

    def give_back(self, _: int) -> None:
        found = names(self.cursor, 2)
        self.cursor.give_back(found)

    def save(self, _: int) -> None:
        self.saved = (json.dumps(self.cursor.state_dict()), len(self.taken), len(self.held_out))

    def kill(self, number: int) -> None:
        """Go on from what was saved; an even number: what was taken since then was kept."""
        state, num, num_held_out = self.saved
        again = self.taken[num:] if number % 2 == 0 else []
        self.taken, self.held_out = self.taken[:num], self.held_out[:num_held_out]
        self.cursor = GroupCursor(self.writers[0], group_size=2)
        if not self.cursor.load_state_dict(json.loads(state)):
            self.is_diverged = True
            for group_id in self.taken:
                self.cursor.handle(group_id)
        for group_id in again:
            self.cursor.handle(group_id)
            self.taken.append(group_id)

    def copy(self, _: int) -> None:
        self.num_copies += 1
        shutil.copytree(self.folder, target := self.root / f"copy{self.num_copies}")
        self.copies.append(target)

    def go_on_in_a_copy(self, number: int) -> None:
        if not self.copies:
            return
        self.close()
        self.folder = self.copies.pop(number % len(self.copies))
        self.writers = [RolloutStore.open(self.folder) for _ in "ab"]
        self.kill(1)

    def seal(self, number: int) -> None:
        self.writers[number % 2].seal()


OPS = {
    "begin": 2, "begin_pair": 5, "end": 8, "judge": 2, "take": 3, "give_back": 1, "save": 3,
    "kill": 3, "seal": 1, "hold_out": 2,
}  # fmt: skip
"""What happens, and how often."""
COPIES = {"copy": 2, "go_on_in_a_copy": 2}


def steps_of(ops: dict[str, int]) -> st.SearchStrategy[list[tuple[str, int]]]:
    names = st.sampled_from([name for name, num in ops.items() for _ in range(num)])
    return st.lists(st.tuples(names, st.integers(0, 30)), min_size=50, max_size=100)


STEPS = st.one_of(steps_of(OPS), steps_of(OPS | COPIES))


@pytest.mark.slow
@given(steps=STEPS)
@settings(suppress_health_check=list(HealthCheck))
def test_whatever_happens_every_complete_group_is_yielded_once(
    steps: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            for name, number in steps:
                if name == "hold_out":
                    world.begin(number, is_held_out=True)
                else:
                    getattr(world, name)(number)
            for _ in range(20):
                world.take(2)
            assert len(set(world.taken)) == len(world.taken)
            complete = {group_id for group_id, _ in stored_groups(world.writers[0], group_size=2)}
            ended = {session_id for session_id, _ in held_out_rollouts(world.writers[0])}
            assert complete <= set(world.taken)
            assert ended <= set(world.held_out)
            if not world.is_diverged and world.num_copies == 0:
                assert complete == set(world.taken)
                assert sorted(ended) == sorted(world.held_out)
        finally:
            world.close()


def test_a_state_does_not_grow_with_what_was_yielded(store: RolloutStore) -> None:
    add(store, "odd", group_id="waits")
    cursor = GroupCursor(store, group_size=2)
    sizes = []
    for number in range(12):
        for attempt in range(2):
            add(store, f"{number}-{attempt}", group_id=f"g{number}")
        assert names(cursor) == [f"g{number}"]
        sizes.append(len(json.dumps(cursor.state_dict())))
    assert cursor.state_dict()["groups"]["waiting"] == ["waits"]
    assert sizes[-1] <= sizes[0] + 8  # digits
    add(store, "even", group_id="waits")
    add(store, "late", group_id="g3", reward=1.0)
    assert names(cursor) == ["waits"]


def test_of_a_store_full_of_groups_what_was_taken_first_is_not_told(store: RolloutStore) -> None:
    for number in range(40):
        add(store, f"s{number}", group_id=f"g{number}")
    cursor = GroupCursor(store, group_size=1)
    assert names(cursor, 12) == [f"g{n}" for n in range(12)]
    state = cursor.state_dict()
    assert (state["groups"]["waiting"], state["groups"]["handled"]) == ([], [])
    again = GroupCursor(store, group_size=1)
    assert again.load_state_dict(json.loads(json.dumps(state)))
    assert names(again, 1000) == [f"g{n}" for n in range(12, 40)]


def test_a_session_that_nobody_ends_is_looked_at_when_it_is_overdue(
    store: RolloutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = 1e9
    monkeypatch.setattr(time, "time", lambda: clock_s)
    open_ = {"status": SessionStatus.OPEN, "deadline_s": clock_s - GRADING_S + 0.3}
    add(store, "a", group_id="g", **open_)
    add(store, "b", group_id="g", reward=1.0)
    add(store, "h", group_id="g", metadata=HELD_OUT, **open_)
    cursor = GroupCursor(store, group_size=2)
    assert (names(cursor), cursor.held_out()) == ([], [])
    assert [(g.group_id, g.open_sessions) for g in cursor.incomplete()] == [("g", ["a"])]
    state = cursor.state_dict()
    clock_s += 0.4
    assert names(cursor) == ["g"]
    assert [rollout.episode_id for rollout in cursor.held_out()] == ["h"]
    again = GroupCursor(store, group_size=2)
    assert again.load_state_dict(state)
    assert names(again) == ["g"]


def test_a_session_of_another_group_or_use_is_looked_at_anew(store: RolloutStore) -> None:
    add(store, "a", group_id="g")
    add(store, "x", group_id="x")
    cursor = GroupCursor(store, group_size=1)
    assert names(cursor) == ["g", "x"]
    cursor.state_dict()
    store.update_session("a", group_id="h")
    store.update_session("x", metadata=HELD_OUT)
    assert names(cursor) == ["h"]
    assert [rollout.episode_id for rollout in cursor.held_out()] == ["x"]
    add(store, "b", group_id="g")  # nothing is left of what was yielded, and still it was
    assert names(cursor) == []


def test_dropped_sessions_hold_nobody_up(store: RolloutStore) -> None:
    add(store, "a", group_id="g", ended_s=1.0)
    add(store, "b", group_id="h", ended_s=1.0)
    cursor = GroupCursor(store, group_size=1)
    assert names(cursor, 1) == ["g"]
    collect(store, older_than_s=60)
    add(store, "c", group_id="g", ended_s=time.time())
    add(store, "d", group_id="i", ended_s=time.time())
    assert names(cursor) == ["i"]
    assert num_trainable(store) == 2
    assert store.records(["a", "c"])[0].session_id == "c"


def test_a_look_costs_what_has_changed(store: RolloutStore) -> None:
    add(store, "s", (), group_id="g")
    made = store.stored("s")
    records = [replace(made.record, session_id=f"s{n}", group_id=f"g{n}") for n in range(300)]
    store.add_sessions([replace(made, record=record) for record in records])
    for new in ("live", "sealed"):
        cursor = GroupCursor(store, group_size=3 if new == "sealed" else 2)
        names(cursor)
        add(store, new, (), group_id="g7")
        with counted(store) as num_steps:
            assert names(cursor) == ["g7"], new
            some = num_steps()
            assert names(cursor) == []
            none = num_steps() - some
        assert none < 100, new  # instructions of SQLite's machine; 300 sessions are thousands
        assert some < 1000, new
        store.seal()


@contextlib.contextmanager
def counted(store: RolloutStore) -> Iterator[Any]:
    """Count what reading costs, in instructions of SQLite's machine."""
    found = [0]

    def count() -> None:
        found[0] += 1

    with store.connections.read() as connection:
        connection.set_progress_handler(count, 1)
    yield lambda: found[0]
    with store.connections.read() as connection:
        connection.set_progress_handler(None, 0)


def as_version_4(folder: Path) -> None:
    """Take from a store's database what version 5 has more."""
    with contextlib.closing(sqlite3.connect(folder / "live.sqlite")) as connection:
        for what in ("TRIGGER session_created", "TRIGGER session_changed", "TABLE changes",
                     "TABLE firsts", "TABLE epochs"):  # fmt: skip
            connection.execute(f"DROP {what}")
        connection.execute("ALTER TABLE shards DROP COLUMN has_changes")
        connection.execute("PRAGMA user_version = 4")
        connection.commit()
        assert foreign_parts(connection) == []


def test_a_store_of_version_4_is_read_and_goes_on(tmp_path: Path) -> None:
    with RolloutStore.open(tmp_path) as store:
        add(store, "sealed", group_id="g")
        add(store, "measured", metadata=HELD_OUT)
        store.seal()
        add(store, "live", group_id="g")
        add(store, "other", group_id="h")
    as_version_4(tmp_path)
    # One of version 4 that has it open goes on writing, and seals.
    old = sqlite3.connect(tmp_path / "live.sqlite", isolation_level=None)
    old.execute("SELECT count(*) FROM sessions").fetchone()
    with RolloutStore.open(tmp_path) as store:
        cursor = GroupCursor(store, group_size=2)
        assert names(cursor) == ["g"]
        assert [rollout.episode_id for rollout in cursor.held_out()] == ["measured"]
        assert sorted(known_groups(store)) == ["g", "h"]
        assert set(first_changes(store, ["g", "h", "none"], is_held_out=False)) == {"g", "h"}
        old.execute(
            "INSERT INTO sessions (session_id, group_id, metadata, created_s, status, key_sha256)"
            " VALUES ('new', 'h', '{}', 1.0, 'open', '')"
        )
        assert names(cursor) == []
        old.execute("UPDATE sessions SET status = 'finished' WHERE session_id = 'new'")
        old.close()
        assert names(cursor) == ["h"]
        assert num_trainable(store) == 4
        state = cursor.state_dict()
    with RolloutStore.open(tmp_path) as store:
        cursor = GroupCursor(store, group_size=2)
        assert cursor.load_state_dict(state)
        assert (names(cursor), cursor.held_out()) == ([], [])


def test_what_version_4_has_comes_in_the_order_of_its_end(tmp_path: Path) -> None:
    with RolloutStore.open(tmp_path) as store:
        for number in (3, 1, 2):
            add(store, f"s{-number}", group_id=f"g{number}", ended_s=float(number))
        store.seal()
        for number in (6, 4, 5):
            add(store, f"s{number}", group_id=f"g{number}", ended_s=float(number))
    as_version_4(tmp_path)
    with RolloutStore.open(tmp_path) as store:
        found = names(GroupCursor(store, group_size=1))
    assert found == ["g4", "g5", "g6", "g1", "g2", "g3"]  # each part by itself


def test_a_store_that_lost_its_database_is_told_from_what_it_was(tmp_path: Path) -> None:
    with RolloutStore.open(tmp_path) as store:
        add(store, "a", group_id="g")
        store.seal()
        cursor = GroupCursor(store, group_size=1)
        assert names(cursor) == ["g"]
        state = cursor.state_dict()
    for path in tmp_path.glob("live.sqlite*"):
        path.unlink()
    with RolloutStore.open(tmp_path) as store:
        assert [r.session_id for r in read_groups(store, ["g"])["g"]] == ["a"]
        assert read_changes(store, 0).groups == [("g", 1)]
        cursor = GroupCursor(store, group_size=1)
        assert not cursor.load_state_dict(state)
        assert names(cursor) == ["g"]
