"""The benchmark of branches trains on the paths that compaction makes, and its variants differ."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from branch_ablations import FIRST, VARIANTS, Loop, Size, chosen_rows, of_seed
from compacted_sums import (
    END,
    LENGTHS,
    MAX_NUMBER,
    NUMBERS_PER_PATH,
    PLUS,
    SUM,
    SYSTEM,
    drawn_tasks,
    make_model,
    sampled_groups,
    success,
    taught_rollout,
)

from katgym import Reward
from katgym.play.rollout import RolloutGroup
from katgym_trainer import rollout_rows

SIZE = Size(
    steps=1, groups=2, group_size=3, imitation_steps=1, forgets=0.7, held_out=5, tasks=40,
    timed_steps=1,
)  # fmt: skip


def made_groups(num: int = 2) -> list[RolloutGroup]:
    """Return sampled groups in which every other rollout has a reward."""
    groups = sampled_groups(
        make_model(0, hidden=32), [(4, 5, 3, 5, 4), (1, 2, 3)][:num],
        group_size=4, rng=torch.Generator().manual_seed(0),
    )  # fmt: skip
    return [
        RolloutGroup(
            rollouts=[
                dataclasses.replace(rollout, reward=Reward(value=float(number % 2)))
                for number, rollout in enumerate(group.rollouts)
            ]
        )
        for group in groups
    ]


def test_paths_are_what_compaction_makes() -> None:
    rollout = taught_rollout((4, 5, 3, 5, 4), "r", forgets=0.0, rng=random.Random(0))
    paths = rollout.trajectories()
    assert [path.token_ids for path in paths] == [
        [*SYSTEM, PLUS, 4, 4, END, PLUS, 5, 9, END],
        [*SYSTEM, SUM, 9, END, PLUS, 3, 1, 2, END, PLUS, 5, 1, 7, END],
        [*SYSTEM, SUM, 1, 7, END, PLUS, 4, 2, 1, END],
    ]
    written = [
        [t for t, is_sampled in zip(path.token_ids, path.loss_mask, strict=True) if is_sampled]
        for path in paths
    ]
    assert written == [[4, END, 9, END], [1, 2, END, 1, 7, END], [2, 1, END]]
    assert rollout.reward.value == 1.0


def test_carries_stand_on_the_longest_path_more_often_than_on_the_last() -> None:
    on: dict[str, list[bool]] = {"longest": [], "last": []}
    for task in drawn_tasks(2500, random.Random(0)):
        rollout = taught_rollout(task, "r", forgets=0.0, rng=random.Random(0))
        lengths = [len(path.token_ids) for path in rollout.trajectories()]
        total = 0
        for place, number in enumerate(task):
            if total % 10 + number >= 10:
                path = place // NUMBERS_PER_PATH
                on["longest"].append(path == lengths.index(max(lengths)))
                on["last"].append(path == len(lengths) - 1)
            total += number
    shares = {name: sum(found) / len(found) for name, found in on.items()}
    assert shares == pytest.approx({"longest": 0.77, "last": 0.39}, abs=0.005)  # as its header says


def test_a_wrong_summary_is_gone_on_from() -> None:
    rollout = taught_rollout((4, 5, 3, 5, 4), "r", forgets=1.0, rng=random.Random(0))
    assert rollout.trajectories()[2].token_ids == [*SYSTEM, SUM, 7, END, PLUS, 4, 1, END]
    assert rollout.reward.value == 0.0


def test_sampled_rollouts_have_the_models_log_probs() -> None:
    model = make_model(0, hidden=32)
    rollouts = [rollout for group in made_groups() for rollout in group.rollouts]
    assert {len(rollout.trajectories()) for rollout in rollouts} == {2, 3}
    for row in (row for rollout in rollouts for row in rollout_rows(rollout)):
        ids = torch.tensor(row.token_ids)
        with torch.no_grad():
            logp = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        found = logp.gather(1, ids[1:, None])[:, 0].double().numpy()
        trained = row.loss_mask[1:]
        assert found[trained] == pytest.approx(row.policy_logprobs[1:][trained], abs=1e-5)


def test_variants_choose_paths() -> None:
    groups = made_groups()
    rows = {paths: chosen_rows(groups, paths) for paths in ("all", "longest", "last")}
    paths = [r.trajectories() for group in groups for r in group.rollouts]
    assert [len(found) for found in rows.values()] == [4 * 3 + 4 * 2, 8, 8]
    longest = [max(len(path.token_ids) for path in found) for found in paths]
    assert [len(row) for row in rows["longest"]] == longest
    last = [found[-1].token_ids for found in paths]
    assert [row.token_ids.tolist() for row in rows["last"]] == last
    trained = {name: sum(row.num_trained for row in found) for name, found in rows.items()}
    assert trained["last"] < trained["longest"] < trained["all"]
    assert {row.rollout: row.advantages[0] for row in rows["all"]} == {
        row.rollout: row.advantages[0] for row in rows["last"]
    }


@pytest.mark.parametrize("mode", ["best", "sample"])
def test_pruning_cuts_something(mode: str) -> None:
    name = next(n for n, v in VARIANTS.items() if v.args.get("pruning") == mode)
    steps = {}
    for each in (FIRST, name):
        loop = Loop.of(
            make_model(0, hidden=32), VARIANTS[each], [], SIZE, seed=0, budget=90
        )  # fmt: skip
        steps[each] = loop.trainer.step_rows(chosen_rows(made_groups(), "all"))
        loop.trainer.close()
    assert steps[FIRST]["train/num_tokens"] > 90
    assert steps[name]["train/kept_tokens"] < 1
    assert steps[name]["train/num_trained_tokens"] < steps[FIRST]["train/num_trained_tokens"]
    if mode == "best":
        assert steps[name]["train/num_tokens"] <= 90


@pytest.mark.slow
def test_a_seed_has_a_row_of_each_variant_from_one_start() -> None:
    rows = of_seed(0, SIZE)
    assert [row["variant"] for row in rows] == list(VARIANTS)
    assert len({(row["accuracy_start"], row["sampled_start"]) for row in rows}) == 1
    assert len({row["num_paths"] for row in rows}) == 1  # the same tasks
    assert len({row["mean_reward"] for row in rows}) == 1  # the first step is the same


def test_tasks_differ_and_a_new_model_solves_none() -> None:
    tasks = drawn_tasks(50, random.Random(0))
    assert len(set(tasks)) == 50
    assert {len(task) for task in tasks} == set(LENGTHS)
    assert {number for task in tasks for number in task} == set(range(1, MAX_NUMBER + 1))
    assert success(make_model(0, hidden=32), tasks, rng=None) == 0.0
