"""Training on groups that others play into a store."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest
from made_rollouts import record, rollout_of, turn
from rl_play import ENV_ID, register_env, save_model

from katgym import VersionSpan
from katgym.cli.main import main
from katgym.errors import UsageError
from katgym.rollout_store.recording import record_rollouts
from katgym.rollout_store.store import RolloutStore
from katgym_trainer.rl.rl_config import RolloutsConfig
from katgym_trainer.rl.store_stream import StoreStream


def put(
    folder: Path, group_id: str, *, version: int = 0, last: int | None = None, num: int = 2
) -> None:
    """Write a group of two, or what is there of it; last: the version that sampled last tokens."""
    spans = [
        VersionSpan(version=version, start=0, end=1),
        VersionSpan(version=version if last is None else last, start=1, end=2),
    ]
    tokens = [record(None, 0, [1, 2], [3, 4], version_spans=spans) for _ in range(num)]
    rollouts = [
        rollout_of(turn(tokens[i]), episode_id=f"{group_id}-{i}", attempt=i) for i in range(num)
    ]
    with RolloutStore.open(folder) as store:
        record_rollouts(store, rollouts, group_id=group_id)


def stream_of(folder: Path, **config: int) -> StoreStream:
    return StoreStream(
        RolloutsConfig(**{"num_groups": 2, "group_size": 2, **config}, store=str(folder))
    )


def names(taken: object) -> list[str]:
    return [p.group.rollouts[0].episode_id[:-2] for p in taken.groups]  # type: ignore[attr-defined]


def test_complete_groups_are_taken_once_in_the_order_of_their_end(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        put(tmp_path, name)
    put(tmp_path, "half", num=1)

    async def play() -> None:
        async with stream_of(tmp_path) as stream:
            assert names(await stream.take()) == ["a", "b"]
            adding = threading.Timer(0.3, put, (tmp_path, "d"))
            adding.start()
            taken = await stream.take()  # waits for the second
            assert names(taken) == ["c", "d"]
            assert taken.wait_s >= 0.2
            adding.join()
            state = json.loads(json.dumps(stream.state_dict()))
        put(tmp_path, "e")
        put(tmp_path, "f")
        async with stream_of(tmp_path) as stream:
            stream.load_state_dict(state)
            assert names(await stream.take()) == ["e", "f"]

    asyncio.run(asyncio.wait_for(play(), 60))


def test_groups_of_weights_that_are_too_old_are_left_out_and_counted(tmp_path: Path) -> None:
    for name, version, last in (("a", 1, 1), ("b", 3, 4), ("c", 2, 4), ("d", 4, 4)):
        put(tmp_path, name, version=version, last=last)

    async def play() -> None:
        async with stream_of(tmp_path, max_staleness=1) as stream:
            stream.advance(4)
            taken = await stream.take()
            assert names(taken) == ["b", "d"]
            assert taken.num_dropped == 2

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    put(tmp_path, "a")
    began = time.perf_counter()

    async def play() -> None:
        async with stream_of(tmp_path) as stream:
            taken = await stream.take(lambda: time.perf_counter() - began > 0.2)
            assert list(taken.groups) == []

    asyncio.run(asyncio.wait_for(play(), 60))


def test_there_has_to_be_a_store_and_nothing_else_that_plays(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no rollout store at"):
        stream_of(tmp_path / "none")
    with pytest.raises(UsageError, match=r"max_turns changes nothing: groups come from store"):
        RolloutsConfig(store="x", max_turns=3)


def test_what_was_collected_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env()
    model, store, run = save_model(tmp_path / "tiny"), tmp_path / "store", tmp_path / "run"
    collect = ["rollouts", "collect", ENV_ID, "--policy", f"hf:{model}", "--store", str(store)]
    collect += ["--tasks", "4", "--group-size", "4", "--max-tokens", "12", "--split", "train"]
    assert main(collect) == 0
    text = (
        f'[model]\npath = "{model}"\n[rollouts]\nstore = "{store}"\nnum_groups = 2\n'
        "group_size = 4\nmax_staleness = 9\n[train]\nnum_steps = 2\nlearning_rate = 1e-3\n"
    )
    (tmp_path / "rl.toml").write_text(text)
    assert main(["train", "rl", str(tmp_path / "rl.toml"), "--out", str(run)]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/num_rollouts"] for line in lines] == [8, 8]
    assert [line["rollout/staleness"] for line in lines] == [0.0, 1.0]
    assert lines[0]["train/is_skipped"] == 0.0
    (tmp_path / "rl.toml").write_text(text + f'\n[[envs]]\nid = "{ENV_ID}"\n')
    assert main(["train", "rl", str(tmp_path / "rl.toml"), "--out", str(run)]) == 2
    assert "others play those groups; leave one out" in capsys.readouterr().err
