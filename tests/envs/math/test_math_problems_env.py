"""The written problems: shipped data, grading, failures of the verifier, episodes."""

import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env
from nightly import some_of

from katgym.environment.failure import FailureKind
from katgym.errors import UnknownNameError, UsageError
from katgym_envs.math.problems.env import MathProblemsEnv
from katgym_envs.math.verifier import AnswerVerdict, VerifierUnavailable

ROWS = [
    {"problem": "What is 1 + 1?", "answer": "2"},
    {"problem": "What is a half?", "answer": r"\frac{1}{2}"},
]


class RecordedVerifier:
    """Answers with what it was given, and remembers what it was asked."""

    def __init__(self, outcome: AnswerVerdict | Exception) -> None:
        self.outcome = outcome
        self.asked: list[tuple[str, str]] = []

    async def averify(self, answer: str, gold: str) -> AnswerVerdict:
        self.asked.append((answer, gold))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class RecordedEnv(MathProblemsEnv):
    """The env with a verifier of the test's choice."""

    def __init__(self, outcome: AnswerVerdict | Exception, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recorded = RecordedVerifier(outcome)

    def verifier(self) -> RecordedVerifier:
        return self.recorded


def verdict(*, is_correct: bool = False, method: str = "exact", reason: str = "") -> AnswerVerdict:
    return AnswerVerdict(is_correct=is_correct, method=method, reason=reason)


def answer_with(env: MathProblemsEnv, text: str, seed: int = 0) -> float:
    env.reset(seed=seed)
    _, value, terminated, truncated, _ = env.step(text)
    assert (terminated, truncated) == (True, False)
    return value


@pytest.fixture
def own_data(tmp_path: Path) -> str:
    path = tmp_path / "own.jsonl"
    rows = [{**row, "part": "train"} for row in ROWS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# ---- grading with the real verifier


def test_oracle_scores_the_maximum_in_every_split() -> None:
    for split in MathProblemsEnv.splits:
        env = MathProblemsEnv(split=split)
        for task in some_of(env.tasks(), 40):
            env.reset(seed=0, options={"task_id": task.task_id})
            assert env.step(env.oracle_action())[1] == 1.0, task


def test_noop_and_garbage_score_zero() -> None:
    env = MathProblemsEnv()
    texts = ("", "I do not know.", r"\boxed{}", r"\boxed{banana}", r"\boxed{31415926}", "Answer: 7")
    for text in texts:
        assert [answer_with(env, text, seed) for seed in range(5)] == [0.0] * 5, text


def test_a_hedge_scores_zero_although_one_answer_is_right() -> None:
    env = MathProblemsEnv()
    for seed in range(10):
        env.reset(seed=seed)
        gold = env.task.answer
        for text in (
            rf"\boxed{{{gold}}} or \boxed{{12345}}",
            rf"\boxed{{12345}}, \boxed{{{gold}}}",
        ):
            assert answer_with(env, text, seed) == 0.0
            assert env.last_reward.components["has_answer"].score == 0.0


def test_equal_forms_of_an_answer_count(own_data: str) -> None:
    env = MathProblemsEnv(data=own_data, split_column="part")
    half = next(t.task_id for t in env.tasks() if t.answer != "2")
    for form in (r"\frac12", "0.5", "1/2", r"\dfrac{2}{4}"):
        env.reset(seed=0, options={"task_id": half})
        assert env.step(rf"It is \boxed{{{form}}}.")[1] == 1.0


# ---- the box


def test_an_answer_outside_the_box_counts_only_where_no_box_is_required() -> None:
    for boxed_required, value in ((True, 0.0), (False, 1.0)):
        env = MathProblemsEnv(boxed_required=boxed_required)
        env.reset(seed=3)
        assert env.step(f"Answer: {env.task.answer}")[1] == value


@pytest.mark.parametrize("box", [r"\fbox{GOLD}", r"$\boxed{\boxed{GOLD}}$", r"\boxed { GOLD }"])
def test_every_box_counts(box: str) -> None:
    env = MathProblemsEnv()
    env.reset(seed=3)
    assert env.step(box.replace("GOLD", env.task.answer))[1] == 1.0


def test_an_empty_box_does_not_lend_itself_to_an_answer_outside() -> None:
    env = MathProblemsEnv()
    for text in (
        "\\boxed{}\nAnswer: {gold}",
        "Answer: {gold}\n\\boxed{ }",
        "{gold}",
    ):
        env.reset(seed=3)
        assert env.step(text.replace("{gold}", env.task.answer))[1] == 0.0, text


def test_the_opening_asks_for_the_form_that_counts(own_data: str) -> None:
    env = MathProblemsEnv(data=own_data, split_column="part")
    (message,), _ = env.reset(seed=0)
    assert message["content"] == f"{env.task.prompt}\n\nPut your final answer in \\boxed{{}}."


# ---- what the verifier may do


def test_the_verifier_gets_the_answer_and_gold() -> None:
    env = RecordedEnv(verdict(is_correct=True))
    env.reset(seed=0)
    assert env.step(r"So \boxed{17}.")[1] == 1.0
    assert env.recorded.asked == [("17", env.task.answer)]
    assert env.last_reward.components["has_answer"].weight == 0.0


def test_no_answer_never_reaches_the_verifier() -> None:
    env = RecordedEnv(verdict(is_correct=True))
    assert answer_with(env, "no idea") == 0.0
    assert env.recorded.asked == []


def test_a_verifier_timeout_counts_as_zero() -> None:
    env = RecordedEnv(verdict(method="timeout", reason="took longer than 2 s"))
    assert answer_with(env, r"\boxed{9^{9^9}}") == 0.0
    assert env.last_reward.is_valid
    assert env.last_reward.failure_kind is FailureKind.VERIFIER_TIMEOUT
    assert env.last_reward.reason == "correct: took longer than 2 s"


def test_a_gold_answer_that_cannot_be_read_makes_the_reward_invalid() -> None:
    env = RecordedEnv(verdict(method="unsupported_gold", reason="two equals signs"))
    env.reset(seed=0)
    env.step(r"\boxed{1}")
    assert env.last_reward.failure_kind is FailureKind.SCORER_ERROR
    assert env.last_reward.reason == (
        f"correct: the gold answer of task {env.task.task_id!r}: two equals signs"
    )


def test_a_verifier_that_is_down_makes_the_reward_invalid() -> None:
    env = RecordedEnv(VerifierUnavailable("no worker starts"))
    env.reset(seed=0)
    env.step(r"\boxed{1}")
    assert env.last_reward.value is None
    assert env.last_reward.failure_kind is FailureKind.VERIFIER_UNAVAILABLE
    assert env.last_reward.reason == "correct: no worker starts"


# ---- data


def test_filters_reach_the_tasks() -> None:
    subject = MathProblemsEnv().tasks()[0].data["subject"]
    tasks = MathProblemsEnv(subject=subject).tasks()
    assert {task.data["subject"] for task in tasks} == {subject}


def test_an_unknown_subject_is_an_error_when_tasks_are_needed() -> None:
    with pytest.raises(UnknownNameError, match="unknown subject 'astrology'"):
        MathProblemsEnv(subject="astrology").tasks()


def test_a_split_without_problems_names_those_with_some(own_data: str) -> None:
    env = MathProblemsEnv(data=own_data, split_column="part", split="test")
    with pytest.raises(UsageError) as caught:
        env.reset(seed=0)
    assert str(caught.value) == ("no problem fits in split 'test'; splits with problems: train (2)")


def test_many_envs_share_one_task_set() -> None:
    first = MathProblemsEnv().tasks()
    assert all(MathProblemsEnv().tasks() is first for _ in range(2_048))


def test_shipped_problems_are_distinct_across_splits() -> None:
    prompts = [task.prompt for s in MathProblemsEnv.splits for task in MathProblemsEnv().tasks(s)]
    assert len(set(prompts)) == len(prompts)


# ---- Gymnasium and seeds


def test_gymnasium_checker_passes_without_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(MathProblemsEnv(), skip_render_check=True)


def start_text(seed: int) -> str:
    return json.dumps(MathProblemsEnv().reset(seed=seed))


def test_same_seed_same_episode_in_64_threads() -> None:
    alone = [start_text(seed) for seed in (0, 7)] * 32
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(start_text, [0, 7] * 32)) == alone


def test_same_seed_same_episode_in_another_process() -> None:
    code = (
        "from katgym_envs.math.problems.env import MathProblemsEnv\n"
        "env = MathProblemsEnv(); env.reset(seed=7)\n"
        "print(env.task.task_id, env.task.sha256)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    env = MathProblemsEnv()
    env.reset(seed=7)
    assert done.stdout.split() == [env.task.task_id, env.task.sha256]
