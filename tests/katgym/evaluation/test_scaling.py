"""Test-time scaling: what is chosen, by whom, from what, and what it costs."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import katgym
from katgym.cli.main import main
from katgym.cli.plan_options import print_unfinished
from katgym.environment.messages import Message, assistant, user
from katgym.errors import PolicyError, UsageError
from katgym.evaluation.leaderboard.leaderboard_entry import LeaderboardEntry
from katgym.evaluation.plan import EvalConfig, Plan, PlannedEnv, ScalingConfig
from katgym.evaluation.run import EvalResult
from katgym.evaluation.run_state import RunState
from katgym.evaluation.scaling.candidates import Candidate, count_votes, filter_candidates
from katgym.evaluation.scaling.questions import QuestionEnv, read_criticism, read_judgement
from katgym.evaluation.scaling.scaled_run import play_scaled
from katgym.evaluation.scaling.scaling_table import scaling_rows
from katgym.evaluation.statistics.attempts import SCALING
from katgym.evaluation.statistics.summary import RunSummary
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.policies.base import Completion, EpisodeContext, Policy, Session
from katgym.rollout_store import RolloutStore

Answer = Callable[[Sequence[Message], EpisodeContext], str]


class GuessEnv(katgym.Env):
    """Right is to say "right"; or to say anything else."""

    def __init__(self, *, is_contrary: bool = False) -> None:
        super().__init__()
        self.is_contrary = is_contrary

    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id=f"t{n}", prompt="Guess.") for n in range(8)]

    @katgym.scorer()
    def correct(self) -> bool:
        return (self.final_answer == "right") is not self.is_contrary


class TalkingPolicy(Policy):
    """Answers with what a function says, at 10 tokens read and 2 sampled a call."""

    def __init__(self, answer: Answer, name: str = "talking") -> None:
        self.name, self.answer = name, answer
        self.prompts: list[str] = []

    def start(self, context: EpisodeContext) -> Session:
        return _TalkingSession(self, context)

    def questions(self, start: str) -> list[str]:
        return [prompt for prompt in self.prompts if prompt.startswith(start)]


class _TalkingSession(Session):
    def __init__(self, policy: TalkingPolicy, context: EpisodeContext) -> None:
        self._policy, self._context = policy, context

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        self._policy.prompts.append(messages[-1]["content"])
        text = self._policy.answer(messages, self._context)
        return Completion(message=assistant(text), num_prompt_tokens=10, num_completion_tokens=2)


def by_seed(words: Sequence[str]) -> Answer:
    """Answer with a word that the episode's sampling seed chooses."""
    return lambda messages, context: words[(context.seed or 0) % len(words)]


def scale(
    folder: Path,
    tts: str,
    policy: Policy,
    *,
    judge: Policy | None = None,
    env: katgym.Env | None = None,
    num_tasks: int = 4,
    **config: Any,
) -> EvalResult:
    """Play tasks of `GuessEnv` with test-time scaling."""
    template = env or GuessEnv()
    tasks = {task.task_id: task.sha256 for task in list(template.tasks("test"))[:num_tasks]}
    planned = PlannedEnv(template, type(template).__name__, {}, tasks)
    settings = EvalConfig(envs=("GuessEnv",), policy=policy.name, tts=tts, **config)
    return asyncio.run(play_scaled(Plan(settings, (planned,)), policy, folder, judge=judge))


def told(folder: Path) -> dict[str, dict[str, Any]]:
    return {r.task_id: r.artifacts[SCALING] for r in read_rollouts(folder)}


def candidate(attempt: int, answer: str, problem: str = "") -> Candidate:
    return Candidate(attempt=attempt, messages=[user("?")], answer=answer, problem=problem)


# ---- the vote


def test_votes_are_right_as_often_as_the_binomial_formula_says():
    p = 0.6
    for num in (1, 2, 3, 5, 8):
        chance = 0.0
        for outcome in itertools.product(("right", "wrong"), repeat=num):
            votes = [candidate(n, answer) for n, answer in enumerate(outcome)]
            if count_votes(votes, num)[0].answer == "right":
                num_right = outcome.count("right")
                chance += p**num_right * (1 - p) ** (num - num_right)
        terms = [math.comb(num, k) * p**k * (1 - p) ** (num - k) for k in range(num + 1)]
        tie = terms[num // 2] / 2 if num % 2 == 0 else 0.0  # the first attempt decides it
        assert chance == pytest.approx(math.fsum(terms[num // 2 + 1 :]) + tie), num


def test_a_tie_goes_to_the_later_retry_and_what_is_no_answer_is_left_out():
    both = [candidate(0, "a"), candidate(1, "b")]
    assert [one.attempt for one in count_votes(both, 2)] == [0, 1]
    assert [one.attempt for one in count_votes(both, 1)] == [1, 0]
    retries = [*both, candidate(2, "c"), candidate(3, "b")]
    assert [one.answer for one in count_votes(retries, 1)] == ["b", "c", "a"]
    empty, broken, sound = candidate(0, ""), candidate(1, "a", "no Python"), candidate(2, "b")
    assert filter_candidates([empty, broken, sound]) == [sound]
    assert filter_candidates([empty, broken]) == [broken]
    assert filter_candidates([empty]) == [empty]


@pytest.mark.parametrize("thoughts", ["", "<think>Wrong, or odd?</think>"])
def test_the_majority_of_attempts_is_what_the_run_reports(tmp_path, thoughts):
    policy = TalkingPolicy(by_seed(["right", f"{thoughts}right", "wrong"]))
    result = scale(tmp_path, "best_of=5", policy, num_tasks=8)
    by_task: dict[str, list[str]] = {}
    for rollout in read_rollouts(tmp_path / "attempts"):
        by_task.setdefault(rollout.task_id, []).append(rollout.messages[-1]["content"])
    wanted = {
        name: float(sum(s.endswith("right") for s in said) > 2) for name, said in by_task.items()
    }
    chosen = read_rollouts(tmp_path)
    assert {r.task_id: r.reward.value for r in chosen} == wanted
    assert 0 < sum(wanted.values()) < 8  # both kinds occur
    assert result.summary.envs["GuessEnv"].num_rollouts == 8
    ids = {r.episode_id for r in read_rollouts(tmp_path / "attempts")}
    assert {r.episode_id for r in chosen} <= ids


def test_choosing_does_not_depend_on_rewards(tmp_path):
    words = ["right", "wrong", "", "odd"]
    found = []
    for is_contrary in (False, True):
        env, folder = GuessEnv(is_contrary=is_contrary), tmp_path / str(is_contrary)
        scale(folder, "best_of=4", TalkingPolicy(by_seed(words)), env=env, num_tasks=8)
        found.append({r.task_id: r for r in read_rollouts(folder)})
    plain, contrary = found
    assert {name: r.artifacts for name, r in plain.items()} == {
        name: r.artifacts for name, r in contrary.items()
    }
    assert all(plain[name].is_success != contrary[name].is_success for name in plain)


class PatchEnv(GuessEnv):
    """Leaves what is said as a patch; the shorter of two words does not apply."""

    visible_artifacts = ("patch",)

    def reply(self, message: Message) -> None:
        self.artifacts = {"patch": message["content"], "outcome": "hidden"}

    async def candidate_problem(self, task: katgym.Task, artifacts: dict[str, Any]) -> str:
        assert list(artifacts) == ["patch"] and artifacts["patch"]
        return "" if artifacts["patch"] == "right" else "does not apply"


def test_what_the_env_finds_wrong_is_left_out_and_sees_visible_artifacts_alone(tmp_path):
    answers = by_seed(["right", "odd", "odd", "", ""])
    scale(tmp_path / "on", "best_of=8", TalkingPolicy(answers), env=PatchEnv(), num_tasks=8)
    scale(
        tmp_path / "off", "best_of=8,filter=false", TalkingPolicy(answers), env=PatchEnv(),
        num_tasks=8,
    )  # fmt: skip
    attempts = read_rollouts(tmp_path / "on" / "attempts")
    solvable = {r.task_id for r in attempts if r.is_success}
    assert {r.task_id for r in read_rollouts(tmp_path / "on") if r.is_success} == solvable
    num_without = sum(r.is_success for r in read_rollouts(tmp_path / "off"))
    assert num_without < len(solvable)
    assert {each["num_left_out"] for each in told(tmp_path / "off").values()} == {0}


def test_answers_are_read_as_the_env_reads_them():
    env = katgym.make("katgym/Arithmetic-v1")
    read = [env.candidate_answer(text) for text in ("So Answer: 14/4", "It is 3.5", "41 or 42")]
    assert read == ["7/2", "7/2", ""]
    problems = katgym.make("katgym/MathProblems-v1")
    assert [problems.candidate_answer(t) for t in (r"\boxed{x^2}", "x^2")] == ["x^2", ""]


# ---- the judge


def choose_word(word: str) -> Answer:
    """Judge that finds the candidate with a word."""

    def answer(messages: Sequence[Message], context: EpisodeContext) -> str:
        shown = messages[-1]["content"].split("<candidate ")[1:]
        return f"Let me see.\nBEST: {next(n for n, t in enumerate(shown, 1) if word in t)}"

    return answer


def test_a_judge_outvotes_the_majority_and_is_asked_only_where_answers_differ(tmp_path):
    answers = by_seed(["right", "wrong", "wrong", "wrong"])
    judge = TalkingPolicy(choose_word("right"), "judge")
    result = scale(tmp_path, "best_of=4,judge=it", TalkingPolicy(answers), judge=judge, num_tasks=8)
    sides: dict[str, set[str]] = {}
    for rollout in read_rollouts(tmp_path / "attempts"):
        sides.setdefault(rollout.task_id, set()).add(rollout.messages[-1]["content"])
    assert len(judge.prompts) == sum(len(found) == 2 for found in sides.values()) > 0
    chosen = {r.task_id: r.is_success for r in read_rollouts(tmp_path)}
    assert chosen == {name: "right" in found for name, found in sides.items()}
    bound = scaling_rows(result)[2]
    assert (bound.choice, bound.success) == ("any of 4 (bound)", sum(chosen.values()) / 8)
    assert not any(word in prompt for prompt in judge.prompts for word in ("reward", "success"))


def test_a_judge_that_names_none_leaves_it_to_the_vote_and_is_counted(tmp_path):
    for number, answer in enumerate(
        ("the second", "BEST: 9", "BEST: 1 or BEST: 2", "BEST: 1\nNo.")
    ):
        folder, judge = tmp_path / str(number), TalkingPolicy(lambda *_, a=answer: a, "judge")
        scale(folder, "best_of=4,judge=it", TalkingPolicy(by_seed(["a", "b"])), judge=judge)
        found = {(each["by"], each["num_unread"]) for each in told(folder).values()}
        assert found == {("vote", 1)}, answer
    texts = {"I compare.\nBEST: 2\n": 1, "BEST: 0": None, "": None}
    assert {text: read_judgement(text, 2) for text in texts} == texts


# ---- reflection


def critic(criticism: str) -> Answer:
    """Answer wrong at first, right where a criticism is told, and criticise."""

    def answer(messages: Sequence[Message], context: EpisodeContext) -> str:
        if isinstance(context.env, QuestionEnv):
            return criticism
        return "right" if criticism in messages[-1]["content"] else "wrong"

    return answer


def test_a_retry_is_told_the_policys_own_criticism_and_counts(tmp_path):
    policy = TalkingPolicy(critic("It is not wrong, try right."))
    result = scale(tmp_path, "reflect=1", policy)
    assert [r.is_success for r in read_rollouts(tmp_path)] == [True] * 4
    assert not any(r.is_success for r in read_rollouts(tmp_path / "attempts"))
    asked = policy.questions("You tried this task")
    assert len(asked) == 4
    assert all("[assistant] wrong" in prompt for prompt in asked)
    first = read_rollouts(tmp_path)[0].messages[0]["content"]
    assert first.startswith("Guess.\n\nYou tried this before")
    assert first.endswith("It is not wrong, try right.")
    # An attempt, a criticism and a retry: the run's tokens are those of all three.
    env = result.summary.envs["GuessEnv"]
    assert (env.num_prompt_tokens, env.num_completion_tokens) == (4 * 30, 4 * 6)
    steps = sorted(each["attempt"] for each in told(tmp_path).values())
    assert steps == [1] * 4
    with RolloutStore.open(tmp_path / "steps", create=False) as store:
        kept = [(record.metadata["step"], record.rollout) for record in store.sessions()]
    assert sorted(step for step, _ in kept) == ["criticism"] * 4 + ["retry-0"] * 4


def test_a_policy_that_finds_nothing_wrong_is_not_played_again(tmp_path):
    policy = TalkingPolicy(critic("I looked.\nCORRECT"))
    scale(tmp_path, "reflect=2", policy)
    assert {each["num_attempts"] for each in told(tmp_path).values()} == {1}
    assert read_criticism("CORRECT?") == "CORRECT?"


def test_the_oracle_criticises_nothing(tmp_path):
    with pytest.raises(UsageError, match="name one that has words"):
        scale(tmp_path, "reflect=1", katgym.policy("oracle"), env=SolvedEnv())


class SolvedEnv(GuessEnv):
    def oracle_action(self) -> str:
        return "right"


# ---- going on


def test_a_run_goes_on_where_its_judge_failed(tmp_path):
    def fail(*_: Any) -> str:
        raise PolicyError("the judge is down", kind="policy_rejected")

    policy, judge = TalkingPolicy(by_seed(["a", "b"])), TalkingPolicy(fail, "judge")
    with pytest.raises(PolicyError, match="judgement of task 't0' failed: the judge is down"):
        scale(tmp_path, "best_of=4,judge=it", policy, judge=judge, max_concurrency=1)
    assert len(policy.prompts) == 16
    assert read_rollouts(tmp_path) == []
    num_failed = len(judge.prompts)
    judge.answer = lambda *_: "BEST: 1"
    for _ in range(2):
        result = scale(tmp_path, "best_of=4,judge=it", policy, judge=judge, max_concurrency=1)
        assert (len(policy.prompts), result.num_failed) == (16, 0)
    assert len(read_rollouts(tmp_path)) == 4
    assert len(judge.prompts) == num_failed + 4


def test_criticisms_and_retries_of_an_earlier_run_are_not_played_again(tmp_path):
    policy = TalkingPolicy(critic("Say right."))
    scale(tmp_path, "reflect=1", policy)
    before, num_calls = told(tmp_path), len(policy.prompts)
    for path in tmp_path.glob("live.sqlite*"):  # what was chosen is lost, its steps are not
        path.unlink()
    scale(tmp_path, "reflect=1", policy)
    assert told(tmp_path) == before
    assert len(policy.prompts) == num_calls


# ---- the command


def test_the_parts_of_tts_are_read_and_what_is_none_is_told(subtests):
    cases = {
        "best_of=1": "leaves nothing to choose",
        "best_of=0,reflect=2": "leaves nothing to choose",
        "best_of=many": "Expected `int`",
        "best_of=2,best_of=3": "each part at most once",
        "best_of": "its form is best_of=8",
        "best_of=8,refelct=2": r"Did you mean 'reflect'\?",
        "reflect=-1,best_of=4": "leaves nothing to choose",
    }
    for tts, words in cases.items():
        with subtests.test(tts=tts), pytest.raises(UsageError, match=words):
            EvalConfig(envs=("x",), policy="oracle", tts=tts)
    with pytest.raises(UsageError, match="best_of says of how many"):
        EvalConfig(envs=("x",), policy="oracle", tts="best_of=2", group_size=2)
    config = ScalingConfig.parse("best_of=8,judge=openai:http://h/v1#m?a=1,reflect=2,filter=false")
    judge = "openai:http://h/v1#m?a=1"
    assert config == ScalingConfig(best_of=8, judge=judge, reflect=2, filter=False)
    assert config.max_episodes == 8 + 2 * 2 + 3


def test_wrong_tts_ends_the_command_with_exit_code_2_and_nothing_written(tmp_path, capsys):
    out = tmp_path / "run"
    cases = {"best_of=1": "nothing to choose", "best_of=2,judge=orcale": "mean 'oracle'"}
    for tts, words in cases.items():
        command = ["eval", "katgym/Arithmetic-v1", "--policy", "oracle", "--tts", tts]
        assert main([*command, "--out", str(out)]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
        assert not out.exists()


def test_the_command_prints_the_attempts_the_choice_and_the_bound(tmp_path, capsys):
    command = ["eval", "katgym/Arithmetic-v1?level=1", "--policy", "oracle?accuracy=0.5"]
    command += ["--tasks", "12", "--tts", "best_of=4", "--out", str(tmp_path)]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    one, chosen, bound = printed["tts"]
    assert [row["choice"] for row in printed["tts"]] == [
        "one attempt",
        "chosen",
        "any of 4 (bound)",
    ]
    assert 0.3 < one["success"] < chosen["success"] <= bound["success"]
    assert chosen["success"] == printed["envs"]["katgym/Arithmetic-v1"]["success_rate"]
    assert main(["verify", str(tmp_path / "attempts")]) == 0
    assert main(["verify", str(tmp_path)]) == 2
    assert "its attempts are a run that can be" in " ".join(capsys.readouterr().err.split())
    summary = RunSummary.from_json(json.loads((tmp_path / "summary.json").read_text()))
    entry = LeaderboardEntry.from_lock("run", read_lock(tmp_path), summary)
    assert entry.policy == "oracle?accuracy=0.5 tts:best_of=4"


def test_an_unfinished_run_names_the_command_with_its_tts(tmp_path, capsys):
    scale(tmp_path, "best_of=2", TalkingPolicy(by_seed(["a"])))
    state = RunState.of(tmp_path, read_lock(tmp_path), read_rollouts(tmp_path)[:3])
    print_unfinished(state)
    assert "--tts best_of=2" in " ".join(capsys.readouterr().err.split())
