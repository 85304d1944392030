"""A run's folder: how a plan is played into it, its identity, its name and how far it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from katgym import InfrastructureError, Rollout, testing
from katgym.cli.main import main
from katgym.cli.plan_options import plan_options
from katgym.environment.failure import FailureKind
from katgym.environment.reward import Reward
from katgym.errors import UsageError
from katgym.evaluation.plan import EvalConfig, Plan, PlannedEnv, env_text, parse_env, rollout_key
from katgym.evaluation.playing import play_missing
from katgym.evaluation.run import evaluate
from katgym.evaluation.run_folders import default_folder, explain_no_run, find_runs
from katgym.evaluation.run_state import RunState, config_of
from katgym.evaluation.store import open_run, read_lock, read_rollouts
from katgym.play.engine import RolloutEngine, RolloutRequest
from katgym.play.limits import Limits
from katgym.policies.base import Sampling
from katgym.policies.uri import policy
from katgym.system.sync import run_sync


def make_plan(num_tasks=3, group_size=2, seed=0):
    env = testing.EchoEnv()
    tasks = {t.task_id: t.sha256 for t in env.tasks("test")[:num_tasks]}
    config = EvalConfig(envs=("EchoEnv",), policy="oracle", group_size=group_size, seed=seed)
    return Plan(config, (PlannedEnv(env, "EchoEnv", {}, tasks),))


def play(plan):
    async def run():
        engine = RolloutEngine(testing.ScriptedPolicy(["hello", "bye"]))
        return [r async for _, r in engine.run(plan.requests())]

    return run_sync(run())


def enter(folder, plan, policy=None):
    with open_run(folder, plan, policy or {}):
        pass


def test_a_plan_is_the_same_twice_and_attempts_share_the_seed():
    first, second = list(make_plan().requests()), list(make_plan().requests())
    assert [(r.key, r.seed) for r in first] == [(r.key, r.seed) for r in second]
    assert len(first) == len(make_plan()) == 6
    assert first[0].seed == first[1].seed != first[2].seed
    assert [r.attempt for r in first] == [0, 1, 0, 1, 0, 1]
    plan = make_plan(num_tasks=2, group_size=1)
    assert [r.task_id for r in play(plan)] == list(plan.envs[0].task_sha256)
    assert isinstance(next(iter(plan.requests())), RolloutRequest)
    for field in ("num_tasks", "group_size"):
        with pytest.raises(UsageError, match=f"{field} is >= 1, got 0"):
            EvalConfig(envs=("x",), policy="oracle", **{field: 0})


def test_appended_rollouts_are_on_disk_and_resumed(tmp_path):
    plan = make_plan()
    rollouts = play(plan)
    with open_run(tmp_path / "run", plan, {}) as store:
        store.append(rollouts[:4])
    with open_run(tmp_path / "run", plan, {}) as store:
        assert store.num_resumed == 4
        missing = [r.key for r in plan.requests() if r.key not in store.done]
        assert len(missing) == 2
    found = read_rollouts(tmp_path / "run")
    assert [r.episode_id for r in found] == [r.episode_id for r in rollouts[:4]]


def test_another_configuration_is_refused_and_says_what_differs(tmp_path):
    folder = tmp_path / "run"
    with open_run(folder, make_plan(seed=0), {}) as store:
        store.append(play(make_plan())[:1])
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    with pytest.raises(UsageError) as error:
        enter(folder, make_plan(seed=1))
    assert "another configuration (seed: there 0, here 1)" in str(error.value)
    assert "--out" in str(error.value)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_a_folder_that_is_no_run_or_of_an_older_katgym_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"is not empty and holds no lock\.json"):
        enter(tmp_path, make_plan())
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(UsageError, match="is a file; --out names a folder"):
        enter(tmp_path / "thesis.tex", make_plan())
    plan, folder = make_plan(), tmp_path / "run"
    enter(folder, plan)
    for path in folder.glob("live.sqlite*"):
        path.unlink()
    (folder / "rollouts.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="is a run of an older katgym"):
        enter(folder, plan)


def test_two_writers_are_kept_apart(tmp_path):
    busy = pytest.raises(UsageError, match="another process is writing")
    with open_run(tmp_path / "run", make_plan(), {}), busy:
        enter(tmp_path / "run", make_plan())
    enter(tmp_path / "run", make_plan())


def test_failures_are_kept_and_count_until_played(tmp_path):
    plan, folder = make_plan(), tmp_path / "run"
    good, other = play(plan)[:2]
    reward = Reward.invalid(FailureKind.POLICY_UNAVAILABLE, "down")
    bad = replace(other, reward=reward, failure_kind=FailureKind.POLICY_UNAVAILABLE)
    with open_run(folder, plan, {}) as store:
        store.append([good, bad, bad])
        assert len(store.done) == 1
    assert [rollout.reward.is_valid for rollout in read_rollouts(folder)] == [True, False]
    with open_run(folder, plan, {}) as store:
        store.append([replace(other, episode_id="again")])
    assert [rollout.reward.is_valid for rollout in read_rollouts(folder)] == [True, True]


def test_lock_holds_what_defines_the_run(tmp_path):
    plan = make_plan()
    enter(tmp_path / "run", plan, {"model": "m"})
    lock = read_lock(tmp_path / "run")
    assert lock["envs"][0]["tasks"] == dict(plan.envs[0].task_sha256)
    assert [t["function"]["name"] for t in lock["envs"][0]["tools"]] == ["echo", "note"]
    assert lock["policy_details"] == {"model": "m"}
    assert {"katgym_version", "git", "sampling", "python", "seed"} <= set(lock)
    (tmp_path / "run" / "lock.json").write_text(json.dumps({**lock, "format": 99}))
    with pytest.raises(UsageError, match="has format 99; this katgym reads 1"):
        read_lock(tmp_path / "run")


# ---- playing what is missing


CONFIG = EvalConfig(
    envs=("katgym/Arithmetic-v1?level=1",), policy="oracle", num_tasks=40, max_concurrency=2
)


class Sink:
    """Keeps rollouts; raises `error` at write number `failing`."""

    def __init__(self, *, failing: int = 10**9, error: Exception | None = None) -> None:
        self.failing = failing
        self.error = error or InfrastructureError("the disk is full")
        self.done: set[str] = set()
        self.rollouts: list[Rollout] = []
        self.num_writes = 0

    def append(self, rollouts: Sequence[Rollout]) -> None:
        self.num_writes += 1
        if self.num_writes >= self.failing:
            raise self.error
        self.rollouts += rollouts


def play_into(sink: Sink) -> list[str]:
    """Play, and return the keys that were notified of."""
    told: list[str] = []

    def notify(rollout: Rollout) -> None:
        told.append(rollout_key(rollout.env_id, rollout.task_id, rollout.attempt))

    asyncio.run(play_missing(Plan.of(CONFIG), policy("oracle"), sink, notify))
    return told


def test_what_is_missing_is_played_and_told_once_it_is_written() -> None:
    sink = Sink()
    keys = [request.key for request in Plan.of(CONFIG).requests()]
    sink.done = set(keys[::2])
    told = play_into(sink)
    assert sorted(told) == sorted(keys[1::2])
    assert len(sink.rollouts) == 20
    whole = Sink()
    whole.done = set(keys)
    assert (play_into(whole), whole.num_writes) == ([], 0)


@pytest.mark.parametrize("error", [InfrastructureError("the disk is full"), TypeError("no JSON")])
def test_a_write_that_fails_stops_the_playing_with_its_reason(error: Exception) -> None:
    sink = Sink(failing=2, error=error)
    with pytest.raises(type(error), match=str(error)):
        play_into(sink)
    assert sink.num_writes == 2
    assert len(sink.rollouts) < 40


# ---- names, listings, how far a run is, and the command that goes on with it


ARITHMETIC = "katgym/Arithmetic-v1?level=1"


def config(**changes: object) -> EvalConfig:
    return EvalConfig(**{"envs": (ARITHMETIC,), "policy": "oracle", "num_tasks": 3, **changes})


def test_arguments_of_an_env_are_json_or_text_and_read_back_as_they_are() -> None:
    assert parse_env("a/B-v0?game=chess&level=3&x=true&y=[1,2]") == (
        "a/B-v0",
        {"game": "chess", "level": 3, "x": True, "y": [1, 2]},
    )
    told = {"a": "3", "b": "x y&z", "c": [1, None], "d": True, "e": "true"}
    for kwargs in ({}, {"level": 3}, told):
        assert parse_env(env_text("a/B-v0", kwargs)) == ("a/B-v0", kwargs)
    with pytest.raises(UsageError, match=r"\?name=value&name=value"):
        parse_env("a/B-v0?level")


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


def test_the_command_of_a_lock_makes_the_same_configuration_and_a_state_counts(
    tmp_path: Path,
) -> None:
    folder, wanted = tmp_path / "run", config(
        envs=(ARITHMETIC, "katgym/TreasureHunt-v1?level=2"), group_size=2, seed=7, split="train",
        sampling=Sampling(temperature=0.5, top_p=0.9), limits=Limits(max_turns=3),
    )  # fmt: skip
    asyncio.run(evaluate(wanted, folder))
    lock, rollouts = read_lock(folder), read_rollouts(folder)
    assert config_of(lock) == wanted
    assert plan_options(split="test").arguments(config_of(lock)) == [
        *wanted.envs, "--policy", "oracle", "--tasks", "3", "--group-size", "2", "--seed", "7",
        "--split", "train", "--temperature", "0.5",
        "--set", "sampling.top_p=0.9", "--set", "limits.max_turns=3",
    ]  # fmt: skip
    whole, half = RunState.of(folder, lock, rollouts), RunState.of(folder, lock, rollouts[:2])
    assert (str(whole), whole.is_finished, whole.missing) == ("finished", True, "")
    assert (str(half), half.is_finished) == ("2 of 12 rollouts have ended", False)


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
