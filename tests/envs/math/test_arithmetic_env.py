"""The arithmetic env: tasks and whole episodes.

Not here: its calculator (`test_arithmetic_calculator.py`), answer reading
(`test_arithmetic_answer.py`).
"""

import asyncio
import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from env_play import play_oracle
from gymnasium.utils.env_checker import check_env

import katgym
from katgym.errors import UsageError
from katgym_envs.math.arithmetic.calculator import calculate
from katgym_envs.math.arithmetic.env import ArithmeticEnv
from katgym_envs.math.arithmetic.generator import LEVELS, split_of, task_set


@pytest.mark.parametrize(
    "level",
    [None, *(pytest.param(n, marks=[pytest.mark.slow] if n > 8 else []) for n in LEVELS)],
)
def test_gold_answers_are_what_the_calculator_computes(level):
    for split in ArithmeticEnv.splits:
        for task in task_set(split, level)[:10]:
            assert calculate(task.data["expression"]) == Fraction(task.answer)


@pytest.mark.slow
def test_splits_share_no_expression():
    seen = {}
    for split, num_tasks in (("train", 2_000), ("validation", 500), ("test", 500)):
        tasks = [task_set(split)[index] for index in range(num_tasks)]
        seen[split] = {task.data["expression"] for task in tasks}
        assert {split_of(expression) for expression in seen[split]} == {split}
        assert {task.split for task in tasks} == {split}
    assert not seen["train"] & (seen["validation"] | seen["test"])
    assert not seen["validation"] & seen["test"]
    assert len(seen["train"]) > 1_900


def test_mixed_levels_take_turns_and_ids_carry_the_level():
    tasks = task_set("train")
    assert [task.data["level"] for task in tasks[:20]] == [*range(1, 11), *range(1, 11)]
    assert tasks[11].task_id == "mix-train-000011"
    assert task_set("test", 3)[12].task_id == "L03-test-000012"
    assert task_set("test", 3).get("L03-test-000012").data["level"] == 3


def test_levels_hold_what_they_promise():
    for number, level in LEVELS.items():
        for task in task_set("train", number)[:30]:
            value = Fraction(task.answer)
            assert len(task.data["parts"]) == level.num_parts
            assert (value.denominator > 1) == (level.max_denominator > 1)
            assert len(task.data["expression"]) <= 180


def test_published_tasks_never_change():
    shas = {n: task_set("test", n)[0].sha256[:12] for n in LEVELS}
    assert shas == PUBLISHED


PUBLISHED = {
    1: "dabd5be84796",
    2: "29b16da20a36",
    3: "6551d865aab2",
    4: "29becb4f55a8",
    5: "9747ff67e265",
    6: "7175eecd3971",
    7: "ab0c88db2934",
    8: "6921c8f9e9c7",
    9: "0b172f964160",
    10: "84e74f2c011c",
}


@pytest.mark.parametrize("level", [0, 11, True, "3", 2.5])
def test_an_impossible_level_is_refused(level):
    with pytest.raises(UsageError) as caught:
        ArithmeticEnv(level=level)
    expected = f"level is an int from 1 to 10, or None to mix; got {level!r}"
    assert str(caught.value) == expected


@pytest.mark.parametrize("level", [None, *LEVELS])
def test_oracle_scores_the_maximum(level):
    env = ArithmeticEnv(level=level)
    assert [play_oracle(env, seed=seed) for seed in range(100)] == [1.0] * 100


@pytest.mark.parametrize("max_turns", [1, 2, 3])
def test_oracle_scores_the_maximum_with_few_turns(max_turns):
    env = ArithmeticEnv(level=10, max_turns=max_turns)
    assert play_oracle(env, seed=0) == 1.0


def test_oracle_computes_the_parts_of_level_ten_in_one_parallel_stage():
    env = ArithmeticEnv(level=10)
    env.reset(seed=5)
    env.step(env.oracle_action())
    assert [result.stage for result in env.last_tool_results] == [0, 0, 0, 0]
    parts = env.task.data["parts"]
    assert [r.content for r in env.last_tool_results] == [str(calculate(p)) for p in parts]


def test_noop_and_garbage_score_zero():
    env = ArithmeticEnv()
    for seed in range(20):
        env.reset(seed=seed)
        gold = Fraction(env.task.answer)
        for text in ("", "hello", f"{gold} or {gold + 1}", f"Answer: {gold + 1}", "Answer: x"):
            env.reset(seed=seed)
            _, reward, terminated, truncated, info = env.step(text)
            assert (reward, terminated, truncated) == (0.0, True, False)
            assert info["reward"]["components"]["correct"]["score"] == 0.0


def test_an_answer_in_another_form_counts_by_value():
    env = ArithmeticEnv(level=2)
    env.reset(seed=0)
    gold = int(env.task.answer)
    assert env.step(rf"\boxed{{\frac{{{2 * gold}}}{{2}}}}")[1] == 1.0


def test_a_number_in_a_tool_call_is_no_answer():
    env = ArithmeticEnv(max_turns=2)
    env.reset(seed=0)
    call = katgym.assistant(
        f"Answer: {env.task.answer}", [("calculator", {"expression": env.task.answer})]
    )
    env.step(call)
    _, reward, terminated, truncated, info = env.step(call)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["end_reason"] == "max_turns"


def test_a_failing_call_leaves_its_siblings_alone():
    env = ArithmeticEnv()
    env.reset(seed=0)
    calls = [("calculator", {"expression": e}) for e in ("1 / 0", "6 * 7", "2 +")]
    observation, *_ = env.step(katgym.assistant("", calls))
    assert [m["content"] for m in observation] == [
        "division by zero at position 3",
        "42",
        "the expression ends at position 4: expected a number or '('",
    ]


def test_gymnasium_checker_passes_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(ArithmeticEnv(), skip_render_check=True)
        check_env(ArithmeticEnv(level=10), skip_render_check=True)


def episode_text(seed):
    """One oracle episode as text, to compare across threads and processes."""
    env = ArithmeticEnv()
    observation, info = env.reset(seed=seed)
    steps = [json.dumps([observation, info])]
    while True:
        step = env.step(env.oracle_action())
        steps.append(json.dumps(step))
        if step[2] or step[3]:
            return "\n".join(steps)


def test_same_seed_same_episode_in_64_threads():
    alone = [episode_text(seed) for seed in (0, 7)] * 32
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(episode_text, [0, 7] * 32)) == alone


def test_same_seed_same_episode_in_another_process():
    code = (
        "from katgym_envs.math.arithmetic.env import ArithmeticEnv\n"
        "env = ArithmeticEnv(); env.reset(seed=7)\n"
        "print(env.task.task_id, env.task.sha256)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    env = ArithmeticEnv()
    env.reset(seed=7)
    assert done.stdout.split() == [env.task.task_id, env.task.sha256]


def test_concurrent_episodes_of_one_loop_do_not_mix():
    async def play(seed):
        env = ArithmeticEnv(level=9)
        await env.areset(seed=seed)
        while True:
            _, reward, terminated, truncated, _ = await env.astep(env.oracle_action())
            if terminated or truncated:
                return env.task.task_id, reward

    async def main():
        return await asyncio.gather(*(play(seed) for seed in [*range(16), *range(16)]))

    results = asyncio.run(main())
    assert results[:16] == results[16:]
    assert {reward for _, reward in results} == {1.0}
