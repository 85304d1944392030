"""Training on groups that others play into a store."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_process import KEY, gateway_of
from hf_server import HfServer
from in_loop import in_loop
from made_rollouts import record, rollout_of, turn
from rl_play import ENV_ID, metrics, register_env

from katgym import RolloutGroup, VersionSpan
from katgym.cli.main import main
from katgym.errors import PolicyError, UsageError
from katgym.gateway import GatewayClient
from katgym.policies.base import Sampling
from katgym.rollout_store import record_rollouts
from katgym.rollout_store.groups import GRADING_S
from katgym.rollout_store.records import SessionRecord
from katgym.rollout_store.store import RolloutStore
from katgym.rollout_store.store_folders import prepare_folder
from katgym_trainer.config.rl_config import RolloutsConfig
from katgym_trainer.rl import store_stream
from katgym_trainer.rl.servers.gateway_link import GatewayLink, JointGate
from katgym_trainer.rl.store_stream import StoreStream
from katgym_trainer.rl.stored_group_checks import reason_against


def put(
    folder: Path,
    group_id: str,
    *,
    version: int = 0,
    last: int | None = None,
    num: int = 2,
    has_turns: bool = True,
    constraint: str = "",
    metadata: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    """Write a group of two, or what is there of it; last: the version that sampled last tokens."""
    spans = [
        VersionSpan(version=version, start=0, end=1),
        VersionSpan(version=version if last is None else last, start=1, end=2),
    ]
    tokens = record(None, 0, [1, 2], [3, 4], version_spans=spans)
    turns = [turn(tokens, constraint=constraint)] if has_turns else []
    rollouts = [
        rollout_of(*turns, **{"episode_id": f"{group_id}-{i}", "attempt": i, **more})
        for i in range(num)
    ]
    with RolloutStore.open(folder) as store:
        record_rollouts(store, rollouts, group_id=group_id, metadata=metadata)


def stream_of(
    folder: Path, *, num_groups: int = 2, max_staleness: int = 0, **more: Any
) -> StoreStream:
    rollouts = RolloutsConfig(
        num_groups=num_groups, group_size=2, max_staleness=max_staleness, store=str(folder)
    )
    return StoreStream(rollouts, temperature=1.0, **more)


def names(taken: object) -> list[str]:
    return [p.group.rollouts[0].episode_id[:-2] for p in taken.groups]  # type: ignore[attr-defined]


@in_loop
async def test_complete_groups_are_taken_once_in_the_order_of_their_end(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        put(tmp_path, name)
    put(tmp_path, "half", num=1)
    async with stream_of(tmp_path) as stream:
        assert names(await stream.take()) == ["a", "b"]
        looks = itertools.count(1)

        def put_d() -> bool:
            if next(looks) == 2:  # c was there at the first
                put(tmp_path, "d")
            return False

        taken = await stream.take(put_d)  # waits for the second
        assert names(taken) == ["c", "d"]
        assert taken.wait_s >= 0.9  # it rested between looks
        state = json.loads(json.dumps(stream.state_dict()))
    put(tmp_path, "e")
    put(tmp_path, "f")
    async with stream_of(tmp_path) as stream:
        stream.load_state_dict(state)
        assert names(await stream.take()) == ["e", "f"]


@in_loop
async def test_groups_of_weights_that_are_too_old_are_left_out_and_counted(tmp_path: Path) -> None:
    for name, version, last in (("a", 1, 1), ("b", 3, 4), ("c", 2, 4), ("d", 4, 4)):
        put(tmp_path, name, version=version, last=last)
    replaced = []

    async def replace(num_sessions: int, *, group_id: str, store: Path) -> None:
        replaced.append((group_id, num_sessions))

    async with stream_of(tmp_path, replace_sessions=replace, max_staleness=1) as stream:
        stream.advance(4)
        taken = await stream.take()
        assert names(taken) == ["b", "d"]
        assert taken.num_dropped == 2
        assert replaced == [("a", 2), ("c", 2)]


@pytest.mark.slow
@in_loop
async def test_a_killed_run_that_leaves_a_group_out_again_has_it_replaced_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KATGYM_GATEWAY_KEY", KEY)
    store = tmp_path / "store"
    with HfServer(model) as server, gateway_of(server.url, store) as url:
        put(store, "old", version=1)
        put(store, "new", version=4)

        async def play() -> None:  # each time from the same checkpoint: none
            link = GatewayLink(url, server_urls=[server.url], stores=[store])

            async def replace(num_sessions: int, *, group_id: str, store: Path) -> None:
                await link.replace_sessions(num_sessions, group_id=group_id)

            async with stream_of(store, num_groups=1, replace_sessions=replace) as stream:
                stream.advance(4)
                assert names(await stream.take()) == ["new"]
            await link.aclose()

        async def num_begun() -> int:
            async with GatewayClient(url, KEY) as client:
                return int((await client.status())["num_begun"])

        await play()
        once = await num_begun()
        await play()
        assert (once, await num_begun()) == (-2, -2)  # it has begun none of them itself


@in_loop
async def test_a_stop_ends_the_wait_and_leaves_what_was_found_to_the_next_process(
    tmp_path: Path,
) -> None:
    put(tmp_path, "a")
    asked = itertools.count()
    async with stream_of(tmp_path) as stream:
        taken = await stream.take(lambda: next(asked) == 1)
        assert list(taken.groups) == []
        state = stream.state_dict()
        assert state["num_taken"] == 0
        assert state["cursor"]["groups"] == {"watermark": 0, "waiting": [], "handled": []}


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "sandbox_error": ({"reward": None}, "session 'new2-1': gone"),
    "no_calls": ({"has_turns": False}, "'new2-1' made no model call"),
    "other_sampling": (
        {"sampling": Sampling(temperature=0.7)},
        "was sampled at temperature 0.7, top_p 1, top_k 0, and is trained at temperature 1",
    ),
    "constrained": (
        {"constraint": "json_schema:ab"},
        "every answer was sampled under a constraint (json_schema:ab is one)",
    ),
    "other_run": ({"version": 5}, "weights of version 5 sampled it, and this run has version 4"),
}


@in_loop
async def test_groups_that_cannot_be_trained_on_are_left_out_until_there_are_too_many(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    async def play(folder: Path, more: dict[str, Any], reason: str) -> None:
        for number in range(3):  # those that were there before are not counted
            put(folder, f"old{number}", **more)
        for name in "ab":
            put(folder, name, version=4)
        for number in range(3):  # nor are those that the first step does not come to
            put(folder, f"other{number}", **more)
        for name in "cd":
            put(folder, name, version=4)
        async with stream_of(folder) as stream:
            stream.advance(4)
            assert names(await stream.take()) == ["a", "b"]
            assert names(await stream.take()) == ["c", "d"]
            for number in range(3):
                put(folder, f"new{number}", **more)
            with pytest.raises(PolicyError, match="3 groups in a row have no valid") as caught:
                await stream.take()
            assert reason in str(caught.value)

    for kind, told in UNUSABLE.items():
        with subtests.test(kind):
            await play(tmp_path / kind, *told)


def test_answers_whose_sampling_was_bent_are_told_and_do_not_spoil_their_group(
    subtests: pytest.Subtests,
) -> None:
    def reason(*samplings: dict[str, Any]) -> tuple[str, str]:
        tokens = record(None, 0, [1, 2], [3, 4])
        turns = [msgspec.structs.replace(turn(tokens), sampling=own) for own in samplings]
        rollouts = [rollout_of(own, episode_id=str(i)) for i, own in enumerate(turns)]
        group = RolloutGroup(rollouts=[dataclasses.replace(r, sampling=None) for r in rollouts])
        return reason_against(group, temperature=1.0, version=0)

    form = {"type": "json_object"}
    for bent, name in [
        ({"constraints": {"response_format": form}, "temperature": 0.2}, "json_object"),
        ({"constraints": {"structured_outputs": {"regex": "a"}}}, "regex"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"min_p": 0.1, "top_k": 5}, "min_p"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"made_up": True}, "made_up"),
    ]:
        with subtests.test(bent=bent):
            kind, text = reason(bent, bent)
            assert kind == "constrained" and f"({name}:" in text
            assert reason(bent, {"temperature": 1.0, "min_p": 0.0}) == ("", "")
            assert reason(bent, {"temperature": 0.5})[0] == "other_sampling"


@in_loop
async def test_groups_of_several_tasks_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "mixed", num=1)
    put(tmp_path, "mixed", num=1, episode_id="x", attempt=1, task_id="another")
    put(tmp_path, "a")
    async with stream_of(tmp_path, num_groups=1) as stream:
        assert names(await stream.take()) == ["a"]
    assert "left out: group 'mixed' (unusable): it holds rollouts of different" in caplog.text


@in_loop
async def test_groups_that_a_killed_process_trained_on_are_taken_again(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        put(tmp_path, name)
    async with stream_of(tmp_path) as stream:
        first, state = await stream.take(), stream.state_dict()
        second = await stream.take()
    known = {p.draw.number: p for p in (*first.groups, *second.groups)}
    put(tmp_path, "e")
    async with stream_of(tmp_path, known=known) as stream:
        stream.load_state_dict(state)
        assert names(await stream.take()) == ["c", "d"]
        put(tmp_path, "f")
        assert names(await stream.take()) == ["e", "f"]


@in_loop
async def test_a_checkpoint_that_tells_every_name_is_gone_on_from(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        put(tmp_path, name)
    async with stream_of(tmp_path, num_groups=1) as stream:
        stream.load_state_dict({"seen": ["a", "gone"], "seen_held_out": [], "num_taken": 1})
        assert names(await stream.take()) == ["b"]
        assert stream.state_dict()["cursor"]["groups"]["handled"] == ["gone"]
        assert names(await stream.take()) == ["c"]


@in_loop
async def test_in_an_older_copy_of_the_store_nothing_is_trained_on_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(store := tmp_path / "store", "a")
    shutil.copytree(store, copy := tmp_path / "copy")
    put(store, "b")
    async with stream_of(store, num_groups=2) as stream:
        assert names(await stream.take()) == ["a", "b"]
        state = json.loads(json.dumps(stream.state_dict()))
    for name in ("c", "b", "d"):
        put(copy, name)
    async with stream_of(copy, num_groups=2, find_trained=lambda: {"a", "b"}) as stream:
        stream.load_state_dict(state)
        assert names(await stream.take()) == ["c", "d"]
    assert "is not as this run left it" in caplog.text


@in_loop
async def test_held_out_sessions_are_measured_once_and_not_trained_on(tmp_path: Path) -> None:
    put(tmp_path, "tests", metadata={"is_held_out": True}, reward=1.0)
    put(tmp_path, "more", num=1, metadata={"is_held_out": True}, reward=0.5)
    put(tmp_path, "a")
    async with stream_of(tmp_path, num_groups=1) as stream:
        assert names(await stream.take()) == ["a"]
        found = stream.metrics()
        assert found["eval/store/success"] == pytest.approx(2 / 3)
        assert found["eval/store/reward"] == pytest.approx(2.5 / 3)
        assert found["eval/store/num_rollouts"] == 3
        put(tmp_path, "b")
        await stream.take()
        assert stream.metrics() == {}


TASK = {
    "env_id": "katgym/Echo-v0", "task_id": "train-000001", "task_sha256": "0" * 64,
    "split": "train", "seat": "player",
}  # fmt: skip


def begin(folder: Path, session_id: str, group_id: str, **more: Any) -> None:
    """Begin a session that nobody ends."""
    with RolloutStore.open(folder) as store:
        record = SessionRecord(session_id=session_id, group_id=group_id, metadata=TASK, **more)
        store.create_session(record)


@in_loop
async def test_what_is_waited_for_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_stream, "_TELL_EVERY_S", 0.0)
    put(tmp_path, "a")
    put(tmp_path, "bad", reward=None)

    async def play(text: str) -> None:
        async with stream_of(tmp_path) as stream:
            await stream.take(lambda: text in caplog.text)

    await play("1 of 2 are there; left out so far: 1 sandbox_error; no other has begun")
    put(tmp_path, "half", num=1)
    begin(tmp_path, "s", "half", created_s=time.time() - 100_000)
    told = "1 groups are not complete: 'half' has 1 of 2 sessions ended, 's' is open (100"
    await play(told)


@in_loop
async def test_a_session_that_nobody_ended_is_no_group_s_hindrance(tmp_path: Path) -> None:
    put(tmp_path, "g", num=1)
    now_s = time.time()
    begin(tmp_path, "graded", "g", created_s=now_s - 900, deadline_s=now_s - GRADING_S / 2)
    async with stream_of(tmp_path, num_groups=1) as stream:
        assert list((await stream.take(lambda: True)).groups) == []
    begin(tmp_path, "gone", "g", created_s=now_s - 900, deadline_s=now_s - GRADING_S - 60)
    async with stream_of(tmp_path, num_groups=1) as stream:
        (found,) = (await stream.take(lambda: True)).groups
    assert found.group.rewards == [1.0]
    assert len(found.group.rollouts) == 2


def test_there_has_to_be_a_store_and_nothing_else_that_plays(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no rollout store at"):
        stream_of(tmp_path / "none")
    with pytest.raises(UsageError, match=r"max_turns changes nothing: groups come from store"):
        RolloutsConfig(store="x", max_turns=3)


@pytest.mark.slow
def test_what_was_collected_is_trained_on(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env()
    store, run = tmp_path / "store", tmp_path / "run"
    collect = ["rollouts", "collect", ENV_ID, "--policy", f"hf:{model}", "--store", str(store)]
    collect += ["--tasks", "4", "--group-size", "4", "--max-tokens", "12", "--split", "train"]
    assert main(collect) == 0
    text = (
        f'[model]\npath = "{model}"\n[rollouts]\nstore = "{store}"\nnum_groups = 2\n'
        "group_size = 4\nmax_staleness = 9\n[train]\nnum_steps = 2\nlearning_rate = 1e-3\n"
    )
    (tmp_path / "rl.toml").write_text(text)
    assert main(["train", "rl", str(tmp_path / "rl.toml"), "--out", str(run)]) == 0
    lines = metrics(run)
    assert [line["rollout/num_rollouts"] for line in lines] == [8, 8]
    assert [line["rollout/staleness"] for line in lines] == [0.0, 1.0]
    assert lines[0]["train/is_skipped"] == 0.0
    assert "whoever plays into" in (run / "train.log").read_text()
    (tmp_path / "rl.toml").write_text(text + f'\n[[envs]]\nid = "{ENV_ID}"\n')
    assert main(["train", "rl", str(tmp_path / "rl.toml"), "--out", str(run)]) == 2
    assert "others play those groups; leave one out" in capsys.readouterr().err


@in_loop
async def test_several_stores_are_read_in_turn_each_from_its_own_place(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for number in range(3):
        put(one, f"g{number}")
        put(two, f"g{number}", version=number)
    told: list[tuple[str, Path]] = []

    async def note(num_sessions: int, *, group_id: str, store: Path) -> None:
        assert num_sessions == 2
        told.append((group_id, store))

    def stream(where: str, num_groups: int) -> StoreStream:
        config = RolloutsConfig(num_groups=num_groups, group_size=2, max_staleness=1, store=where)
        return StoreStream(config, temperature=1.0, replace_sessions=note)

    async with stream(f"{one}, {two}/", 2) as first:
        ids = [p.draw.task_id for p in (await first.take()).groups]
        assert sorted(ids) == ["one:g0", "two:g0"]
        state = first.state_dict()
    async with stream(f"{one},{two}", 2) as second:
        second.load_state_dict(json.loads(json.dumps(state)))
        second.advance(3)  # all of version 0 or 1 is too old
        put(one, "fresh", version=3)
        groups = (await second.take()).groups
        assert {p.draw.task_id for p in groups} == {"two:g2", "one:fresh"}
        assert {name for name, _ in told} <= {"one:g1", "one:g2", "two:g1"} and told
        assert all(folder == tmp_path / name.split(":")[0] for name, folder in told)


@in_loop
async def test_a_folder_of_shards_is_its_stores(tmp_path: Path) -> None:
    prepare_folder(tmp_path, 2)
    put(tmp_path / "gateway-0", "a")
    with pytest.raises(UsageError, match="gateway-1"):
        stream_of(tmp_path)
    put(tmp_path / "gateway-1", "b")
    async with stream_of(tmp_path) as stream:
        assert sorted(names(await stream.take())) == ["a", "b"]


def test_gates_open_once_every_server_has_the_weights() -> None:
    said: list[object] = []

    class Recorder:
        async def pause(self) -> None:
            said.append("pause")

        async def resume(self, version: int, model: str = "") -> None:
            said.append((version, model))

    async def deliver() -> None:
        joint = JointGate([Recorder(), Recorder()], 2)
        await asyncio.gather(joint.pause(), joint.pause())
        await joint.resume(7, "tiny@v7")
        assert said == ["pause"] * 4
        await joint.resume(7, "tiny@v7")
        assert said == ["pause"] * 4 + [(7, "tiny@v7")] * 2

    asyncio.run(deliver())
