"""Customer service of tau2: gold, refusals, the scripted user and one that a policy plays."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import katgym
from katgym.certificate.certify import CONTRACT
from katgym.testing import ScriptedPolicy
from katgym_plugin_tau2 import services
from katgym_plugin_tau2.env import is_told
from katgym_plugin_tau2.upstream import package_folder

ENVS = ("Airline", "Retail", "Telecom")
TRANSFER = katgym.assistant("", [("transfer_to_human_agents", {"summary": "A locked SIM."})])
LOCKED_TASK = "[service_issue]airplane_mode_on|break_apn_settings|lock_sim_card_pin[PERSONA:None]"
SIM_TASK = "[service_issue]airplane_mode_on|unseat_sim_card[PERSONA:None]"


def start(name: str, task_id: str, **arguments: Any) -> Any:
    env = katgym.make(f"tau2/{name}-v0", **arguments).unwrapped
    split = next(s for s in env.splits if any(t.task_id == task_id for t in env.tasks(s)))
    env.reset(seed=0, options={"split": split, "task_id": task_id})
    return env


def play_gold(env: Any) -> float:
    terminated = truncated = False
    reward = 0.0
    while not (terminated or truncated):
        _, reward, terminated, truncated, _ = env.step(env.oracle_action())
    return float(reward)


@pytest.mark.parametrize("name", ENVS)
def test_contract(name: str) -> None:
    report = katgym.check_env(f"tau2/{name}-v0", num_tasks=4, budget_s=1.0, checks=CONTRACT)
    report.raise_for_failures()


def test_splits_are_upstreams_without_the_tasks_that_silence_or_a_transfer_passes() -> None:
    sizes = {}
    for name in ENVS:
        env = katgym.make(f"tau2/{name}-v0").unwrapped
        sizes[name] = {split: len(env.tasks(split)) for split in env.splits}
    assert sizes == {
        "Airline": {"train": 17, "test": 14},
        "Retail": {"train": 69, "test": 38},
        "Telecom": {"train": 74, "test": 28},
    }


@pytest.mark.parametrize("name", ENVS)
def test_gold_earns_everything_and_silence_nothing_on_every_task(name: str) -> None:
    env = katgym.make(f"tau2/{name}-v0").unwrapped
    for split in env.splits:
        for task in env.tasks(split):
            options = {"split": split, "task_id": task.task_id}
            env.reset(seed=0, options=options)
            assert play_gold(env) == 1.0, task.task_id
            env.reset(seed=0, options=options)
            _, reward, terminated, *_ = env.step("DONE.")
            assert terminated and reward == 0.0, task.task_id


def test_an_order_is_exchanged_by_the_gold_calls_and_not_by_others() -> None:
    assert play_gold(start("Retail", "retail-0")) == 1.0
    env = start("Retail", "retail-0")
    call = env.task.data["actions"][-1]
    wrong = call["arguments"] | {"payment_method_id": "credit_card_1"}
    observation, *_ = env.step(katgym.assistant("", [(call["name"], wrong)]))
    assert "Payment method not found" in observation[0]["content"]
    assert play_gold(env) == 1.0
    env = start("Retail", "retail-0")
    call = env.task.data["actions"][-1]
    env.step(
        katgym.assistant(
            "", [(call["name"], call["arguments"] | {"new_item_ids": ["7706410293", "4983901480"]})]
        )
    )
    assert play_gold(env) == 0.0


def test_a_transfer_ends_the_episode_and_is_the_whole_of_some_train_tasks_but_of_no_test_task() -> (
    None
):
    env = katgym.make("tau2/Telecom-v0").unwrapped
    earned = {}
    for split in env.splits:
        earned[split] = 0.0
        for task in env.tasks(split):
            env.reset(seed=0, options={"split": split, "task_id": task.task_id})
            _, reward, terminated, *_ = env.step(TRANSFER)
            assert terminated and env.end_reason == "transferred"
            earned[split] += float(reward)
    assert earned == {"train": 8.0, "test": 0.0}


def test_a_transfer_is_not_paid_after_the_accounts_were_changed_but_after_the_phone_was() -> None:
    env = start("Telecom", LOCKED_TASK)
    env.step("toggle_airplane_mode()")
    assert play_gold(env) == 1.0
    env = start("Telecom", LOCKED_TASK)
    ids = {"customer_id": "C1001", "line_id": "L1002"}
    env.step(katgym.assistant("", [("disable_roaming", ids)]))
    assert env.last_tool_results[0].error is None
    assert play_gold(env) == 0.0
    env = start("Telecom", LOCKED_TASK)
    calls = [
        *TRANSFER["tool_calls"],
        *katgym.assistant("", [("disable_roaming", ids)])["tool_calls"],
    ]
    _, reward, terminated, *_ = env.step({"role": "assistant", "content": "", "tool_calls": calls})
    assert terminated and reward == 0.0


def test_what_was_asked_has_to_be_told_in_a_message_of_its_own() -> None:
    env = katgym.make("tau2/Retail-v0").unwrapped
    task = next(t for t in env.tasks("train") if t.data["told"])
    env.reset(seed=0, options={"task_id": task.task_id})
    for action in task.data["actions"]:
        env.step(katgym.assistant("", [(action["name"], action["arguments"])]))
    thought = " ".join(task.data["told"])
    _, reward, terminated, *_ = env.step(f"<think>{thought}</think>DONE.")
    assert terminated and reward == 0.0
    assert env.last_reward.components["state"].score == 1.0


@pytest.mark.parametrize(
    ("info", "text", "expected"),
    [
        ("327", "It costs $327.", True),
        ("327", "It costs 1,327 dollars.", False),
        ("54.04", "You get 54.04 back", True),
        ("54", "You get 54.04 back", False),
        ("Yes", "yes, you do", True),
        ("327", " ".join(map(str, range(1000))), False),
    ],
)
def test_information_is_told_as_a_whole_word_and_not_in_a_list_of_all(
    info: str, text: str, expected: bool
) -> None:
    assert is_told(info, text) is expected


def test_the_scripted_user_does_what_is_written_as_a_call_and_nothing_else() -> None:
    env = start("Telecom", SIM_TASK)
    first = env.messages[-1]["content"]
    assert "toggle_airplane_mode" in first and "Begin your last message" in first
    observation, *_ = env.step("Would you toggle the airplane mode?")
    assert observation[0]["content"] == "I have told you all I know. Please go on."
    observation, *_ = env.step(
        "Do `toggle_airplane_mode()`, then check_status_bar(), unknown_tool()."
    )
    lines = observation[0]["content"].splitlines()
    assert lines[0].startswith("toggle_airplane_mode: Airplane Mode is now OFF.")
    assert lines[-1].startswith("check_status_bar: Status Bar:")
    assert env.calls == [("user", "toggle_airplane_mode", {}), ("user", "check_status_bar", {})]
    observation, *_ = env.step('grant_app_permission({"app_name": 5})')
    assert observation[0]["content"].startswith("grant_app_permission: ")


def test_a_policy_plays_the_user_with_the_users_tools() -> None:
    user = ScriptedPolicy(
        [
            "My phone has no service.",
            katgym.assistant("", [("toggle_airplane_mode", {})]),
            "<think>Is it over, ###STOP###?</think>I did that.",
            "Thank you. ###STOP###",
        ]
    )
    env = start("Telecom", SIM_TASK, user=user)
    assert env.messages[-1]["content"] == "My phone has no service."
    assert not env.is_deterministic
    observation, *_ = env.step("Please toggle airplane mode.")
    assert [m["content"] for m in observation] == ["I did that."]
    assert env.calls == [("user", "toggle_airplane_mode", {})]
    assert "User Simulation Guidelines" in env.user.messages[0]["content"]
    _, reward, terminated, *_ = env.step("Anything else?")
    assert terminated and reward == 0.0


def test_a_user_whose_policy_is_down_makes_the_reward_invalid() -> None:
    user = ScriptedPolicy(["Hello.", katgym.PolicyError("the server is down")])
    env = katgym.make("tau2/Retail-v0", user=user)
    rollout = asyncio.run(katgym.run_rollout(env, ScriptedPolicy(["How can I help?"]), seed=0))
    assert rollout.status == katgym.RolloutStatus.FAILED
    assert not rollout.reward.is_valid


def test_episodes_do_not_share_a_database() -> None:
    first, second = start("Retail", "retail-0"), start("Retail", "retail-0")
    assert play_gold(first) == 1.0
    second.step("DONE.")
    assert second.last_reward.value == 0.0


def test_a_reservation_is_cancelled_once_and_not_doubled_with_every_call() -> None:
    env = katgym.make("tau2/Airline-v0").unwrapped
    task = next(
        t
        for t in env.tasks("train")
        if any(a["name"] == "cancel_reservation" for a in t.data["actions"])
    )
    env.reset(seed=0, options={"task_id": task.task_id})
    action = next(a for a in task.data["actions"] if a["name"] == "cancel_reservation")
    env.step(katgym.assistant("", [(action["name"], action["arguments"])] * 30))
    first, *others = env.last_tool_results
    assert first.error is None
    assert {result.content for result in others[:4]} == {
        f"Reservation {action['arguments']['reservation_id']} is cancelled already"
    }


def test_a_missing_package_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inspect_evals", None)
    with pytest.raises(katgym.MissingDependencyError, match="pip install --no-deps inspect-evals"):
        package_folder()


def test_stand_ins_for_inspect_are_gone_after_the_import() -> None:
    services.new_store("telecom")
    left = [key for key in sys.modules if key.startswith(("inspect_ai", "inspect_evals.tau2"))]
    assert left == []
