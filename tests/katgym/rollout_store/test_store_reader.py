"""Pages of a store's sessions; stores of several gateways in one folder, read as one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_sessions import turn

from katgym import Reward, assistant, user
from katgym.cli.main import main
from katgym.errors import UnknownNameError, UsageError
from katgym.rollout_store import (
    RolloutStore,
    SessionRecord,
    SessionStatus,
    StoreReader,
    stored_rollouts,
)
from katgym.rollout_store.session_pages import read_latest, read_page, read_page_of_all
from katgym.rollout_store.store_folders import prepare_folder, store_folders
from katgym.run_view import read_run

NUM = 7
NAMES = [f"s-{number}" for number in range(NUM)]


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[RolloutStore]:
    """Sessions sealed-0 to 4 and sealed-5 to 9 in two shards, then live-0 to 9, half finished."""
    with RolloutStore.open(tmp_path / "store") as opened:
        for first in (0, 5):
            for i in range(first, first + 5):
                name = f"sealed-{i}"
                opened.create_session(SessionRecord(session_id=name, created_s=float(i)))
                opened.update_session(name, status=SessionStatus.FINISHED, ended_s=1.0)
            opened.seal()
        for i in range(10):
            opened.create_session(SessionRecord(session_id=f"live-{i}", created_s=100.0 + i))
            if i % 2:
                opened.update_session(f"live-{i}", status=SessionStatus.FINISHED, ended_s=200.0)
        yield opened


def walk(store: RolloutStore, **options: Any) -> list[list[str]]:
    after, found = "", []
    while True:
        page, after = read_page(store, after=after, **options)
        found.append([record.session_id for record in page])
        if not after:
            return found


def test_pages_together_are_all_sessions_or_those_of_one_status(pages: RolloutStore) -> None:
    for limit in (1, 2, 3, 5, 7, 10, 20, 1000):
        found = walk(pages, limit=limit)
        names = [name for page in found for name in page]
        assert names[:10] == [f"live-{i}" for i in range(10)]
        assert sorted(names[10:]) == [f"sealed-{i}" for i in range(10)]
        assert all(len(page) <= limit for page in found)
        found = walk(pages, limit=limit, statuses=[SessionStatus.OPEN])
        assert [name for page in found for name in page] == [f"live-{i}" for i in range(0, 10, 2)]
        found = walk(pages, limit=limit, statuses=[SessionStatus.FINISHED])
        names = [name for page in found for name in page]
        assert names[:5] == [f"live-{i}" for i in range(1, 10, 2)]
        assert sorted(names[5:]) == [f"sealed-{i}" for i in range(10)]


def test_the_latest_are_the_last_and_a_cursor_that_is_none_is_told(pages: RolloutStore) -> None:
    assert [r.session_id for r in read_latest(pages, limit=3)] == ["live-7", "live-8", "live-9"]
    found = read_latest(pages, statuses=[SessionStatus.FINISHED], limit=2)
    assert [r.session_id for r in found] == ["live-7", "live-9"]
    assert len(read_latest(pages, limit=15)) == 15
    assert read_latest(pages, limit=0) == []
    for after in ("7", "live", "live:", "live:-1", "live:x", ":3", "live:" + "9" * 30):
        with pytest.raises(UsageError, match="after is the cursor of the page before"):
            read_page(pages, after=after)


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Session s-N begins at second N and is in store N mod 3; the first two are sealed."""
    folder = tmp_path_factory.mktemp("stores") / "games"
    prepare_folder(folder, 3)
    for index, path in enumerate(store_folders(folder)):
        with RolloutStore.open(path) as store:
            for number in range(index, NUM, 3):
                record = SessionRecord(
                    session_id=f"s-{number}", group_id=f"g-{number % 3}", created_s=float(number)
                )
                store.create_session(record)
                ids = {"prompt": [1, 2], "completion": [3, number]}
                said = {"asked": [user("Hi.")], "answer": assistant(f"answer {number}")}
                store.append(record.session_id, [turn(0, None, 0, **ids, **said)])
                done = {"status": SessionStatus.FINISHED, "ended_s": 100.0}
                store.update_session(record.session_id, reward=Reward(value=number / 8), **done)
                if number < 2:
                    store.seal()
    return folder


def run(capsys: pytest.CaptureFixture[str], *told: str) -> tuple[str, str]:
    assert main(["rollouts", *told]) == 0
    return capsys.readouterr()


def test_sessions_of_all_stores_are_there_once_in_their_order(games: Path) -> None:
    with StoreReader.open(games) as reader:
        assert reader.num_sessions() == NUM
        assert [record.session_id for record in reader.sessions()] == NAMES
        stored = reader.stored_many(["s-5", "s-0", "s-4", "s-0"])
        assert [one.record.session_id for one in stored] == ["s-5", "s-0", "s-4", "s-0"]
        assert stored[2].turns[0].tokens.completion_ids == [3, 4]
        assert sorted(one.record.session_id for one in reader.each()) == NAMES
        assert len(list(stored_rollouts(reader))) == NUM
        with pytest.raises(UnknownNameError, match="s-9"):
            reader.stored("s-9")


def test_one_store_is_read_as_it_is(games: Path) -> None:
    with StoreReader.open(games / "gateway-1") as reader:
        assert [record.session_id for record in reader.sessions()] == ["s-1", "s-4"]
    assert StoreReader.is_at(games) and StoreReader.is_at(games / "gateway-1")
    assert not StoreReader.is_at(games / "gateway-1" / "finished")
    with pytest.raises(UsageError, match="there is no rollout store"):
        StoreReader.open(games / "no")


def test_pages_of_all_stores_are_all_sessions(games: Path) -> None:
    with StoreReader.open(games) as reader:
        for limit in (1, 2, 3, 5, 7, 100):
            names, after = [], ""
            while True:
                page, after = read_page_of_all(reader, after=after, limit=limit)
                assert len(page) <= limit
                names += [record.session_id for record in page]
                if not after:
                    break
            assert sorted(names) == NAMES
        for wrong in ("live:0", "3/live:0", "x/live:0", "0/live:x", "-1/live:0"):
            with pytest.raises(UsageError, match="after is the cursor of the page before"):
                read_page_of_all(reader, after=wrong)


def test_commands_read_all_stores(
    games: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = json.loads(run(capsys, "show", str(games), "--limit", "3", "--json").out)
    assert [record["session_id"] for record in shown] == ["s-4", "s-5", "s-6"]
    assert "3 of 7 sessions shown" in run(capsys, "show", str(games), "--limit", "3").err
    assert "s-0: finished" in run(capsys, "show", str(games), "s-0").out
    page = run(capsys, "show", str(games), "--after", "", "--limit", "4")
    assert "the next page: --after 1/live:" in page.err

    out = tmp_path / "out.jsonl"
    run(capsys, "export", str(games), "--format", "rollouts", "--out", str(out))
    assert len(out.read_text().splitlines()) == NUM
    found: dict[str, Any] = json.loads(run(capsys, "stats", str(games), "--json").out)
    assert (found["num_sessions"], found["num_sealed"], found["num_shards"]) == (
        {"finished": NUM}, 2, 2,
    )  # fmt: skip
    assert found["num_sampled_tokens"] == 2 * NUM
    view = read_run(games)
    assert sorted(group.group_id for group in view.groups) == ["g-0", "g-1", "g-2"]
    assert sum(len(group.rollouts) for group in view.groups) == NUM
