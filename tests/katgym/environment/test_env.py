"""The env contract: Gymnasium's five-tuple over messages, what an author may rely on, endings.

Not here: seeds under concurrency (`test_env_seeding.py`), Gymnasium's checker (`test_spaces.py`).
"""

from __future__ import annotations

import asyncio
import copy
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from lab_env import Lab

import katgym
from katgym.environment.env import Env
from katgym.environment.failure import FailureKind
from katgym.environment.messages import Message, assistant, user
from katgym.environment.remote_env import RemoteEnv
from katgym.environment.reward import Reward, Rubric, ScoringFailure
from katgym.environment.scheduler import SchedulerConfig
from katgym.environment.task import Task, TaskSet
from katgym.environment.tool import Tool, tool
from katgym.errors import EpisodeStateError, InfrastructureError, UnknownNameError, UsageError
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


def test_wrong_options_of_reset_and_make_are_told(subtests: pytest.Subtests) -> None:
    task = "unknown task id 'train-33'. Did you mean 'train-3'? (split 'train')"
    resets: list[tuple[dict[str, Any], str]] = [
        ({"options": {"task": 1}}, "unknown reset option 'task'. Did you mean 'task_id'?"),
        ({"options": {"split": "tset"}}, "unknown split 'tset'. Did you mean 'test'?"),
        ({"options": {"task_id": "train-33"}}, task),
    ]
    for seed in (-1, 1.0, "0", True):
        resets.append(({"seed": seed}, f"seed is an int >= 0 or None, got {seed!r}"))
    makes: list[tuple[dict[str, Any], str]] = [
        ({"split": "dev"}, "unknown split 'dev'. Known: 'test', 'train'."),
        ({"render_mode": "human"}, "unknown render_mode 'human'; allowed: None, 'ansi'"),
    ]
    for number in (0, -1, 2.0, "2", True):
        text = f"max_turns is an int >= 1, got {number!r}"
        resets.append(({"options": {"max_turns": number}}, text))
        makes.append(({"max_turns": number}, text))
    env = Lab()
    for told, text in resets:
        with subtests.test(reset=told):
            with pytest.raises(UsageError) as caught:
                env.reset(**told)
            assert str(caught.value) == text
            assert not env.is_running
    for told, text in makes:
        with subtests.test(make=told):
            with pytest.raises(UsageError) as caught:
                Lab(**told)
            assert str(caught.value) == text
    with pytest.raises(UnknownNameError):
        env.reset(options={"task": 1})


def test_split_and_task_id_choose_the_task_and_shift_no_randomness() -> None:
    env = Lab()
    assert env.reset(options={"split": "test", "task_id": "test-3"})[1]["task_id"] == "test-3"
    assert env.reset(seed=0)[1]["split"] == "train"
    test = Lab(split="test")
    assert test.reset(seed=0)[1]["split"] == test.task.split == "test"
    draws = []
    for options in (None, {"task_id": "train-3"}):
        env.reset(seed=4, options=options)
        draws.append(env.np_random.random())
    assert draws[0] == draws[1]


def test_an_empty_split_and_a_missing_loader_are_errors() -> None:
    class Empty(Env):
        def load_tasks(self, split: str) -> TaskSet:
            return TaskSet([], split=split)

    with pytest.raises(UsageError, match=r"^Empty has no tasks in split 'train'$"):
        Empty().reset()
    with pytest.raises(NotImplementedError, match=r"Env defines no load_tasks\(split\)"):
        Env().reset()


def test_sync_methods_play_as_the_async_ones_also_under_a_running_loop() -> None:
    def play_sync() -> list[Any]:
        env = Lab()
        played = [env.reset(seed=3), env.step("a"), env.step("b")]
        env.close()
        return played

    async def play_under_a_loop() -> list[Any]:
        return play_sync()

    async def play() -> list[Any]:
        env = Lab()
        return [await env.areset(seed=3), await env.astep("a"), await env.astep("b")]

    async def broken() -> None:
        raise KeyError("x")

    async def pass_an_error_on() -> None:
        with pytest.raises(KeyError):
            run_sync(broken())

    assert asyncio.run(play()) == play_sync() == asyncio.run(play_under_a_loop())
    asyncio.run(pass_an_error_on())


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
    assert env.init_kwargs == {"label": "x", "max_turns": 3, "split": "test"}  # JSON values only


class Shop(RemoteEnv):
    def load_tasks(self, split: str) -> list[Task]:
        return [Task(task_id=f"{split}-0", prompt="Buy.")]


def test_envs_can_be_copied_but_those_whose_episodes_live_elsewhere() -> None:
    env = EchoEnv()
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    assert twin.step("a") == env.step("a")
    assert twin.messages == env.messages
    shop = Shop(max_turns=3)
    shop.reset(seed=1)
    with pytest.raises(UsageError, match="Shop cannot be copied: its episode lives"):
        copy.deepcopy(shop)
    clone = shop.clone()
    assert (clone.max_turns, clone.is_running, shop.is_running) == (3, False, True)


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


# ---- endings: turns, invalid rewards, truncation; what is torn down, and when


def test_running_out_of_turns_truncates_and_grades() -> None:
    env = Lab(max_turns=3)
    env.reset(seed=0)
    steps = [env.step("a") for _ in range(3)]
    assert [(s[2], s[3]) for s in steps] == [(False, False), (False, False), (False, True)]
    assert steps[2][0] == [user("No.")]  # the last turn is still answered
    assert env.end_reason == "max_turns"
    assert env.last_reward is not None
    assert (env.last_reward.value, env.last_reward.failure_kind) == (0.0, FailureKind.MAX_TURNS)


def test_answering_on_the_last_turn_or_in_one_turn_terminates() -> None:
    env = Lab(max_turns=2)
    env.reset(seed=0)
    env.step("a")
    _, reward, terminated, truncated, _ = env.step(str(env.task.answer))
    assert (reward, terminated, truncated) == (1.0, True, False)
    one = Lab(max_turns=1)
    one.reset(seed=0)
    _, reward, terminated, truncated, info = one.step("a")
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info["reward"]["failure_kind"] is None


def test_the_reset_option_holds_for_one_episode() -> None:
    env = Lab(max_turns=5)
    env.reset(seed=0, options={"max_turns": 2})
    assert [env.step("a")[3] for _ in range(2)] == [False, True]
    env.reset(seed=0)
    assert [env.step("a")[3] for _ in range(3)] == [False] * 3


def test_an_invalid_reward_is_nan() -> None:
    class Broken(Lab):
        @katgym.scorer()
        def broken(self) -> float:
            raise ScoringFailure("verifier is down", kind="verifier_unavailable")

    env = Broken()
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(str(env.task.answer))
    assert math.isnan(reward)
    assert terminated
    assert info["reward"]["is_valid"] is False
    assert info["reward"]["value"] is None
    assert env.last_reward is not None
    assert env.last_reward.failure_kind is FailureKind.VERIFIER_UNAVAILABLE


def test_truncation_keeps_an_invalid_reward_invalid() -> None:
    class Unknown(Rubric):
        async def score(self, env: Env) -> Reward:
            return Reward(is_valid=False)

    env = Lab(max_turns=2)
    env.rubric = Unknown()
    env.reset(seed=0)
    env.step("a")
    assert math.isnan(env.step("a")[1])
    assert env.last_reward == Reward(is_valid=False)


def test_atruncate_grades_the_state_and_ends_the_episode() -> None:
    env = Lab()
    env.reset(seed=0)
    env.step("a")
    reward = asyncio.run(env.atruncate(FailureKind.EPISODE_TIMEOUT))
    assert (reward.value, reward.failure_kind) == (0.0, FailureKind.EPISODE_TIMEOUT)
    assert env.end_reason == "episode_timeout"
    assert env.log[-1] == "teardown"
    with pytest.raises(EpisodeStateError, match="there is no running episode to truncate"):
        asyncio.run(env.atruncate(FailureKind.EPISODE_TIMEOUT))


def test_seat_rewards_of_one_seat() -> None:
    env = Lab()
    with pytest.raises(EpisodeStateError, match=r"there is no episode yet.*call reset\(\)"):
        env.seat_rewards()
    env.reset(seed=0)
    assert env.seat_rewards() == {"player": Reward(value=0.0)}
    env.step("a")
    env.step(str(env.task.answer))
    assert env.seat_rewards() == {"player": env.last_reward}


def test_reset_in_the_middle_tears_the_old_episode_down() -> None:
    env = Lab()
    env.reset(seed=0)
    env.step("a")
    env.reset(seed=1)
    assert env.log == ["setup", "opening", "reply", "teardown", "setup", "opening"]
    assert (env.num_turns, len(env.messages)) == (0, 2)


def test_a_refused_reset_leaves_the_running_episode_alone() -> None:
    env = Lab()
    env.reset(seed=0)
    with pytest.raises(UnknownNameError):
        env.reset(options={"nope": 1})
    assert env.step("a")[0] == [user("No.")]


def test_close_twice_tears_down_once() -> None:
    env = Lab()
    env.close()
    env.reset(seed=0)
    env.close()
    env.close()
    assert env.log.count("teardown") == 1
    with pytest.raises(EpisodeStateError):
        env.step("a")


def test_a_failing_setup_is_torn_down_and_its_error_raised() -> None:
    for hook in ("setup", "opening"):
        env = Lab(fail_in=hook)
        with pytest.raises(RuntimeError, match=f"{hook} broke"):
            env.reset(seed=0)
        assert env.log[-1] == "teardown"
        with pytest.raises(EpisodeStateError, match="call reset"):
            env.step("a")
        env.close()
        assert env.log.count("teardown") == 1

    class Half(Lab):
        async def setup(self) -> None:
            raise InfrastructureError("no sandbox", kind="sandbox_error")

    with pytest.raises(InfrastructureError, match="no sandbox"):
        Half(fail_in="teardown").reset(seed=0)


def test_cancelling_reset_tears_down() -> None:
    is_inside = asyncio.Event()

    class Slow(Lab):
        async def setup(self) -> None:
            is_inside.set()
            await asyncio.Event().wait()

    async def go() -> list[str]:
        env = Slow()
        resetting = asyncio.create_task(env.areset(seed=0))
        await is_inside.wait()
        resetting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await resetting
        return env.log

    assert asyncio.run(go()) == ["teardown"]


def test_an_infrastructure_error_in_a_tool_leaves_astep() -> None:
    class Gone(Lab):
        @tool
        def run(self) -> str:
            raise InfrastructureError("sandbox gone", kind="sandbox_error")

    env = Gone()
    env.reset(seed=0)
    with pytest.raises(InfrastructureError, match="sandbox gone"):
        env.step(assistant("", [("run", {})]))
    env.close()
    assert env.log.count("teardown") == 1
