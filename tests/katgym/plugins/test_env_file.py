"""Envs as plain data, and envs of a Python file: made by its path, known by its hash, run for
nobody else.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import pickle
import sys
from pathlib import Path

import gymnasium
import pytest

import katgym
from katgym.cli.main import main
from katgym.errors import MissingDependencyError, UsageError
from katgym.evaluation.plan import EvalConfig
from katgym.evaluation.run import evaluate
from katgym.evaluation.verification.verify import verify_run
from katgym.play.engine import RolloutEngine, RolloutRequest
from katgym.plugins.env_ref import EnvRef
from katgym.testing import EchoEnv

HUNT = "katgym/TreasureHunt-v1"


def test_a_reference_makes_the_env_again_also_after_it_travelled() -> None:
    ref = EnvRef.of(katgym.make(HUNT, level=3, max_turns=5).clone())
    assert ref == EnvRef(env_id=HUNT, kwargs={"level": 3, "max_turns": 5})
    env = pickle.loads(pickle.dumps(ref)).make()
    assert (env.max_turns, env.init_kwargs["level"]) == (5, 3)


def test_a_request_of_a_reference_plays_what_one_of_the_env_plays() -> None:
    env = katgym.make(HUNT, level=2)
    engine = RolloutEngine(katgym.policy("random"))

    async def play() -> list[list[str]]:
        texts = []
        for told in (env, EnvRef.of(env)):
            requests = [RolloutRequest(env=told, seed=7, attempt=attempt) for attempt in range(3)]
            rollouts = await engine.play_group(requests)
            assert [rollout.attempt for rollout in rollouts] == [0, 1, 2]
            texts.append([str(rollout.messages) for rollout in rollouts])
        return texts

    here, made = asyncio.run(play())
    assert here == made and len(set(here)) > 1


def test_what_only_this_process_has_does_not_travel() -> None:
    with pytest.raises(UsageError, match=r"EchoEnv was made by hand, .* or play without workers"):
        EnvRef.of(EchoEnv())
    katgym.register("mine/Echo-v0", EchoEnv, should_replace=True)
    with pytest.raises(UsageError, match="'mine/Echo-v0' was registered by a script"):
        EnvRef.of(katgym.make("mine/Echo-v0"))
    env = katgym.make(HUNT, scheduler=katgym.SchedulerConfig())
    with pytest.raises(UsageError, match=f"{HUNT!r} has an argument that cannot be sent"):
        EnvRef.of(env)


# ---- files

FILE = '''
from dataclasses import dataclass

import katgym
from neighbour import WORD


@dataclass
class Sum:
    one: int


class Adding(katgym.Env):
    """One and one."""

    default_max_turns = 2

    def __init__(self, level: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.level = level

    def load_tasks(self, split):
        task = katgym.Task(task_id=split, prompt=f"{WORD} {Sum(1).one} + {self.level}?")
        return katgym.TaskSet([task], split=split)

    @katgym.scorer()
    def correct(self) -> bool:
        return self.final_answer == str(1 + self.level)

    def oracle_action(self):
        return str(1 + self.level)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file of envs, and what it imports beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "src" / "envs").mkdir(parents=True)
    (tmp_path / "src" / "envs" / "adding.py").write_text(FILE)
    (tmp_path / "src" / "envs" / "neighbour.py").write_text("WORD = 'What is'\n")
    return tmp_path


ID = "src/envs/adding.py:Adding"


def test_a_file_is_an_env_with_arguments_and_the_hash_of_its_text(folder: Path) -> None:
    env = katgym.make(ID, level=4)
    observation, _ = env.reset(seed=0)
    assert observation[0]["content"] == "What is 1 + 4?"
    assert env.spec is not None and env.spec.id == ID
    assert env.plugin_version == f"sha256:{hashlib.sha256(FILE.encode()).hexdigest()}"
    assert katgym.spec(ID).description == "One and one."
    again = env.spec.make()
    assert isinstance(again, gymnasium.Env) and again.unwrapped.level == 4
    assert again.spec.id == ID
    assert katgym.check_env(ID, budget_s=1, checks=["gymnasium", "oracle", "reset"]).ok


def test_what_is_wrong_with_a_file_is_told(folder: Path, subtests: pytest.Subtests) -> None:
    (folder / "broken.py").write_text("\ndef:\n")
    (folder / "raising.py").write_text("1 / 0\n")
    (folder / "needs.py").write_text("import nobody_has_this\n")
    cases = {
        "src/envs/adding.py": r"names no class of the file: 'src/envs/adding.py:Adding'",
        "src/envs/neighbour.py": "it defines no katgym.Env",
        "src/envs/adding.py:Addin": "Did you mean 'Adding'",
        "src/envs/nowhere.py:Adding": "cannot read 'src/envs/nowhere.py' in .*No such file",
        "src/envs/adding.py:Sum": "makes a katgym.Env, got Sum",
        "broken.py:Env": r"cannot be run: SyntaxError: .*line 2",
        "raising.py:Env": "cannot be run: ZeroDivisionError",
    }
    for name, told in cases.items():
        arguments = {"one": 1} if name.endswith(":Sum") else {}
        with subtests.test(name=name), pytest.raises(UsageError, match=told):
            katgym.make(name, **arguments)
    with pytest.raises(MissingDependencyError, match="nobody_has_this"):
        katgym.make("needs.py:Env")


def test_a_file_that_was_edited_is_run_again_and_refused_where_it_was_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["eval", ID, "--policy", "oracle", "--tasks", "1", "--out", "run"]
    assert main(run) == 0
    ref = pickle.loads(pickle.dumps(EnvRef.of(katgym.make(ID))))
    assert ref.make().spec.id == ID
    file = folder / "src" / "envs" / "adding.py"
    file.write_text(FILE.replace("str(1 + self.level)", "str(2 + self.level)"))
    assert katgym.make(ID).oracle_action() == "3"
    with pytest.raises(UsageError, match=f"the file of env {ID!r} has changed"):
        ref.make()
    capsys.readouterr()
    assert main(run) == 2
    there = hashlib.sha256(FILE.encode()).hexdigest()[:8]
    here = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
    error = capsys.readouterr().err
    assert f"sha256:{there}" in error and f"sha256:{here}" in error


def test_workers_play_a_file(folder: Path) -> None:
    config = EvalConfig(envs=(f"{ID}?level=2",), policy="oracle", num_tasks=1, num_workers=1)
    result = asyncio.run(evaluate(config, folder / "run"))
    assert result.num_finished == 1 and result.summary.envs[ID].mean_reward == 1.0
    (env,) = json.loads((folder / "run" / "lock.json").read_text())["envs"]
    assert (env["env_id"], env["kwargs"]) == (ID, {"level": 2})
    assert env["plugin_version"] == katgym.make(ID).plugin_version


def test_a_run_is_verified_without_running_the_file_it_names(folder: Path) -> None:
    asyncio.run(evaluate(EvalConfig(envs=(ID,), policy="oracle", num_tasks=1), folder / "run"))
    (folder / "src" / "envs" / "adding.py").write_text("open('ran', 'w')\n")
    report = asyncio.run(verify_run(folder / "run"))
    assert "is of a file" in report.checks["plan"].unverified[0]
    assert not (folder / "ran").exists()
