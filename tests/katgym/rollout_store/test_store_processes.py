"""Real processes write at the same time and are killed: nothing that was told is missing."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from made_sessions import add

from katgym import UsageError
from katgym.rollout_store import RolloutStore, SessionStatus, collect
from katgym.rollout_store.sealing import sealing
from katgym.rollout_store.shards import read_shard

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def start(*args: object) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "envs", "trainer", "kernels"))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(HERE / "store_process.py"), *map(str, args)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
    )


def indices(store: RolloutStore, name: str) -> list[int]:
    return [turn.tokens.prompt_ids[0] for turn in store.turns(name) if turn.tokens]


def test_no_write_of_several_processes_is_lost_nor_what_returned_before_a_kill(
    tmp_path: Path,
) -> None:
    others = {name: start("append", tmp_path, name, 60) for name in ("a", "b")}
    killed = start("append", tmp_path, "dies", 1_000_000)
    assert killed.stdout is not None
    last = b""
    while last != b"20":
        last = killed.stdout.readline().strip()
    killed.send_signal(signal.SIGKILL)
    rest = killed.stdout.read().split()
    killed.stdout.close()
    assert killed.wait() == -signal.SIGKILL
    told = int(rest[-1] if rest else last)
    for process in others.values():
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        assert out.split() == [b"%d" % index for index in range(60)]
    with RolloutStore.open(tmp_path) as store:
        found = indices(store, "dies")
        assert found[: told + 1] == list(range(told + 1))
        assert len(found) <= told + 2  # at most the one that had not returned
        for name in others:
            assert indices(store, name) == list(range(60))
            assert {t.answer["content"] for t in store.turns(name) if t.answer} == {name}
        assert store.problems() == []
    connection = sqlite3.connect(tmp_path / "live.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def in_raw_shards(store: RolloutStore) -> list[str]:
    """Session ids of all shards in the folder, whatever the database says of them."""
    names = [p.stem.removeprefix("rollouts-") for p in store.finished.glob("rollouts-*.parquet")]
    return sorted(s.record.session_id for n in names for s in read_shard(store.finished, n))


def test_a_kill_while_sealing_loses_and_doubles_nothing(tmp_path: Path) -> None:
    steps = ("named", "turns", "rollouts", "moved")
    with RolloutStore.open(tmp_path / steps[0]) as store:
        for name in ("s1", "s2", "s3"):
            add(store, name)
        add(store, "open", status=SessionStatus.OPEN)
        before = {s.record.session_id: s for s in store.each()}
    for step in steps[1:]:
        shutil.copytree(tmp_path / steps[0], tmp_path / step)
    out, _ = start("seal", tmp_path, *steps).communicate(timeout=300)
    assert out.split() == [b"%d" % -signal.SIGKILL] * len(steps)
    for step in steps:
        with RolloutStore.open(tmp_path / step) as store:
            after = {s.record.session_id: s for s in store.each()}
            assert after == before, step
            assert sorted(r.session_id for r in store.sessions()) == sorted(before)
            was_moved = step == "moved"
            assert in_raw_shards(store) == (["s1", "s2", "s3"] if was_moved else []), step
            store.append("open", [], [])
            report = store.seal()
            assert report.sealed == ([] if was_moved else ["s1", "s2", "s3"]), step
            assert {s.record.session_id: s for s in store.each()} == before, step
            assert in_raw_shards(store) == ["s1", "s2", "s3"], step
            assert len(list(store.finished.glob("*.parquet"))) == 2, step
            assert store.problems() == [], step


def test_a_kill_while_dropping_brings_nothing_back(tmp_path: Path) -> None:
    folder = tmp_path / "dropped"
    with RolloutStore.open(folder) as store:
        add(store, "old")
        store.seal()
    out, _ = start("collect", tmp_path, "dropped").communicate(timeout=300)
    assert out.split() == [b"%d" % -signal.SIGKILL]
    assert len(list((folder / "finished").glob("*.parquet"))) == 2
    with RolloutStore.open(folder) as store:
        assert store.sessions() == []
        assert list(store.finished.glob("*.parquet")) == []
        add(store, "old")  # its id is free
        assert collect(store).sealed == ["old"]


def test_sessions_survive_the_loss_of_the_database(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RolloutStore.open(tmp_path) as store:
        add(store, "s")
        before = store.stored("s")
        (name,) = store.seal().shards
    for path in tmp_path.glob("live.sqlite*"):
        path.unlink()
    with RolloutStore.open(tmp_path) as store:
        assert store.stored("s") == before
        assert [r.getMessage() for r in caplog.records] == [
            f"took in shard {name}, which the database did not know"
        ]
        copy = name[:-1] + ("0" if name[-1] != "0" else "1")
        for kind in ("turns", "rollouts"):
            data = (store.finished / f"{kind}-{name}.parquet").read_bytes()
            (store.finished / f"{kind}-{copy}.parquet").write_bytes(data)
        assert store.seal().sealed == []
        assert "session 's' is in the store already" in caplog.records[-1].getMessage()
        assert [s.record.session_id for s in store.each()] == ["s"]


def test_one_process_seals_at_a_time_and_removes_half_written_files(tmp_path: Path) -> None:
    with RolloutStore.open(tmp_path) as store:
        add(store, "s")
        leftover = store.finished / ".turns-00-ab.parquet-xyz"
        leftover.write_bytes(b"half")
        with (
            sealing(store.finished),
            pytest.raises(UsageError, match="wait for it or try again later: it seals"),
        ):
            store.seal()
        assert store.seal().sealed == ["s"]
        assert not leftover.exists()
