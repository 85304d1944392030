"""`katgym rollouts collect` as a user meets it: what is in the store, stops, goes on, wrong use.

Not here: policies with tokens (`test_collect_tokens.py`); one rollout (`test_recording.py`).
"""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from slow_oracle import start_slow_oracle
from waiting import wait_until

from katgym import Reward
from katgym.cli.main import main
from katgym.evaluation.playing import MAX_CONSECUTIVE_FAILURES
from katgym.evaluation.store import read_rollouts
from katgym.rollout_store import (
    RolloutStore,
    SessionRecord,
    SessionStatus,
    export,
    rollouts,
    stored_groups,
)

ARITHMETIC = "katgym/Arithmetic-v1?level=1"
COLLECT = """
import katgym.evaluation.run as run

run.make_policy = lambda uri: Slow()
sys.exit(main(sys.argv[1:]))
"""


def command(store: Path, *extra: object) -> list[str]:
    options = ["--policy", "oracle", "--tasks", "15", "--group-size", "4", "--concurrency", "4"]
    return ["rollouts", "collect", ARITHMETIC, *options, "--store", str(store), *map(str, extra)]


def start(tmp_path: Path, *extra: object) -> subprocess.Popen[bytes]:
    return start_slow_oracle(tmp_path, COLLECT, *command(tmp_path / "store", *extra))


def count_sessions(store: Path) -> int:
    try:
        uri = f"file:{store / 'live.sqlite'}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM sessions").fetchone()[0])
    except sqlite3.OperationalError:  # not made yet
        return 0


def wait_for_sessions(store: Path, count: int) -> None:
    wait_until(lambda: count_sessions(store) >= count, f"{store} to reach {count} sessions")


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out))


def attempts(store: RolloutStore) -> Counter[tuple[str, int]]:
    return Counter((r.group_id, r.rollout.attempt) for r in store.sessions() if r.rollout)


def test_a_store_has_every_planned_rollout_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path, "--json")) == 0
    assert summary(capsys) == {
        "folder": str(tmp_path), "num_groups": 15, "num_planned_groups": 15, "num_rollouts": 60,
        "num_planned": 60, "num_resumed": 0, "mean_reward": 1.0, "invalid": {},
        "num_prompt_tokens": 0, "num_completion_tokens": 0, "has_tokens": False,
    }  # fmt: skip
    with RolloutStore.open(tmp_path) as store:
        assert len(attempts(store)) == store.num_sessions() == 60
        assert {r.status for r in store.sessions()} == {SessionStatus.FINISHED}
        groups = dict(stored_groups(store))
        assert len(groups) == 15
        for group_id, group in groups.items():
            assert [r.attempt for r in group.rollouts] == [0, 1, 2, 3]
            (task,) = {(r.task_id, r.seed, r.split) for r in group.rollouts}
            assert group_id.startswith(f"katgym/Arithmetic-v1/{task[0]}/")
            assert task[2] == "train"


def test_the_tasks_are_those_of_an_evaluation(tmp_path: Path) -> None:
    options = [ARITHMETIC, "--policy", "oracle", "--tasks", "3", "--group-size", "2", "--seed", "5"]
    out = [str(tmp_path / name) for name in ("store", "run")]
    assert main(["rollouts", "collect", *options, "--split", "test", "--store", out[0]]) == 0
    assert main(["eval", *options, "--out", out[1]]) == 0
    played = {(r.task_id, r.attempt, r.seed) for r in read_rollouts(tmp_path / "run")}
    with RolloutStore.open(tmp_path / "store") as store:
        found = [record.rollout for record in store.sessions() if record.rollout]
    assert {(r.task_id, r.attempt, r.seed) for r in found} == played
    assert len(played) == 6


@pytest.mark.slow
def test_the_same_command_again_plays_nothing_and_another_plays_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path)) == 0
    assert "15 of 15 complete" in capsys.readouterr().out
    with RolloutStore.open(tmp_path) as store:
        store.seal()
        before = attempts(store)
    assert main(command(tmp_path, "--json")) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["num_resumed"], json.loads(out)["num_rollouts"]) == (60, 60)
    assert "continuing: 60 rollouts are there already" in err
    with RolloutStore.open(tmp_path) as store:
        assert attempts(store) == before
    for other in (["--seed", "1"], ["--temperature", "0.5"], ["--group-size", "5"]):
        assert main(command(tmp_path, "--json", *other)) == 0
        assert summary(capsys)["num_resumed"] == 0


@pytest.mark.slow
def test_kill_9_and_ctrl_c_lose_and_repeat_nothing_and_the_command_continues(
    tmp_path: Path,
) -> None:
    hold, folder = tmp_path / "hold", tmp_path / "store"
    hold.touch()
    for count in (1, 9, 25):
        process = start(tmp_path)
        try:
            wait_for_sessions(folder, count)
        finally:
            process.kill()
            process.communicate()
    process = start(tmp_path)
    wait_for_sessions(folder, 28)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    text = " ".join(errors.decode().split())
    assert process.returncode == 130, text
    assert "Traceback" not in text
    assert "The same command continues there." in text
    with RolloutStore.open(folder) as store:
        assert 28 <= store.num_sessions() < 60
        assert {record.status for record in store.sessions()} == {SessionStatus.FINISHED}
    hold.unlink()
    last = start(tmp_path, "--json")
    out, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors.decode()
    assert json.loads(out)["num_resumed"] >= 28
    with RolloutStore.open(folder) as store:
        assert set(attempts(store).values()) == {1}
        assert store.num_sessions() == len(attempts(store)) == 60
        assert len(list(stored_groups(store))) == 15
        assert store.problems() == []


@pytest.mark.slow
def test_collectors_and_others_write_to_one_store_at_once(tmp_path: Path) -> None:
    processes = [start(tmp_path, "--seed", seed) for seed in (0, 1)]
    with RolloutStore.open(tmp_path / "store") as store:
        for number in range(20):
            name = f"agent-{number}"
            store.create_session(SessionRecord(session_id=name, group_id="agents"))
            store.update_session(name, status=SessionStatus.FINISHED, reward=Reward(value=0.0))
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors.decode()
        assert store.num_sessions() == 60 + 60 + 20
        assert [len(group.rollouts) for _, group in stored_groups(store)] == [4] * 30


@pytest.mark.slow
def test_the_same_command_twice_at_once_makes_no_group_larger(tmp_path: Path) -> None:
    for process in [start(tmp_path) for _ in range(2)]:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    with RolloutStore.open(tmp_path / "store") as store:
        groups = [group for _, group in stored_groups(store)]
    assert [[r.attempt for r in group.rollouts] for group in groups] == [[0, 1, 2, 3]] * 15


DOWN = ("--policy", "openai:http://127.0.0.1:9/v1#model?max_retries=0", "--set", "max_retries=0")
"""A policy whose server is not there."""


def test_rollouts_that_failed_are_kept_counted_and_played_again_until_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    again = command(tmp_path, *DOWN, "--tasks", 3, "--group-size", 2, "--json")
    for num_played in (6, 12):
        assert main(again) == 1
        out, err = capsys.readouterr()
        found = json.loads(out)
        assert found["invalid"] == {"policy_unavailable": 6}
        assert (found["num_rollouts"], found["num_groups"], found["mean_reward"]) == (6, 3, None)
        assert "6 rollouts have no valid reward" in " ".join(err.split())
        with RolloutStore.open(tmp_path) as store:
            assert store.num_sessions() == num_played
            assert {r.status for r in store.sessions()} == {SessionStatus.FAILED}
            assert [len(group.rollouts) for _, group in stored_groups(store)] == [2, 2, 2]
    assert main(command(tmp_path / "more", *DOWN)) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"{MAX_CONSECUTIVE_FAILURES} rollouts in a row failed (policy_unavailable)" in said
    with RolloutStore.open(tmp_path / "more") as store:
        assert MAX_CONSECUTIVE_FAILURES <= store.num_sessions() < 60


def test_a_scripted_policy_is_recorded_with_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"role": "assistant", "content": "no idea"}) + "\n")
    options = ["--policy", f"scripted:{script}", "--tasks", 2, "--group-size", 1, "--json"]
    assert main(command(tmp_path / "store", *options)) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["mean_reward"] == 0.0
    assert "records no tokens: its rollouts are kept as messages" in " ".join(err.split())
    with RolloutStore.open(tmp_path / "store") as store:
        record = store.sessions()[0]
        rollout = rollouts(store, record.session_id)
        assert rollout.messages[1] == {"role": "assistant", "content": "no idea"}
        assert rollout.turns[0].tokens is None
        assert export(store, tmp_path / "out.jsonl", format="messages") == 2
        assert export(store, tmp_path / "rows.jsonl", format="rows") == 0
    row = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert row["messages"] == list(rollout.messages)[:2]
    assert main(["rollouts", "show", str(tmp_path / "store"), record.session_id]) == 0
    shown = capsys.readouterr().out
    assert "task_id: " in shown
    assert "tool_results" not in shown


def test_wrong_use_exits_2_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    oracle = ["--policy", "oracle", "--tasks", "1"]
    self_play = "katgym/OpenSpiel-v0?game=tic_tac_toe&opponent=self"
    for number, (options, text) in enumerate(
        [
            (["katgym/Arithmetik-v0", *oracle], "Did you mean 'katgym/Arithmetic-v1'?"),
            ([ARITHMETIC, "--policy", "orakle"], "Did you mean 'oracle'?"),
            ([ARITHMETIC, *oracle, "--split", "tests"], "unknown split 'tests'"),
            ([ARITHMETIC, *oracle, "--group-size", "0"], "group_size is >= 1, got 0"),
            ([ARITHMETIC, ARITHMETIC, *oracle], "is named twice"),
            ([self_play, *oracle], "2 seats"),
            ([ARITHMETIC, *oracle, "--concurrency", "0"], "max_concurrency is >= 1"),
        ]
    ):
        with subtests.test(text=text):
            folder = tmp_path / f"store{number}"
            assert main(["rollouts", "collect", *options, "--store", str(folder)]) == 2
            assert text in " ".join(capsys.readouterr().err.split())
            if folder.exists():
                with RolloutStore.open(folder) as store:
                    assert store.num_sessions() == 0
    (tmp_path / "file").write_text("mine")
    assert main(command(tmp_path / "file")) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "is a file; a rollout store is a folder" in said
    assert (tmp_path / "file").read_text() == "mine"
