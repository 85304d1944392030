"""Verified runs of envs that run programs: what is refuted, what is named, what a board leaves out.

Every forger here is patient: chain, root and summary fit the forged run. Not here: envs whose every
observation follows from the seed (`test_verify_frauds.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forgery import read_forgery, with_turn, write_forgery

import katgym
from katgym import Component, Rollout, RolloutStatus, Success, Trust, system, user
from katgym.cli.main import main
from katgym.evaluation.plan import EvalConfig
from katgym.evaluation.run import evaluate
from katgym.evaluation.verification.report import Verdict, VerifyReport
from katgym.evaluation.verification.verify import verify_run

ENV_ID = "program_test/Programs-v0"
LEVELS = {"whole": Trust.COMPLETE, "half": Trust.PARTIAL, "plain": None}


class Programs(katgym.Env):
    """Runs a program and asks for a word; its process id is a metric that no run gives again."""

    system_prompt = "You have a Python."
    is_deterministic = False
    splits = ("test",)

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        return [
            katgym.Task(task_id=name, prompt=f"Say {name!r}.", answer=name, trust=level)
            for name, level in LEVELS.items()
        ]

    async def setup(self) -> None:
        self.printed: list[str] = []

    @katgym.tool()
    def python(self, code: str) -> str:
        """Run a program and return what it printed.

        Args:
            code: The program.
        """
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
        self.printed.append(done.stdout)
        return done.stdout

    def reward_trust(self) -> tuple[Trust, str] | None:
        if "peek" in self.final_answer:
            return Trust.WITHHELD, "it opened tests/test_words.py"
        return super().reward_trust()

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the task's word is in the answer."""
        return self.task.answer in self.final_answer

    @katgym.scorer(weight=0.0, low=0.0)
    def num_programs(self) -> int:
        """Programs that ran."""
        return len(self.printed)

    @katgym.scorer(weight=0.0)
    def has_run(self) -> bool:
        """Whether a program ran."""
        return bool(self.printed)

    @katgym.scorer(weight=0.0, low=0.0)
    def process_id(self) -> float:
        """Of the last program, as far as it told it."""
        return float(self.printed[-1]) if self.printed and self.printed[-1].isdigit() else 0.0


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    katgym.register(ENV_ID, Programs, should_replace=True)


def script(path: Path, *programs: str, answer: str) -> str:
    """Return the URI of a policy that runs programs, one a turn, and then answers."""
    calls = [
        {"function": {"name": "python", "arguments": json.dumps({"code": p})}} for p in programs
    ]
    lines = [*({"content": "", "tool_calls": [call]} for call in calls), answer]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return f"scripted:{path}"


def play(folder: Path, policy: str, env: str = ENV_ID, **more: Any) -> Path:
    config = {"num_tasks": 3, "seed": 4, **more}
    asyncio.run(evaluate(EvalConfig(envs=(env,), policy=policy, **config), folder))
    return folder


def verify(folder: Path) -> VerifyReport:
    return asyncio.run(verify_run(folder))


Change = Callable[[Rollout], Rollout]


def forge(honest: Path, folder: Path, change: Change) -> Path:
    forged = read_forgery(honest)
    forged.change_all(change)
    return write_forgery(forged, folder)


def with_reward_field(**changes: Any) -> Change:
    """Return a forger of fields of the reward; its reason is the rollout's."""

    def change(rollout: Rollout) -> Rollout:
        told = {"reason": changes["reason"]} if "reason" in changes else {}
        return replace(rollout, reward=replace(rollout.reward, **changes), **told)

    return change


def with_metrics(change: Callable[[Mapping[str, float]], Mapping[str, float]]) -> Change:
    """Return a forger of all components of weight 0: name -> score before and after."""

    def edit(rollout: Rollout) -> Rollout:
        parts = rollout.reward.components
        scores = change({name: part.score for name, part in parts.items() if not part.weight})
        told = {name: Component(score=score, weight=0.0) for name, score in scores.items()}
        kept = {name: part for name, part in parts.items() if part.weight}
        return replace(rollout, reward=replace(rollout.reward, components={**kept, **told}))

    return edit


def with_hint(rollout: Rollout) -> Rollout:
    *before, question = rollout.turns[0].messages
    hinted = {**question, "content": f"{question['content']} It is {rollout.task_id}."}
    return with_turn(rollout, 0, messages=[*before, hinted])


def with_system_prompt(rollout: Rollout) -> Rollout:
    messages = [m for m in rollout.turns[0].messages if m["role"] != "system"]
    return with_turn(rollout, 0, messages=[system("You may do anything."), *messages])


def with_tool(rollout: Rollout) -> Rollout:
    extra = {"type": "function", "function": {"name": "solve", "parameters": {"type": "object"}}}
    last = len(rollout.turns) - 1
    return with_turn(rollout, last, tools=(*rollout.turns[last].tools, extra))


REFUTED: dict[str, tuple[Change, str]] = {
    "hint": (with_hint, "turn 0 has other messages"),
    "system prompt": (with_system_prompt, "turn 0 has other messages"),
    "tools": (with_tool, "has other tools"),
    "reason": (with_reward_field(reason="solved by itself"), "'solved by itself'"),
    "reason of the rollout alone": (lambda r: replace(r, reason="solved"), "'solved'"),
    "metrics + 7": (
        with_metrics(lambda scores: {name: score + 7 for name, score in scores.items()}),
        "not in 0 to 1",
    ),
    "success": (lambda r: replace(r, success=Success(threshold=0.0)), "success is"),
    "arguments": (lambda r: replace(r, env_kwargs={"max_turns": 99}), "env_kwargs is"),
}


def test_an_honest_run_is_verified_and_what_a_program_printed_is_named(tmp_path: Path) -> None:
    programs = ("print('a' * 3)", "import os; print(f'took {os.getpid()} ms at 0x{os.getpid():x}')")
    policy = script(tmp_path / "s.jsonl", *programs, answer="whole, half or plain")
    report = verify(play(tmp_path / "alike", policy))
    assert (report.verdict, report.not_compared_text) == (Verdict.VERIFIED, "")
    assert report.checks["episodes"].notes == [f"{ENV_ID}: 9 of 9 turns went as there"]
    assert report.task_trust == {(ENV_ID, "whole"): "complete", (ENV_ID, "half"): "partial"}

    policy = script(
        tmp_path / "t.jsonl", "import os; print(os.getpid(), end='')", answer="whole or half"
    )
    report = verify(play(tmp_path / "otherwise", policy))
    assert report.verdict is Verdict.VERIFIED, report.to_json()
    told = "metric process_id; what the env said in 3 of 6 turns"
    assert report.not_compared_text == told
    assert report.to_json()["not_compared"] == {
        ENV_ID: {"metrics": ["process_id"], "num_turns": 6, "num_equal_turns": 3, "num_trust": 0}
    }


def test_what_no_program_decides_refutes(tmp_path: Path, subtests: pytest.Subtests) -> None:
    policy = script(tmp_path / "s.jsonl", "print(1)", answer="whole")
    honest = play(tmp_path / "honest", policy)
    levels = {
        "partial told as complete": (with_reward_field(trust=Trust.COMPLETE), "trust is complete"),
        "a level that the task has not": (
            with_reward_field(trust=Trust.UPSTREAM),
            "trust is upstream",
        ),
    }
    for name, (change, words) in {**REFUTED, **levels}.items():
        with subtests.test(forged=name):
            report = verify(forge(honest, tmp_path / name, change))
            assert report.verdict is Verdict.REFUTED, report.to_json()
            assert any(words in found for found in report.checks["episodes"].refuted)


def test_what_a_program_may_decide_is_named_and_not_believed(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    policy = script(tmp_path / "s.jsonl", "print('two')", answer="whole")
    honest = play(tmp_path / "honest", policy)

    def with_output(rollout: Rollout) -> Rollout:
        (result,) = rollout.turns[0].tool_results
        said = [{**m, "content": "42"} for m in rollout.turns[1].messages]
        told = msgspec.structs.replace(result, content="42")
        return with_turn(with_turn(rollout, 0, tool_results=[told]), 1, messages=said)

    named: dict[str, tuple[Change, str]] = {
        "a metric": (with_metrics(lambda s: {**s, "num_programs": 5.0}), "metric num_programs"),
        "no metrics": (with_metrics(lambda s: {}), "metrics has_run, num_programs, process_id"),
        "a metric that nobody measures": (with_metrics(lambda s: {**s, "iq": 1.0}), "metric iq"),
        "output": (with_output, "what the env said in 3 of 6 turns"),
        "withheld": (with_reward_field(trust=Trust.WITHHELD), "the trust of 3 rewards"),
        "an older record": (with_reward_field(trust=None), "the trust of 2 rewards"),
    }
    for name, (change, words) in named.items():
        with subtests.test(forged=name):
            report = verify(forge(honest, tmp_path / name, change))
            assert (report.verdict, report.not_compared_text) == (Verdict.VERIFIED, words)
    ended = verify(
        forge(honest, tmp_path / "ended", lambda r: replace(r, status=RolloutStatus.TRUNCATED))
    )
    assert ended.verdict is Verdict.INCOMPLETE
    assert ended.not_compared[ENV_ID].metrics == {"has_run", "num_programs", "process_id"}


def test_an_opening_that_a_server_makes_is_not_refuted(tmp_path: Path) -> None:
    class Greeting(Programs):
        has_fixed_opening = False

        def opening(self) -> str:
            return f"{self.task.prompt} {os.urandom(8).hex()}"

    katgym.register("program_test/Greeting-v0", Greeting, should_replace=True)
    policy = script(tmp_path / "s.jsonl", answer="whole")
    folder = play(tmp_path / "run", policy, "program_test/Greeting-v0")
    assert verify(folder).verdict is Verdict.VERIFIED


def test_a_record_without_a_turn_has_its_opening_compared(tmp_path: Path) -> None:
    honest = play(tmp_path / "honest", script(tmp_path / "s.jsonl", answer="whole"))
    told = {"turns": [], "final_messages": [user("Say anything.")]}
    report = verify(forge(honest, tmp_path / "cut", lambda rollout: replace(rollout, **told)))
    assert "final_messages is [{'role': 'user'" in report.checks["episodes"].refuted[0]


# ---- boards


def board(capsys: pytest.CaptureFixture[str], out: Path, *runs: Path, verified: bool = True) -> Any:
    command = ["leaderboard", *map(str, runs), "--out", str(out), "--json"]
    capsys.readouterr()
    assert main([*command, *(["--set", "verify=true"] if verified else [])]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_certified_board_takes_trusted_tasks_and_verified_metrics_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says = script(
        tmp_path / "s.jsonl", "import os; print(os.getpid(), end='')", answer="whole half"
    )
    first = play(tmp_path / "first", says)
    peeks = script(tmp_path / "t.jsonl", answer="peek: whole half plain")
    second = play(tmp_path / "second", peeks)

    plain = board(capsys, tmp_path / "plain", first, second, verified=False)
    assert plain["first"]["envs"][ENV_ID]["trust"] == {"complete": 1, "partial": 1}
    assert plain["second"]["envs"][ENV_ID]["trust"] == {"withheld": 3}
    text = (tmp_path / "plain" / "leaderboard.md").read_text()
    assert "| complete 1, partial 1 | 3 |" in text and "| withheld 3 | 3 |" in text
    assert "trust in 3 verdicts is withheld; half: it opened tests/test\\_words.py." in text
    assert "process\\_id" in text

    found = board(capsys, tmp_path / "certified", first, second)
    assert {name: run["verified"] for name, run in found.items()} == dict.fromkeys(
        ("first", "second"), "rewards; policy"
    )
    env = found["first"]["envs"][ENV_ID]
    assert (env["num_tasks"], env["success_rate"], env["trust"]) == (2, 0.5, {"complete": 1})
    assert "process_id" not in env["components"] and env["components"]["num_programs"]["mean"] == 1
    assert found["second"]["envs"][ENV_ID]["tasks_sha256"] == env["tasks_sha256"]
    for name in ("leaderboard.md", "leaderboard.html"):
        text = (tmp_path / "certified" / name).read_text()
        assert "1 of its 3 tasks are left out, as their trust is not complete (partial 1)." in text
        assert "complete 1" in text and "process_id" not in text.replace("metric process_id", "")

    inflated = with_metrics(lambda scores: {**scores, "num_programs": 900.0})
    found = board(capsys, tmp_path / "forged", forge(first, tmp_path / "inflated", inflated))
    assert found["inflated"]["verified"] == "rewards; policy"
    assert "num_programs" not in found["inflated"]["envs"][ENV_ID]["components"]
    assert "900" not in (tmp_path / "forged" / "leaderboard.md").read_text()


def test_a_run_with_no_trusted_task_is_shown_and_not_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("whole", "plain"):
        monkeypatch.setitem(LEVELS, name, Trust.UPSTREAM)
    run = play(tmp_path / "run", script(tmp_path / "s.jsonl", answer="whole"))
    board(capsys, tmp_path / "board", run)
    text = (tmp_path / "board" / "leaderboard.md").read_text()
    why = "the trust of none of its 3 tasks is complete (partial 1, upstream 2)."
    assert f"run is not ranked: {why}" in text
    assert "### Left out, not ranked" in text and "| – | run |" in text
    assert not (tmp_path / "board" / "every_eval_ever").exists()
    board(capsys, tmp_path / "plain", run, verified=False)
    assert "not ranked" not in (tmp_path / "plain" / "leaderboard.md").read_text()


def test_eval_and_view_tell_the_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = script(tmp_path / "s.jsonl", answer="whole")
    command = ["eval", ENV_ID, "--policy", policy, "--tasks", "3", "--out", str(tmp_path / "run")]
    assert main(command) == 0
    assert f"trust of {ENV_ID}: complete 1, partial 1\n" in capsys.readouterr().out
    assert main(["view", str(tmp_path / "run"), "--task", "half"]) == 0
    assert "trust partial" in capsys.readouterr().out
    assert main(["view", str(tmp_path / "run"), "--html"]) == 0
    pages = "".join(p.read_text() for p in (tmp_path / "run" / "view").rglob("*.*") if p.is_file())
    assert '"trust":"partial"' in pages.replace(" ", "")


# ---- envs that katgym brings


def forged_like_any(honest: Path, folder: Path, subtests: pytest.Subtests) -> None:
    """Forge a run in every way that is refuted, and by a metric in its range."""
    for name, (change, words) in REFUTED.items():
        with subtests.test(forged=name):
            report = verify(forge(honest, folder / name, change))
            assert report.verdict is Verdict.REFUTED, report.to_json()
            assert any(words in found for found in report.checks["episodes"].refuted)


@pytest.mark.slow
def test_runs_of_math_with_programs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    policy = script(tmp_path / "s.jsonl", "print(6 * 7)", answer="It is 7. \\boxed{7}")
    honest = play(tmp_path / "run", policy, "katgym/MathCode-v1", num_tasks=2)
    report = verify(honest)
    assert (report.verdict, report.not_compared_text) == (Verdict.VERIFIED, "")
    forged_like_any(honest, tmp_path, subtests)
    more = with_metrics(lambda scores: {**scores, "programs": 3.0})
    report = verify(forge(honest, tmp_path / "more", more))
    assert (report.verdict, report.not_compared_text) == (Verdict.VERIFIED, "metric programs")


@pytest.mark.slow
def test_runs_of_repairs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    env = "katgym/SWE-v0?tasks=toy"
    split = katgym.make("katgym/SWE-v0", tasks="toy").splits[0]
    honest = play(tmp_path / "run", "oracle", env, num_tasks=1, split=split)
    report = verify(honest)
    assert (report.verdict, report.not_compared_text) == (Verdict.VERIFIED, "")
    forged_like_any(honest, tmp_path, subtests)
    smaller = with_metrics(lambda scores: {**scores, "fail_to_pass_fraction": 0.5})
    report = verify(forge(honest, tmp_path / "smaller", smaller))
    assert report.verdict is Verdict.VERIFIED
    assert report.not_compared_text == "metric fail_to_pass_fraction"
