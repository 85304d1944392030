"""The env keeps katgym's contract, and pays for right answers only."""

import asyncio

import katgym
from katgym import plugins

ENV = "my_domain/MyDomain-v0"


def test_env_keeps_the_contract() -> None:
    report = katgym.check_env(ENV, num_tasks=5, budget_s=1)
    assert report.ok, report.failures


def test_solution_earns_all_and_silence_nothing() -> None:
    for policy, reward in (("oracle", 1.0), ("noop", 0.0)):
        rollout = asyncio.run(
            katgym.run_rollout(katgym.make(ENV), katgym.policy(policy), seed=0)
        )
        assert rollout.reward.value == reward


def test_wrong_door_is_an_error_that_the_policy_reads() -> None:
    env = katgym.make(ENV)
    env.reset(seed=0)
    call = katgym.assistant("", [("open_door", {"door": "none"})])
    (message,), reward, terminated, _, _ = env.step(call)
    assert "there is no door none" in message["content"]
    assert (reward, terminated) == (0.0, False)


def test_plugin_is_loaded() -> None:
    (info,) = [info for info in plugins.list_plugins() if info.name == "my_domain"]
    assert (str(info.status), info.error) == ("loaded", None)
    assert info.env_ids == ("my_domain/MyDomain-v0",)
