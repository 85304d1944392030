"""A run's folder: identity, torn lines, other configurations, two writers."""

import json
from dataclasses import replace

import pytest

from katgym import testing
from katgym.environment.failure import FailureKind
from katgym.environment.reward import Reward
from katgym.errors import UsageError
from katgym.evaluation.plan import EvalConfig, Plan, PlannedEnv, parse_env
from katgym.evaluation.store import open_run, read_lock, read_rollouts
from katgym.play.engine import RolloutEngine, RolloutRequest
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


def test_a_run_of_an_older_katgym_is_refused(tmp_path):
    plan, folder = make_plan(), tmp_path / "run"
    enter(folder, plan)
    for path in folder.glob("live.sqlite*"):
        path.unlink()
    (folder / "rollouts.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="is a run of an older katgym, which kept its rollouts"):
        enter(folder, plan)


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


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"is not empty and holds no lock\.json"):
        enter(tmp_path, make_plan())
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(UsageError, match="is a file; --out names a folder"):
        enter(tmp_path / "thesis.tex", make_plan())


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


def test_env_arguments_are_json_or_text():
    assert parse_env("a/B-v0") == ("a/B-v0", {})
    assert parse_env("a/B-v0?game=chess&level=3&x=true&y=[1,2]") == (
        "a/B-v0",
        {"game": "chess", "level": 3, "x": True, "y": [1, 2]},
    )
    with pytest.raises(UsageError, match=r"\?name=value&name=value"):
        parse_env("a/B-v0?level")


@pytest.mark.parametrize("field", ["num_tasks", "group_size"])
def test_counts_below_one_are_refused(field):
    with pytest.raises(UsageError, match=f"{field} is >= 1, got 0"):
        EvalConfig(envs=("x",), policy="oracle", **{field: 0})


def test_a_request_of_the_plan_plays_its_task():
    plan = make_plan(num_tasks=2, group_size=1)
    assert [r.task_id for r in play(plan)] == list(plan.envs[0].task_sha256)
    assert isinstance(next(iter(plan.requests())), RolloutRequest)
