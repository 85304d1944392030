"""How episodes end: turns, rewards that are not valid, truncation; what is torn down, and when."""

from __future__ import annotations

import asyncio
import math

import pytest
from lab_env import Lab

import katgym
from katgym.environment.env import Env
from katgym.environment.failure import FailureKind
from katgym.environment.messages import assistant, user
from katgym.environment.reward import Reward, Rubric, ScoringFailure
from katgym.environment.tool import tool
from katgym.errors import EpisodeStateError, InfrastructureError, UnknownNameError


def test_running_out_of_turns_truncates_and_grades() -> None:
    env = Lab(max_turns=3)
    env.reset(seed=0)
    steps = [env.step("a") for _ in range(3)]
    assert [(s[2], s[3]) for s in steps] == [(False, False), (False, False), (False, True)]
    assert steps[2][0] == [user("No.")]  # the last turn is still answered
    assert env.end_reason == "max_turns"
    assert env.last_reward is not None
    assert (env.last_reward.value, env.last_reward.failure_kind) == (0.0, FailureKind.MAX_TURNS)


def test_answering_on_the_last_turn_terminates() -> None:
    env = Lab(max_turns=2)
    env.reset(seed=0)
    env.step("a")
    _, reward, terminated, truncated, _ = env.step(str(env.task.answer))
    assert (reward, terminated, truncated) == (1.0, True, False)


def test_a_one_turn_task_terminates_instead() -> None:
    env = Lab(max_turns=1)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("a")
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


@pytest.mark.parametrize("hook", ["setup", "opening"])
def test_a_failing_setup_is_torn_down(hook: str) -> None:
    env = Lab(fail_in=hook)
    with pytest.raises(RuntimeError, match=f"{hook} broke"):
        env.reset(seed=0)
    assert env.log[-1] == "teardown"
    assert env.log.count("teardown") == 1
    with pytest.raises(EpisodeStateError, match="call reset"):
        env.step("a")
    env.close()
    assert env.log.count("teardown") == 1


def test_the_setups_error_is_raised_when_teardown_fails_as_well() -> None:
    class Half(Lab):
        async def setup(self) -> None:
            raise InfrastructureError("no sandbox", kind="sandbox_error")

    env = Half(fail_in="teardown")
    with pytest.raises(InfrastructureError, match="no sandbox"):
        env.reset(seed=0)


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
