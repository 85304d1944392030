"""Folders of evaluations, training runs and stores are read as groups, curves and checkpoints."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from made_hunts import ENV_ID, Words, made_group
from made_runs import add_session, write_evaluation, write_training, write_training_lock

from katgym import UsageError
from katgym.evaluation.statistics.intervals import Interval
from katgym.evaluation.store import read_rollouts
from katgym.rollout_store import RolloutStore, SessionRecord, record_rollout
from katgym.rollout_store.records import reward_value
from katgym.run_view import GroupView, RolloutView, RunKind, Selection, read_run, write_pages
from katgym.run_view.reading.selection import choose
from katgym.run_view.run_view import GroupHead


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = Words()
    rollouts = [r for task in range(3) for r in made_group(words.encode, task)]
    folder = tmp_path_factory.mktemp("runs") / "hunt"
    return write_evaluation(folder, rollouts, num_tasks=3)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "grpo"
    return write_training(folder, Words().encode, num_steps=4, num_groups=5)


def test_an_evaluation_becomes_groups_of_siblings_with_their_numbers(evaluation: Path):
    view = read_run(evaluation)
    lines = read_rollouts(evaluation)
    assert (view.name, view.kind, view.num_groups) == ("hunt", RunKind.EVALUATION, 3)
    assert [len(group.rollouts) for group in view.groups] == [6, 6, 6]
    group = view.groups[0]
    own = [line for line in lines if line.task_id == group.task_id]
    values = [r.reward.value for r in own if r.reward.value is not None]
    assert group.num_invalid == 6 - len(values) == 1  # attempt 5 of task 0
    assert group.mean_reward == sum(values) / len(values) == group.pass_rate
    assert group.rollouts[2].rollout.attempt == 2
    assert dict(view.facts)["envs"] == f"{ENV_ID}?level=3"
    assert view.checkpoints[0].num_rollouts == 18
    assert "1 of 18 rollouts have no valid reward and are in no mean." in view.notes


def test_a_training_run_becomes_curves_checkpoints_and_groups(training: Path):
    view = read_run(training)
    assert (view.kind, view.num_groups) == (RunKind.TRAINING, 20)
    assert [group.step for group in view.groups] == [4] * 5 + [3] * 5 + [2] * 5 + [1] * 5
    panels = {panel.title: panel for panel in view.panels}
    assert list(panels)[:4] == ["Reward", "Success", "Turns", "Tool calls"]
    assert panels["Loss"].series[0].points[0][0] == 1
    time = panels["Time of a step"]
    assert [series.name for series in time.series] == [
        "wait", "forward_backward", "sync", "other",
    ]  # fmt: skip
    assert time.series[-1].points[0][1] == pytest.approx(0.6)
    lines = [json.loads(s) for s in (training / "metrics.jsonl").read_text().splitlines()]
    whole = sum(series.points[2][1] for series in time.series)
    assert whole == pytest.approx(lines[2]["time/total_s"])
    folded = [panel.title for panel in view.panels if not panel.is_main]
    assert folded == ["time/probe_s", "time/step_s", "train/learning_rate", "train/por"]
    assert [(c.step, round(c.success, 2)) for c in view.checkpoints][:2] == [(0, 0.18), (1, 0.38)]
    points = [point for panel in view.panels for one in panel.series for point in one.points]
    assert points and all(math.isfinite(x) and math.isfinite(y) for x, y in points)
    # The reward has the interval of the rollouts that are kept.
    (series,) = view.panels[0].series
    assert [x for x, _ in series.points] == [1, 2, 3, 4]
    with RolloutStore.open(training / "rollouts", create=False) as store:
        rewards = [
            reward_value(r)
            for r in store.sessions()
            if r.metadata["step"] == 3 and reward_value(r) is not None
        ]
    assert series.points[2][1] == pytest.approx(sum(rewards) / len(rewards))
    band = next(band for band in series.bands if band.x == 3)
    assert band.low < series.points[2][1] < band.high


@pytest.mark.slow
def test_a_checkpoint_of_an_env_headed_by_the_mean_reward_has_its_interval(
    training: Path, tmp_path: Path
):
    shutil.copytree(training, tmp_path / "run")
    line = {
        "step": 4, "env": "x/Game-v0", "headline": "mean_reward", "success": 0.25, "low": 0.1,
        "high": 0.4, "reward": 0.5, "reward_low": 0.45, "reward_high": 0.55,
    }  # fmt: skip
    (tmp_path / "run" / "eval.jsonl").write_text(json.dumps(line) + "\n")
    view = read_run(tmp_path / "run")
    (found,) = view.checkpoints
    assert (found.headline, found.mean_reward) == ("mean_reward", 0.5)
    assert found.interval == Interval(low=0.45, high=0.55)
    (success,) = [panel for panel in view.panels if panel.title == "Success"]
    assert success.series[0].points == [(4, 0.25)]
    assert success.series[0].bands == []
    page = (write_pages(view, tmp_path / "pages")).read_text()
    assert 'aria-label="mean reward 0.500, interval 0.45 to 0.55"' in page


def test_advantages_are_those_of_the_store_or_rewards_less_the_mean_of_valid_ones(
    training: Path, evaluation: Path
):
    told = read_run(training).groups[0]
    assert told.has_advantages
    place = next(i for i, r in enumerate(told.rollouts) if r.reward is not None)
    value = told.rollouts[place].reward
    assert value is not None and told.mean_reward is not None
    assert told.advantage(place) == told.rollouts[place].advantage
    assert told.advantage(place) == pytest.approx(value - told.mean_reward)
    untold = read_run(evaluation).groups[0]
    assert not untold.has_advantages
    assert untold.advantage(5) is None  # the broken one
    assert sum(untold.advantage(i) or 0.0 for i in range(5)) == pytest.approx(0.0)
    valid = [r.rollout for r in untold.rollouts if r.rollout.reward.is_valid]
    assert untold.mean_of("num_turns") == sum(r.num_turns for r in valid) / 5
    nobody = GroupView(
        group_id="g", env_id="e", task_id="t",
        rollouts=[RolloutView(rollout=untold.rollouts[5].rollout)],
    )  # fmt: skip
    assert (nobody.mean_reward, nobody.pass_rate, nobody.mean_of("num_turns")) == (None, None, None)
    assert not nobody.is_mixed


def test_a_run_that_has_only_begun_says_what_is_missing(tmp_path: Path):
    view = read_run(write_training_lock(tmp_path / "new"))
    assert (list(view.groups), view.panels, view.num_groups) == ([], [], 0)
    assert view.notes == [
        "No step is finished yet: metrics.jsonl is missing or empty.",
        "No rollouts are kept: the run has no store in its folder 'rollouts' yet.",
        "No checkpoint is evaluated yet: eval.jsonl is missing or empty.",
    ]
    empty = read_run(write_evaluation(tmp_path / "empty", [], is_finished=False))
    assert (empty.groups, empty.panels) == ([], [])
    assert empty.notes == ["No rollout is finished yet."]


def test_half_written_and_broken_lines_are_left_out(tmp_path: Path):
    folder = write_training_lock(tmp_path / "run")
    lines = ['{"step": 1, "train/loss": 2.0}', '{"step": 2, "tra', "[1]", '{"step": "x"}',
             '{"step": 3, "train/loss": null, "train/entropy": NaN, "is_on": true}',
             '{"step": 1, "train/loss": 1.5}', '{"step": 4, "train/lo']  # fmt: skip
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    (folder / "eval.jsonl").write_text('{"step": 2, "env": "e", "success": 0.5}\n{"step": 3}\n')
    view = read_run(folder)
    assert [panel.title for panel in view.panels] == ["Success", "Loss"]
    assert view.panels[1].series[0].points == [(1, 1.5)]
    assert [(c.step, c.interval) for c in view.checkpoints] == [(2, None)]
    assert "3 lines of metrics.jsonl and eval.jsonl cannot be read and are left out." in view.notes


def test_an_evaluation_that_goes_on_says_how_far_it_is(tmp_path: Path):
    rollouts = made_group(Words().encode, 1)
    folder = write_evaluation(tmp_path / "run", rollouts[:4], is_finished=False)
    view = read_run(folder)
    assert len(view.groups[0].rollouts) == 4
    assert "4 of 12 rollouts are there: the run is going on or was interrupted." in view.notes


def test_a_rollout_store_of_its_own_has_groups_alone(training: Path):
    view = read_run(training / "rollouts", Selection(limit=2))
    assert (view.kind, len(view.groups), view.num_groups) == (RunKind.STORE, 2, 20)
    assert view.panels == () and view.groups[0].step == 4


def test_sessions_that_are_still_open_have_no_reward_yet(tmp_path: Path):
    folder = write_training_lock(tmp_path / "run")
    group = made_group(Words().encode, 1, group_size=2)
    with RolloutStore.open(folder / "rollouts") as store:
        for rollout in group:
            add_session(store, rollout, step=1, group=group)
        store.create_session(
            SessionRecord(session_id="open", group_id=f"step1-{group[0].task_id}", created_s=2e9)
        )
    view = read_run(folder)
    assert [r.reward is None for r in view.groups[0].rollouts].count(True) == 1
    assert "1 of 1 groups have rollouts that are still open." in view.notes


def test_folders_that_are_no_run_are_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"holds no lock\.json, so it is no run"):
        read_run(tmp_path)
    with pytest.raises(UsageError, match="is not a folder; name the folder of a run"):
        read_run(tmp_path / "missing")
    (tmp_path / "lock.json").write_text('{"format": 9}')
    with pytest.raises(UsageError, match="has format 9"):
        read_run(tmp_path)


def test_what_is_asked_for_and_not_there_is_named(training: Path):
    assert [g.step for g in read_run(training, Selection(step=2)).groups] == [2] * 5
    one = read_run(training, Selection(group_id="step3-L3-train-000003"))
    assert [g.group_id for g in one.groups] == ["step3-L3-train-000003"]
    with pytest.raises(UsageError, match="no group is of step 9; the run has steps 1 to 4"):
        read_run(training, Selection(step=9))
    with pytest.raises(UsageError, match=r"unknown group 'step3-L3-train-00003'. Did you mean"):
        read_run(training, Selection(group_id="step3-L3-train-00003"))
    with pytest.raises(UsageError, match="no group of this run is as asked for; leave out one"):
        read_run(training, Selection(env_id="katgym/Else-v0"))
    with pytest.raises(UsageError, match=r"--limit is a number of groups >= 1, got 0"):
        Selection(limit=0)


def test_above_the_limit_the_newest_the_best_and_the_worst_are_kept():
    heads = [
        GroupHead(
            group_id=f"g{i}", env_id="e", task_id="t", step=i, num_invalid=0,
            mean_reward={3: 1.0, 5: 0.0}.get(i, 0.5),
        )
        for i in range(40)
    ]  # fmt: skip
    chosen = choose(heads, Selection(limit=8))
    assert len(chosen) == 8
    assert [head.step for head in chosen][:4] == [39, 38, 37, 36]
    assert {3, 5} <= {head.step for head in chosen}
    assert choose(heads, Selection(limit=1)) == [heads[39]]
    assert choose([], Selection()) == []


def test_sealed_rollouts_are_read_like_live_ones(tmp_path: Path):
    pytest.importorskip("pyarrow", reason="sealing needs pyarrow")
    folder = write_training(tmp_path / "run", Words().encode, num_steps=9, num_groups=1)
    live = {limit: read_run(folder, Selection(limit=limit)) for limit in (1, 200)}
    with RolloutStore.open(folder / "rollouts") as store:
        store.seal()
    for limit, before in live.items():
        sealed = read_run(folder, Selection(limit=limit))
        assert len(sealed.groups) == min(limit, 9)
        assert [g.group_id for g in sealed.groups] == [g.group_id for g in before.groups]
        assert sealed.groups[0].rewards == before.groups[0].rewards
        turns = [view.groups[0].rollouts[2].rollout.turns for view in (sealed, before)]
        assert turns[0] == turns[1]


def test_held_out_and_refused_groups_are_told_apart_and_in_no_curve_of_training(tmp_path: Path):
    folder = write_training(tmp_path / "run", Words().encode, num_steps=2, num_groups=1)
    with RolloutStore.open(folder / "rollouts") as store:
        for rollout in made_group(Words().encode, 50, group_size=3, skill=1.0):
            held_out = {"step": 2, "is_held_out": True}
            name = f"eval-2-{rollout.task_id}"
            record_rollout(store, rollout, group_id=name, metadata=held_out)
        for rollout in made_group(Words().encode, 60, group_size=3, skill=1.0):
            refused = {"step": 1, "is_refused": True}
            record_rollout(store, rollout, group_id="refused", metadata=refused)
    view = read_run(folder)
    found = [(group.step, group.is_held_out, group.untrained) for group in view.groups]
    assert found[:2] == [(2, False, ""), (2, True, "held out")]
    assert sorted(found[2:]) == [(1, False, ""), (1, False, "refused")]
    trained = [g for g in view.groups if not g.is_held_out and not g.untrained]
    points = view.panels[0].series[0].points
    assert points == [(g.step, pytest.approx(g.mean_reward)) for g in reversed(trained)]
    assert not any(g.is_held_out for g in read_run(folder, Selection(limit=2)).groups)
    write_pages(view, tmp_path / "pages")
    assert '"untrained":"refused"' in (tmp_path / "pages" / "list.js").read_text()
