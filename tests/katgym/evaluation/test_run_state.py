"""Runs by their folders: names, listings, how far one is, and the command that goes on with it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from katgym.cli.main import main
from katgym.cli.plan_options import plan_options
from katgym.evaluation.plan import EvalConfig, Plan, env_text, parse_env
from katgym.evaluation.run import evaluate
from katgym.evaluation.run_folders import default_folder, explain_no_run, find_runs
from katgym.evaluation.run_state import RunState, config_of
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.play.limits import Limits
from katgym.policies.base import Sampling

ARITHMETIC = "katgym/Arithmetic-v1?level=1"


def config(**changes: object) -> EvalConfig:
    return EvalConfig(**{"envs": (ARITHMETIC,), "policy": "oracle", "num_tasks": 3, **changes})


@pytest.mark.parametrize(
    "kwargs", [{}, {"level": 3}, {"a": "3", "b": "x y&z", "c": [1, None], "d": True, "e": "true"}]
)
def test_arguments_of_an_env_are_read_back_as_they_are(kwargs: dict[str, object]) -> None:
    assert parse_env(env_text("a/B-v0", kwargs)) == ("a/B-v0", kwargs)


def test_a_folder_is_named_by_the_env_the_policy_and_all_that_is_played() -> None:
    def name(**changes: object) -> str:
        return str(default_folder(Plan.of(config(**changes)), Path("runs")))

    assert name().startswith("runs/Arithmetic-v1-oracle-") and len(name()) == 34
    same = [{}, {"max_concurrency": 3}, {"max_retries": 5}]
    assert {name(**changes) for changes in same} == {name()}
    others = [
        {"num_tasks": 4}, {"seed": 1}, {"group_size": 2}, {"split": "train"}, {"policy": "noop"},
        {"envs": ("katgym/Arithmetic-v1?level=2",)}, {"sampling": Sampling(temperature=0.5)},
        {"limits": Limits(max_turns=2)}, {"policy": "oracle?max_calls=1"},
    ]  # fmt: skip
    assert len({name(), *(name(**changes) for changes in others)}) == 1 + len(others)
    served = name(policy="openai:https://api.example.com/v1#org/model?timeout_s=3")
    assert served.startswith("runs/Arithmetic-v1-openai-org-model-")
    both = name(envs=(ARITHMETIC, "katgym/TreasureHunt-v1"))
    assert both.startswith("runs/Arithmetic-v1+1-oracle-")


def test_the_command_of_a_lock_makes_the_same_configuration(tmp_path: Path) -> None:
    wanted = config(
        envs=(ARITHMETIC, "katgym/TreasureHunt-v1?level=2"), group_size=2, seed=7, split="train",
        sampling=Sampling(temperature=0.5, top_p=0.9), limits=Limits(max_turns=3),
    )  # fmt: skip
    asyncio.run(evaluate(wanted, tmp_path / "run"))
    found = config_of(read_lock(tmp_path / "run"))
    assert found == wanted
    assert plan_options(split="test").arguments(found) == [
        *wanted.envs, "--policy", "oracle", "--tasks", "3", "--group-size", "2", "--seed", "7",
        "--split", "train", "--temperature", "0.5",
        "--set", "sampling.top_p=0.9", "--set", "limits.max_turns=3",
    ]  # fmt: skip


def test_a_state_counts_attempts_and_what_is_invalid(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    asyncio.run(evaluate(config(), folder))
    lock, rollouts = read_lock(folder), read_rollouts(folder)
    whole, half = RunState.of(folder, lock, rollouts), RunState.of(folder, lock, rollouts[:2])
    assert (str(whole), whole.is_finished, whole.missing) == ("finished", True, "")
    assert (str(half), half.is_finished) == ("2 of 3 rollouts have ended", False)


def test_runs_are_found_below_a_folder_and_offered(tmp_path: Path) -> None:
    for name in ("a", "deep/er/b", ".hidden/c", "a/inner"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "lock.json").write_text("{}")
    found = [tmp_path / "a", tmp_path / "deep/er/b"]  # a run has no runs in it
    assert find_runs(tmp_path) == found
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]
    assert explain_no_run(tmp_path / "x").endswith(f"Runs in {str(tmp_path)!r}: {found[0]}")
    assert str(found[1]) in explain_no_run(tmp_path)
    (tmp_path / "none").mkdir()
    assert "`katgym runs` lists" in explain_no_run(tmp_path / "none")


def test_the_list_has_evaluations_training_runs_and_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(evaluate(config(), Path("runs/played")))
    trained = Path("runs/trained")
    (trained / "model").mkdir(parents=True)
    told = {"kind": "rl", "model": {"path": "models/tiny"}, "envs": [{"id": ARITHMETIC}]}
    lock = {"format": 1, "created": "2020-03-01T10:00:00+00:00", "run": told}
    (trained / "lock.json").write_text(json.dumps(lock))
    (trained / "eval.jsonl").write_text('{"success": 0.25}\n{"success": 0.5}\n')
    Path("runs/odd").mkdir()
    Path("runs/odd/lock.json").write_text("[]")
    assert main(["runs", "--json"]) == 0
    rows = {row["folder"]: row for row in json.loads(capsys.readouterr().out)}
    played = rows["runs/played"]
    assert (played["kind"], played["policy"], played["envs"]) == ("eval", "oracle", [ARITHMETIC])
    assert (played["state"], played["success"]) == ("finished", 1.0)
    assert rows["runs/trained"] == {
        "folder": "runs/trained", "kind": "rl", "policy": "models/tiny", "envs": [ARITHMETIC],
        "state": "finished", "success": 0.5, "begun": "2020-03-01T10:00:00+00:00",
    }  # fmt: skip
    assert rows["runs/odd"]["state"].startswith("cannot be read: ")
    assert main(["runs"]) == 0
    first = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert first[:4] == ["run", "runs/played", "runs/trained", "runs/odd"]  # the latest first
