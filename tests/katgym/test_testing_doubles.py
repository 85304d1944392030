"""The doubles that `katgym.testing` ships do what other people's tests rely on."""

from __future__ import annotations

import asyncio
import random

import pytest
from idle_loop import run_idle

from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.environment.messages import assistant, user
from katgym.errors import PolicyError
from katgym.play.agent_loop import run_rollout
from katgym.play.rollout import Rollout
from katgym.policies.base import EpisodeContext
from katgym.testing import EchoEnv, ScriptedPolicy


def play(policy: ScriptedPolicy) -> Rollout:
    return asyncio.run(run_rollout(EchoEnv(), policy, seed=0))


def test_scripted_policy_plays_its_actions_then_empty_messages_anew_in_every_episode() -> None:
    policy = ScriptedPolicy(["a", assistant("", [("note", {"text": "x"})])], name="mine")
    one, two = play(policy), play(policy)
    said = [m for m in one.messages if m["role"] == "assistant"]
    assert [m["content"] for m in said] == ["a", "", "", ""]
    assert [t.finish_reason for t in one.turns] == ["stop", "tool_calls", "stop", "stop"]
    assert list(one.messages) == list(two.messages)
    assert one.policy == "mine"
    assert policy.describe() == {"name": "mine"}


def test_scripted_policy_raises_its_exceptions_in_turn() -> None:
    rollout = play(ScriptedPolicy(["a", PolicyError("down")]))
    assert (rollout.status, rollout.num_turns) == (RolloutStatus.FAILED, 1)
    assert rollout.failure_kind is FailureKind.POLICY_UNAVAILABLE


def test_scripted_policy_waits_its_latency() -> None:
    session = ScriptedPolicy(["a"], latency_s=30).start(EpisodeContext(env=EchoEnv()))

    async def wait() -> float:
        await session.complete([], max_tokens=1)
        return asyncio.get_running_loop().time()

    assert run_idle(wait()) == pytest.approx(30)


def test_echo_env_echoes_until_it_hears_the_word() -> None:
    env = EchoEnv()
    observation, _ = env.reset(seed=3)
    assert observation == [user(f"Say {env.task.answer!r}.")]
    assert env.step("hello")[0] == [user("hello")]
    assert env.step(f" {env.task.answer}\n")[1:3] == (1.0, True)
    for seed in range(5):
        env.reset(seed=seed)
        assert env.step(env.oracle_action())[1] == 1.0
        env.reset(seed=seed)
        assert [env.step("")[1] for _ in range(4)] == [0.0] * 4
    for split in ("train", "validation", "test"):
        tasks = env.tasks(split)
        assert (len(tasks), tasks[0].task_id) == (1000, f"{split}-000000")


def test_echo_envs_tools() -> None:
    env = EchoEnv()
    env.reset(seed=0)
    calls = [("echo", {"text": "ä"}), ("note", {"text": "x"}), ("note", {"text": "y"})]
    assert [m["content"] for m in env.step(assistant("", calls))[0]] == ["ä", "1", "2"]
    assert env.notes == ["x", "y"]
    assert [t.parallel for t in env.tools.values()] == [True, False]


def test_random_play_of_echo_env_never_breaks() -> None:
    rng = random.Random(0)
    for seed in range(20):
        env = EchoEnv()
        env.reset(seed=seed)
        is_over = False
        while not is_over:
            _, reward, terminated, truncated, _ = env.step(env.random_action(rng))
            is_over = terminated or truncated
        assert reward == 0.0
