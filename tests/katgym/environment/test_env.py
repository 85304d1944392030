"""The env contract: Gymnasium's five-tuple over messages, and what an author may rely on.

Not here: endings and clean-up (`test_env_endings.py`), seeds under concurrency
(`test_env_seeding.py`), Gymnasium's checker (`test_spaces.py`).
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest
from lab_env import Lab

from katgym.environment.env import Env
from katgym.environment.messages import Message, assistant, user
from katgym.environment.scheduler import SchedulerConfig
from katgym.environment.task import TaskSet
from katgym.environment.tool import Tool
from katgym.errors import EpisodeStateError, UnknownNameError, UsageError
from katgym.system.sync import run_sync
from katgym.testing import EchoEnv


def test_reset_returns_the_opening_and_a_deterministic_info() -> None:
    env = Lab()
    observation, info = env.reset(seed=1)
    index = env.task.answer
    assert observation == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"p{index}"},
    ]
    assert info == {"task_id": f"train-{index}", "split": "train", "num_turns": 0}
    assert Lab().reset(seed=1) == (observation, info)
    assert env.log == ["setup", "opening"]


def test_step_answers_with_new_messages_only_and_rewards_at_the_end() -> None:
    env = Lab()
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("wrong")
    assert (observation, reward, terminated, truncated) == ([user("No.")], 0.0, False, False)
    assert info["num_turns"] == 1
    assert "reward" not in info
    assert env.last_reward is None
    observation, reward, terminated, truncated, info = env.step(str(env.task.answer))
    assert (observation, reward, terminated, truncated) == ([], 1.0, True, False)
    assert info["end_reason"] == "answered"
    assert info["reward"]["components"]["correct"]["score"] == 1.0
    assert env.last_reward is not None
    assert [m["role"] for m in env.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert env.log == ["setup", "opening", "reply", "reply", "teardown"]


def test_tool_calls_are_answered_one_by_one() -> None:
    env = Lab(label="talkative")
    env.reset(seed=0)
    observation, *_ = env.step(assistant("thinking", [("look", {}), ("nope", {}), ("look", {})]))
    assert [m.get("tool_call_id") for m in observation] == ["call_0", "call_1", "call_2", None]
    assert [m["content"] for m in observation][::2] == ["seen", "seen"]
    assert observation[3] == user("3 results")
    assert [r.stage for r in env.last_tool_results] == [0, 1, 2]
    assert env.final_answer == ""  # a message with tool calls answers nothing
    env.step("x")
    assert env.last_tool_results == ()


def test_a_tool_may_finish_the_episode() -> None:
    env = Lab()
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(
        assistant("", [("stop", {"reason": "enough"}), ("stop", {"reason": "later"})])
    )
    assert [m["content"] for m in observation] == ["stopped", "stopped"]
    assert (reward, terminated, truncated, info["end_reason"]) == (0.0, True, False, "enough")


def test_step_before_reset_and_after_the_end() -> None:
    env = Lab()
    with pytest.raises(EpisodeStateError) as caught:
        env.step("a")
    assert str(caught.value) == "call reset() first: there is no running episode"
    env.reset(seed=0)
    env.step(str(env.task.answer))
    with pytest.raises(EpisodeStateError) as caught:
        env.step("a")
    assert str(caught.value) == "the episode has ended; call reset() to start another"
    env.reset(seed=0)
    assert env.step("a")[1] == 0.0


def test_a_wrong_action_changes_nothing() -> None:
    env = Lab()
    env.reset(seed=0)
    with pytest.raises(UsageError, match="an action has role 'assistant', got role 'user'"):
        env.step(user("a"))
    assert (env.num_turns, len(env.messages)) == (0, 2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"task": 1}, "unknown reset option 'task'. Did you mean 'task_id'?"),
        ({"split": "tset"}, "unknown split 'tset'. Did you mean 'test'?"),
        (
            {"task_id": "train-33"},
            "unknown task id 'train-33'. Did you mean 'train-3'? (split 'train')",
        ),
    ],
)
def test_option_errors_name_the_nearest(options: dict[str, Any], text: str) -> None:
    env = Lab()
    with pytest.raises(UnknownNameError) as caught:
        env.reset(seed=0, options=options)
    assert str(caught.value) == text
    assert not env.is_running


@pytest.mark.parametrize("max_turns", [0, -1, 2.0, "2", True])
def test_max_turns_has_to_be_a_positive_int(max_turns: Any) -> None:
    text = rf"^max_turns is an int >= 1, got {max_turns!r}$"
    with pytest.raises(UsageError, match=text):
        Lab(max_turns=max_turns)
    with pytest.raises(UsageError, match=text):
        Lab().reset(options={"max_turns": max_turns})


@pytest.mark.parametrize("seed", [-1, 1.0, "0", True])
def test_seed_has_to_be_a_natural_number(seed: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Lab().reset(seed=seed)
    assert str(caught.value) == f"seed is an int >= 0 or None, got {seed!r}"


def test_split_and_task_id_choose_the_task() -> None:
    env = Lab()
    assert env.reset(options={"split": "test", "task_id": "test-3"})[1]["task_id"] == "test-3"
    assert env.reset(seed=0)[1]["split"] == "train"
    assert Lab(split="test").reset(seed=0)[1]["split"] == "test"
    with pytest.raises(UnknownNameError, match=r"^unknown split 'dev'\. Known: 'test', 'train'\.$"):
        Lab(split="dev")


def test_a_chosen_task_does_not_shift_the_episodes_randomness() -> None:
    draws = []
    for options in (None, {"task_id": "train-3"}):
        env = Lab()
        env.reset(seed=4, options=options)
        draws.append(env.np_random.random())
    assert draws[0] == draws[1]


def test_tasks_without_a_split_belong_to_the_split_they_were_loaded_for() -> None:
    env = Lab(split="test")
    env.reset(seed=0)
    assert env.task.split == "test"


def test_an_empty_split_and_a_missing_loader_are_errors() -> None:
    class Empty(Env):
        def load_tasks(self, split: str) -> TaskSet:
            return TaskSet([], split=split)

    with pytest.raises(UsageError, match=r"^Empty has no tasks in split 'train'$"):
        Empty().reset()
    with pytest.raises(NotImplementedError, match=r"Env defines no load_tasks\(split\)"):
        Env().reset()


def test_render_mode_is_checked() -> None:
    with pytest.raises(UsageError, match="unknown render_mode 'human'; allowed: None, 'ansi'"):
        Lab(render_mode="human")


def test_sync_methods_work_under_a_running_loop() -> None:
    async def go() -> tuple[Any, ...]:
        env = Lab()
        env.reset(seed=0)
        step = env.step(str(env.task.answer))
        env.close()
        return step

    assert asyncio.run(go())[1] == 1.0


def test_run_sync_passes_errors_on_from_its_thread() -> None:
    async def broken() -> None:
        raise KeyError("x")

    async def go() -> None:
        with pytest.raises(KeyError):
            run_sync(broken())

    asyncio.run(go())


def test_async_and_sync_play_alike() -> None:
    async def play() -> list[Any]:
        env = Lab()
        return [await env.areset(seed=3), await env.astep("a"), await env.astep("b")]

    env = Lab()
    assert asyncio.run(play()) == [env.reset(seed=3), env.step("a"), env.step("b")]


def test_render_shows_calls_and_contents() -> None:
    env = Lab(render_mode="ansi")
    env.reset(seed=0, options={"task_id": "train-4"})
    env.step(assistant("Hm.", [("look", {})]))
    assert env.render() == (
        "[system] Be brief.\n\n[user] p4\n\n[assistant] Hm.\n  -> look({})\n\n[tool] seen"
    )


def test_clone_is_fresh_and_shares_the_tasks() -> None:
    config = SchedulerConfig(max_calls_per_turn=1)
    env = Lab(label="x", max_turns=3, scheduler=config, split="test")
    env.plugin_version = "1.2"
    env.reset(seed=0)
    twin = env.clone()
    assert (twin.label, twin.max_turns, twin.split, twin.scheduler) == ("x", 3, "test", config)
    assert (twin.is_running, twin.messages, twin.plugin_version) == (False, [], "1.2")
    assert twin.reset(seed=0) == Lab(split="test").reset(seed=0)
    assert (env.num_loads, twin.num_loads) == (1, 0)
    assert twin.tasks() is env.tasks()


def test_init_kwargs_hold_json_values_only() -> None:
    env = Lab(label="x", max_turns=3, scheduler=SchedulerConfig())
    assert env.init_kwargs == {"label": "x", "max_turns": 3}


def test_envs_can_be_copied() -> None:
    env = EchoEnv()
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    assert twin.step("a") == env.step("a")
    assert twin.messages == env.messages


def test_gymnasium_make_wraps_and_unwraps() -> None:
    env = gymnasium.make(gymnasium.envs.registration.EnvSpec("Lab-v0", entry_point=Lab))
    observation, _ = env.reset(seed=0)
    assert isinstance(env.unwrapped, Lab)
    assert observation == Lab().reset(seed=0)[0]
    assert env.step(str(env.unwrapped.task.answer))[1] == 1.0
    env.close()


def test_tools_may_be_set_per_instance() -> None:
    def double(x: int) -> int:
        return 2 * x

    env = Lab()
    env.tools = {"double": Tool.from_function(double)}
    env.reset(seed=0)
    observation, *_ = env.step(assistant("", [("double", {"x": 21})]))
    assert observation[0]["content"] == "42"
    assert "double" not in Lab().tools


def test_random_action_and_oracle_defaults() -> None:
    env = Lab()
    assert env.random_action(random.Random(3)) == env.random_action(random.Random(3))
    assert env.action_space.contains(env.random_action(random.Random(0)))
    with pytest.raises(NotImplementedError, match="Lab cannot play its own solution"):
        env.oracle_action()


def test_opening_and_reply_may_be_messages() -> None:
    class Chatty(Lab):
        def opening(self) -> Sequence[Message]:  # type: ignore[override]  # both are allowed
            return [user("a"), assistant("b"), user("c")]

        def reply(self, message: Message) -> Sequence[Message] | None:  # type: ignore[override]  # both are allowed
            return [user("d"), user("e")]

    env = Chatty()
    assert [m["content"] for m in env.reset(seed=0)[0]] == ["Be brief.", "a", "b", "c"]
    assert [m["content"] for m in env.step("x")[0]] == ["d", "e"]
