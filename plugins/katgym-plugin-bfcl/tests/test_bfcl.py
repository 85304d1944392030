"""Function calling of BFCL: gold, wrong and odd answers, conversations over services."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import katgym
from katgym.certificate.certify import CONTRACT
from katgym_plugin_bfcl.gold import EXCLUDED
from katgym_plugin_bfcl.upstream import data_folder

ENVS = ("Calls", "LiveCalls", "MultiTurn")


def start(name: str, task_id: str, **arguments: Any) -> Any:
    env = katgym.make(f"bfcl/{name}-v0", **arguments).unwrapped
    split = next(s for s in env.splits if any(t.task_id == task_id for t in env.tasks(s)))
    env.reset(seed=0, options={"split": split, "task_id": task_id})
    return env


def reward_of(env: Any, *actions: Any) -> float:
    for action in actions:
        _, reward, *_ = env.step(action)
    return float(reward)


def play_gold(env: Any) -> float:
    terminated = truncated = False
    reward = 0.0
    while not (terminated or truncated):
        _, reward, terminated, truncated, _ = env.step(env.oracle_action())
    return float(reward)


def triangle(**arguments: Any) -> Any:
    return katgym.assistant("", [("calculate_triangle_area", arguments)])


@pytest.mark.parametrize("name", ENVS)
def test_contract(name: str) -> None:
    report = katgym.check_env(f"bfcl/{name}-v0", num_tasks=4, budget_s=1.0, checks=CONTRACT)
    report.raise_for_failures()


@pytest.mark.parametrize("name", ENVS)
def test_splits_hold_every_task_but_those_left_out(name: str) -> None:
    env = katgym.make(f"bfcl/{name}-v0").unwrapped
    sizes = {split: len(env.tasks(split)) for split in env.splits}
    assert (
        sizes
        == {
            "Calls": {"train": 692, "test": 686},
            "LiveCalls": {"train": 1462, "test": 767},
            "MultiTurn": {"train": 375, "test": 420},
        }[name]
    )
    ids = {task.task_id for split in env.splits for task in env.tasks(split)}
    assert not ids & EXCLUDED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVS)
def test_gold_earns_everything_on_every_task(name: str) -> None:
    env = katgym.make(f"bfcl/{name}-v0").unwrapped
    for split in env.splits:
        for task in env.tasks(split):
            env.reset(seed=0, options={"split": split, "task_id": task.task_id})
            assert play_gold(env) == 1.0, task.task_id


def test_one_question_of_each_category_is_answered_by_its_gold() -> None:
    for name in ENVS:
        env = katgym.make(f"bfcl/{name}-v0").unwrapped
        first = {t.data["category"]: t.task_id for t in reversed(env.tasks("train"))}
        for task_id in first.values():
            env.reset(seed=0, options={"split": "train", "task_id": task_id})
            assert play_gold(env) == 1.0, task_id


def test_a_call_is_right_with_any_of_the_values_that_are_possible() -> None:
    for arguments, expected in (
        ({"base": 10, "height": 5}, 1.0),
        ({"base": 10, "height": 5, "unit": "Units"}, 1.0),
        ({"base": 10, "height": 5, "unit": "metres"}, 0.0),
        ({"base": 10}, 0.0),
        ({"base": 10, "height": 6}, 0.0),
        ({"base": "10", "height": 5}, 0.0),
        ({"base": 10, "height": 5, "colour": "red"}, 0.0),
    ):
        assert reward_of(start("Calls", "simple_python_0"), triangle(**arguments)) == expected


def test_two_calls_no_call_and_unknown_functions_are_wrong() -> None:
    right = ("calculate_triangle_area", {"base": 10, "height": 5})
    for action in (
        katgym.assistant("", [right, right]),
        katgym.assistant("", [right, ("calculate_triangle_area", {"base": 1, "height": 5})]),
        katgym.assistant("", [("area", {"base": 10, "height": 5})]),
        "calculate_triangle_area(base=10, height=5)",
    ):
        assert reward_of(start("Calls", "simple_python_0"), action) == 0.0


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"base"', "null", "[" * 5000])
def test_arguments_that_are_no_object_are_wrong_and_valid(text: str) -> None:
    env = start("Calls", "simple_python_0")
    call = {"id": "a", "type": "function", "function": {"name": "calculate_triangle_area"}}
    call["function"]["arguments"] = text  # type: ignore[index]  # the dict above
    assert reward_of(env, {"role": "assistant", "content": "", "tool_calls": [call]}) == 0.0
    assert env.last_reward.is_valid


def test_arguments_of_a_shape_that_breaks_the_checker_are_wrong_and_valid() -> None:
    for value in (None, [], {}, [[]], "x", 1, {"size": ["large"]}, {"size": {}}):
        env = start("LiveCalls", "live_multiple_0-0-0")
        arguments = {"drink_id": "latte", "new_preferences": value}
        assert reward_of(env, katgym.assistant("", [("ChaDri_change_drink", arguments)])) == 0.0
        assert env.last_reward.is_valid


def test_a_question_that_no_function_answers_is_answered_without_a_call() -> None:
    for text, expected in (
        ("No function fits.", 1.0),
        ("no function fits", 1.0),
        ("", 0.0),
        ("I do not know.", 0.0),
        ("No function fits. Or determine_body_mass_index(weight=1, height=1)", 0.0),
    ):
        assert reward_of(start("Calls", "irrelevance_0"), text) == expected
    assert reward_of(start("Calls", "simple_python_0"), "No function fits.") == 0.0
    call = katgym.assistant("", [("determine_body_mass_index", {"weight": 1.0, "height": 1.0})])
    assert reward_of(start("Calls", "irrelevance_0"), call) == 0.0


def test_a_category_is_chosen_and_measured() -> None:
    env = start("Calls", "irrelevance_0", category="irrelevance")
    assert {task.data["category"] for task in env.tasks()} == {"irrelevance"}
    reward_of(env, "No function fits.")
    components = env.last_reward.components
    assert components["irrelevance"].score == 1.0 and "parallel" not in components
    with pytest.raises(katgym.UsageError, match="'parallel'"):
        katgym.make("bfcl/Calls-v0", category="paralel")


def test_a_conversation_goes_on_only_from_the_state_that_the_gold_calls_leave() -> None:
    env = start("MultiTurn", "multi_turn_base_0")
    first = env.oracle_action()
    observation, reward, terminated, *_ = env.step(first)
    assert json.loads(observation[0]["content"]) == {"current_working_directory": "document"}
    observation, reward, terminated, *_ = env.step("Done.")
    assert not terminated and observation[0]["role"] == "user"
    _, reward, terminated, *_ = env.step("Done, I think.")
    assert terminated and reward == 0.0


def test_functions_that_are_held_back_come_with_their_turn() -> None:
    env = start("MultiTurn", "multi_turn_miss_func_0")
    assert "sort" not in env.tools
    while "sort" not in env.tools:
        observation, _, terminated, *_ = env.step(env.oracle_action())
        assert not terminated
    assert observation[-1]["content"].startswith("I have updated some more functions")
    assert play_gold(env) == 1.0


def test_numbers_that_compute_for_hours_are_refused() -> None:
    env = katgym.make("bfcl/MultiTurn-v0").unwrapped
    task_id = next(t.task_id for t in env.tasks("train") if "MathAPI" in t.data["classes"])
    env = start("MultiTurn", task_id)
    calls = [
        ("power", {"base": 9, "exponent": 10**9}),
        ("square_root", {"number": 2, "precision": 10**9}),
    ]
    observation, *_ = env.step(katgym.assistant("", calls))
    assert all("is at most 1000 here" in message["content"] for message in observation)


def test_a_missing_package_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    with pytest.raises(katgym.MissingDependencyError, match="pip install --no-deps bfcl-eval==20"):
        data_folder()


def test_the_checker_is_imported_without_the_clients_of_vendors() -> None:
    start("Calls", "simple_python_0")
    assert reward_of(start("Calls", "simple_python_0"), triangle(base=10, height=5)) == 1.0
    assert "bfcl_eval.constants.model_config" not in sys.modules
