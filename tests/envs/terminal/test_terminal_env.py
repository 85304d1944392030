"""`katgym/Terminal-v0` played through its public interface."""

from __future__ import annotations

from typing import Any

import pytest
from terminal_play import SUBMIT, folder_of, play, tasks_by_template

import katgym
from katgym.certificate.certify import CONTRACT, check_env


def make(**kwargs: Any) -> Any:
    return katgym.make("katgym/Terminal-v0", **kwargs).unwrapped


@pytest.mark.slow
def test_the_contract_holds() -> None:
    report = check_env("katgym/Terminal-v0", num_tasks=2, checks=CONTRACT)
    assert report.failures == []


def test_the_opening_tells_the_rules_and_the_task_and_no_solution() -> None:
    env = make(level=2)
    opening, _ = env.reset(seed=3)
    env.close()
    text = opening[0]["content"]
    assert "Only the files in /workspace decide" in text
    assert text.endswith(env.task.prompt)
    assert "\n\n2. In " in env.task.prompt
    assert env.task.data["script"] not in text


def test_the_oracle_solves_a_task_of_four_exercises() -> None:
    env = make(level=4)
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step(env.oracle_action())
    assert (reward, terminated, info["end_reason"]) == (1.0, True, "submitted")
    assert env.artifacts == {"differences": []}


def test_the_workspace_holds_the_files_with_their_modes_and_times() -> None:
    env = make(level=1)
    task = tasks_by_template()["files.remove_old"]
    env.reset(seed=0, options={"task_id": task.task_id})
    path = f"{folder_of(task)}/cache/keep.lock"
    command = f"stat -c '%a %Y %U' {path}"
    observation, *_ = env.step(katgym.assistant("", [("bash", {"command": command})]))
    env.close()
    seconds = task.data["before"][path]["time"]
    assert observation[0]["content"] == f"644 {seconds} agent\n[exit code 0]"


def test_a_repository_is_clean_and_whole_before_anything_is_done() -> None:
    env = make(level=1)
    task = tasks_by_template()["git.merge"]
    env.reset(seed=0, options={"task_id": task.task_id})
    command = f"cd {folder_of(task)}/repo && git fsck --strict && git status --porcelain"
    observation, *_ = env.step(katgym.assistant("", [("bash", {"command": command})]))
    env.close()
    assert observation[0]["content"] == "[exit code 0]"


def test_what_differs_is_kept_for_the_record_and_not_shown() -> None:
    env = make(level=1)
    task = tasks_by_template()["text.addresses"]
    reward = play(env, task, "echo x > $'bad\\xff'")
    assert reward.value == 0.0
    assert env.artifacts["differences"] == [
        "bad\\udcff: should not be there",
        f"{folder_of(task)}/addresses.txt: is missing",
    ]
    assert "addresses.txt: is missing" not in str(env.messages)


def test_a_message_without_a_call_is_answered_once_and_then_ends_the_episode() -> None:
    env = make(level=1)
    env.reset(seed=0)
    observation, _, terminated, *_ = env.step("I am done.")
    assert not terminated
    assert "call submit" in observation[0]["content"]
    _, reward, terminated, *_ = env.step("Really.")
    assert (reward, terminated) == (0.0, True)


def test_equal_seeds_give_equal_tasks_and_other_splits_other_tasks() -> None:
    env, other = make(), make()
    first, second = env.reset(seed=7), other.reset(seed=7)
    assert first == second
    env.reset(seed=7, options={"split": "test"})
    assert env.task.prompt != other.task.prompt
    env.step(SUBMIT)
    other.close()
