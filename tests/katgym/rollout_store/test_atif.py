"""ATIF: what a store's sessions say in it, and what comes back of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_sessions import BRANCHED, CALLING, RESULT, TOOLS, add, turn

from katgym import UsageError, assistant, run_rollout, system, user
from katgym.environment.messages import Message
from katgym.environment.reward import Reward, Trust
from katgym.play.rollout import Rollout
from katgym.rollout_store import RolloutStore, export, record_rollout
from katgym.rollout_store.atif.reading import atif_rollouts
from katgym.rollout_store.atif.trajectory import is_atif
from katgym.testing import EchoEnv, ScriptedPolicy

ASKED = user("how much?")


def written(store: RolloutStore, out: Path) -> list[dict[str, Any]]:
    export(store, out, format="atif")
    return [json.loads(line) for line in out.read_text().splitlines()]


def read(data: Mapping[str, Any]) -> Rollout:
    (rollout,) = atif_rollouts(data)
    return rollout


def foreign(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    numbered = [{"step_id": i, **step} for i, step in enumerate(steps, 1)]
    agent = {"name": "terminus-2", "version": "2.0", "model_name": "m"}
    data = {"schema_version": "ATIF-v1.6", "session_id": "s", "agent": agent, "steps": numbered}
    return {**data, **more}


def test_each_path_is_a_trajectory(store: RolloutStore, tmp_path: Path) -> None:
    reward = Reward(value=1.0, trust=Trust.WITHHELD, trust_reason="a process")
    add(store, "s1", BRANCHED, reward=reward)
    first, second = written(store, tmp_path / "out.jsonl")
    assert is_atif(first) and first["schema_version"] == "ATIF-v1.8"
    assert (first["trajectory_id"], second["trajectory_id"]) == ("s1#0", "s1#1")
    assert first["session_id"] == second["session_id"] == "s1"
    assert first["agent"]["tool_definitions"] == TOOLS
    assert first["extra"]["reward"] == 1.0 and first["extra"]["group_id"] == "g"
    assert (first["extra"]["trust"], first["extra"]["trust_reason"]) == ("withheld", "a process")
    asked, calling, two = first["steps"]
    assert (asked["source"], asked["message"]) == ("user", "how much?")
    call = CALLING["tool_calls"][0]
    assert calling["tool_calls"] == [
        {
            "tool_call_id": call["id"],
            "function_name": call["function"]["name"],
            "arguments": json.loads(call["function"]["arguments"]),
        }
    ]
    result = {"source_call_id": call["id"], "content": RESULT["content"]}
    assert calling["observation"] == {"results": [result]}
    assert calling["metrics"]["completion_token_ids"] == [3, 4]
    assert calling["metrics"]["logprobs"] == [-0.375, -0.5]
    assert (two["message"], two["llm_call_count"]) == ("two", 1)
    assert [step["message"] for step in second["steps"]] == ["how much?", "so far: 2", "done"]


def test_answers_that_another_path_trains_are_copied_context(
    store: RolloutStore, tmp_path: Path
) -> None:
    turns = [
        turn(0, None, 0, [1], [2], [ASKED], assistant("a")),
        turn(1, 0, 2, [3], [4], [user("b?")], assistant("b"), num_shared_messages=2),
        turn(2, 0, 2, [5], [6], [user("c?")], assistant("c"), num_shared_messages=2),
    ]
    add(store, "s", turns, reward=0.5)
    first, second = written(store, tmp_path / "out.jsonl")
    marks = [[s.get("is_copied_context") for s in t["steps"]] for t in (first, second)]
    assert marks == [[None] * 4, [None, True, None, None]]
    trained = [[t.answer for t in read(data).turns] for data in (first, second)]
    assert trained == [[assistant("a"), assistant("b")], [assistant("c")]]
    assert read(second).conversation(0) == [ASKED, assistant("a"), user("c?"), assistant("c")]


def test_a_rollout_comes_back_with_its_words(store: RolloutStore, tmp_path: Path) -> None:
    odd = assistant("", [("echo", {"text": "a"})])
    odd["tool_calls"][0]["function"]["arguments"] = '{"text":  "spaced"}'
    broken = assistant("so", [("echo", {})])
    broken["tool_calls"][0]["function"]["arguments"] = '{"text": '
    thinking: Message = {"role": "assistant", "content": "é", "reasoning_content": "hm"}
    policy = ScriptedPolicy([CALLING, odd, broken, thinking])
    played = asyncio.run(run_rollout(EchoEnv(max_turns=4), policy, seed=3))
    record_rollout(store, played, group_id="g")
    (data,) = written(store, tmp_path / "out.jsonl")
    back = read(data)
    assert back.messages == played.messages
    assert [t.answer for t in back.turns] == [t.answer for t in played.turns]
    assert list(back.tools) == msgspec.to_builtins(list(played.tools))
    for name in ("env_id", "task_id", "task_sha256", "split", "seed", "policy", "episode_id"):
        assert getattr(back, name) == getattr(played, name)
    assert back.reward.value == played.reward.value
    told = [(r.call_id, r.name, r.content) for r in played.tool_results]
    assert [(r.call_id, r.name, r.content) for r in back.tool_results] == told


def test_an_answer_that_was_cut_or_held_to_a_schema_is_not_taken_for_a_free_whole_one(
    store: RolloutStore, tmp_path: Path
) -> None:
    held = {"constraint": "json_schema:1f0c3a9b2d4e"}
    turns = [
        turn(0, None, 0, [1], [2], [ASKED], assistant("a"), finish_reason="length"),
        turn(1, 0, 2, [3], [4], [user("b?")], assistant("{}"), 2, sampling=held),
    ]
    add(store, "s", turns, reward=1.0)
    (data,) = written(store, tmp_path / "out.jsonl")
    told = [(turn.finish_reason, turn.constraint) for turn in read(data).turns]
    assert told == [("length", ""), ("stop", "json_schema:1f0c3a9b2d4e")]


def test_trajectories_of_others_are_read() -> None:
    rollout = read(
        foreign(
            {"source": "system", "message": "Be brief."},
            {
                "source": "user",
                "message": [{"type": "text", "text": t} for t in ("List", "it.")],
            },
            {
                "source": "agent",
                "message": "<ls/>",
                "observation": {"results": [{"content": "a.txt"}]},
                "metrics": {"prompt_tokens": 9, "completion_tokens": 2, "cost_usd": 0.1},
            },
            {"source": "agent", "message": "compacting", "llm_call_count": 0},
            {"source": "agent", "message": "old", "is_copied_context": True},
            {
                "source": "agent",
                "message": "one",
                "reasoning_content": "hm",
                "model_name": "n",
            },
        )
    )
    assert [t.answer["content"] for t in rollout.turns if t.answer] == ["<ls/>", "one"]
    assert rollout.conversation(1) == [
        system("Be brief."),
        user("List\nit."),
        assistant("<ls/>"),
        user("a.txt"),
        assistant("compacting"),
        assistant("old"),
        {"role": "assistant", "content": "one", "reasoning_content": "hm"},
    ]
    assert (rollout.policy, rollout.turns[1].model, rollout.episode_id) == ("m", "n", "s")
    assert rollout.num_prompt_tokens == 9
    assert (rollout.reward.value, rollout.reward.reason) == (0.0, "the trajectory tells no reward")


def test_sub_agents_are_rollouts_of_their_own() -> None:
    inner = foreign({"source": "agent", "message": "in"}, trajectory_id="inner")
    outer = foreign({"source": "agent", "message": "out"}, subagent_trajectories=[inner])
    assert [r.episode_id for r in atif_rollouts(outer)] == ["s", "inner"]


def test_what_cannot_be_learned_is_named() -> None:
    image = [{"type": "image", "source": {}}]
    for step, text in (
        ({"source": "user", "message": "hi"}, "no answer of a model"),
        ({"source": "robot", "message": "hi"}, r"Invalid enum value 'robot'"),
        ({"source": "agent"}, "missing required field `message`"),
        ({"source": "agent", "message": image}, "step 1 holds image, and only text can be learned"),
    ):
        with pytest.raises(UsageError, match=text):
            list(atif_rollouts(foreign(step)))


def test_harbors_own_models_accept_what_is_written(store: RolloutStore, tmp_path: Path) -> None:
    models = pytest.importorskip(
        "harbor.models.trajectories", reason="needs harbor and Python 3.12"
    )
    add(store, "s1", BRANCHED, reward=1.0)
    policy = ScriptedPolicy([CALLING, assistant("two"), assistant("done")])
    record_rollout(store, asyncio.run(run_rollout(EchoEnv(max_turns=3), policy, seed=0)))
    for data in written(store, tmp_path / "out.jsonl"):
        assert len(models.Trajectory.model_validate(data).steps) == len(data["steps"])
