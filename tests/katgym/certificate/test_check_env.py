"""`check_env` passes a sound env and names what is wrong with an unsound one."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest

import katgym
from katgym.certificate.certify import CONTRACT, check_env
from katgym.certificate.findings import CheckReport, CheckStatus
from katgym.environment.scheduler import ToolResult
from katgym.errors import UsageError
from katgym.testing import EchoEnv

counter = itertools.count()


class Sound(katgym.Env):
    """One message, one task a word."""

    splits = ("train", "test")

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        return [
            katgym.Task(task_id=f"{split}-{i}", prompt=f"Say {split}{i}.", answer=f"{split}{i}")
            for i in range(30)
        ]

    def oracle_action(self) -> str:
        return str(self.task.answer)

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == self.task.answer


class NoOracle(Sound):
    def oracle_action(self) -> str:
        raise NotImplementedError("nobody knows")


class WrongOracle(Sound):
    def oracle_action(self) -> str:
        return "42"


class PaysNothing(Sound):
    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer in ("", self.task.answer)


class PaysNonsense(Sound):
    @katgym.scorer()
    def correct(self) -> float:
        return 1.0 if self.final_answer == self.task.answer else 0.1 * bool(self.final_answer)


class SilentOpening(Sound):
    def opening(self) -> str:
        return " "


class IgnoresSeed(Sound):
    def opening(self) -> str:
        return f"{self.task.prompt} {next(counter)}"


class SharedIds(Sound):
    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        return [katgym.Task(task_id=f"task-{i}", prompt=split, answer="1") for i in range(3)]


class OtherTasksEachTime(Sound):
    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        return [katgym.Task(task_id=f"{split}-0", prompt=f"{next(counter)}", answer="1")]


class AnyOption(Sound):
    async def areset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return await super().areset(seed=seed)


class UndescribedTool(Sound):
    @katgym.tool
    def look(self) -> str:
        return "nothing"


class BrokenScorer(Sound):
    @katgym.scorer()
    def correct(self) -> bool:
        raise RuntimeError("judge is out")


class NeverEnds(Sound):
    default_max_turns = 10**6

    def reply(self, message: katgym.Message) -> str:
        return "go on"


class ForgetsMessages(Sound):
    async def after_tools(self, results: Sequence[ToolResult]) -> Sequence[katgym.Message]:
        return [r.to_message() for r in results]


def check(env: katgym.Env) -> CheckReport:
    return check_env(env, num_tasks=8, checks=CONTRACT)


def test_a_sound_env_passes_every_check_also_without_an_oracle() -> None:
    for env in (Sound(), EchoEnv()):
        report = check(env)
        assert [c.name for c in report.checks] == list(CONTRACT)
        assert {c.status for c in report.checks} == {CheckStatus.PASSED}, report
        assert report.ok
        report.raise_for_failures()
    # Without an oracle, play is random.
    found = {c.name: str(c.status) for c in check(NoOracle()).checks}
    assert found.pop("oracle") == "skipped"
    assert set(found.values()) == {"passed"}


def test_an_unsound_env_fails_the_check_made_for_it(subtests: pytest.Subtests) -> None:
    episodes = {"oracle", "floor", "determinism", "threads", "reset"}
    cases: list[tuple[type[katgym.Env], set[str], str]] = [
        (WrongOracle, {"oracle"}, "the oracle earns 0, the rubric's maximum is 1"),
        (PaysNothing, {"floor"}, "an empty message earns 1, as much as the solution"),
        (PaysNonsense, {"floor"}, "earns 0.1, an empty message 0"),
        (SilentOpening, {"opening"}, "seed 0: the opening is empty"),
        (
            IgnoresSeed,
            {"determinism", "threads", "reset"},
            "seed 0 gives another episode in a second instance",
        ),
        (SharedIds, {"tasks"}, "task id 'task-0' is in split 'train' and 'test'"),
        (OtherTasksEachTime, {"tasks"}, "'train-0' differs between two instances"),
        (AnyOption, {"options"}, "reset(options={'no_such_option': 1}) raises no UsageError"),
        (UndescribedTool, {"tools"}, "tool 'look' has no description"),
        (ForgetsMessages, {"tools"}, "a call of an unknown tool got 2 results instead of 1"),
        (BrokenScorer, {"gymnasium", *episodes}, ""),
        (NeverEnds, episodes, "has not ended after 1000 steps"),
    ]
    for env_class, failed, detail in cases:
        with subtests.test(env=env_class.__name__):
            report = check(env_class())
            assert {c.name for c in report.failures} == failed, report
            assert detail in report.failures[0].detail
            assert not report.ok
            told = f"{env_class.__name__} fails {len(failed)} check"
            with pytest.raises(AssertionError, match=told):
                report.raise_for_failures()


def test_an_id_and_a_wrapped_env_are_checked_too() -> None:
    env_id = f"ns{uuid.uuid4().hex[:8]}/Sound-v0"
    katgym.register(env_id, Sound)
    report = check_env(env_id, num_tasks=4, checks=CONTRACT, split="test")
    assert (report.env_id, report.ok) == (env_id, True)
    options = next(c for c in report.checks if c.name == "options")
    assert options.detail == "reset options and make arguments"
    assert check_env(gymnasium.make(env_id), num_tasks=4, checks=CONTRACT).env_id == env_id  # type: ignore[arg-type]  # wrapped


def test_wrong_use_is_an_error() -> None:
    with pytest.raises(UsageError, match="num_tasks is >= 1, got 0"):
        check_env(Sound(), num_tasks=0)
    with pytest.raises(UsageError, match=r"arguments \['split'\] apply to an env id, got an env"):
        check_env(Sound(), split="test")
    with pytest.raises(UsageError, match=r"check_env takes a katgym\.Env or an env id"):
        check_env(gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]  # on purpose
