"""Rows have the experts that ran their tokens, where the policy's server told them.

Not here: rows without (`test_rollout_rows.py`), what routers do with them
(`test_routing_replay.py`).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_rollouts import record, rollout_of, turn
from tiny_families import make

from katgym import Rollout, RolloutGroup
from katgym.policies.expert_routes import write_routes
from katgym.rollout_store import RolloutStore, record_rollout
from katgym_trainer import Trainer, read_rollouts, supervised_rows
from katgym_trainer.rollouts.rollout_rows import group_rows, rollout_rows


def routes_of(num_tokens: int, start: int, add: int) -> bytes:
    """Return routes of one layer in which each token's expert is its place, plus a number."""
    places = np.arange(start, start + num_tokens) + add
    return write_routes(places[:, None, None])


def test_rows_have_the_experts_of_the_turns_that_ran_their_tokens() -> None:
    # Turn 2 forks off turn 1's prompt and tells nothing; turn 3 extends it.
    told = [
        turn(record(None, 0, [1, 2], [3], routes=routes_of(2, 0, 10))),
        turn(record(0, 3, [4], [5, 6], routes=routes_of(3, 2, 20))),
        turn(record(1, 3, [7], [8, 9])),
        turn(record(2, 6, [10], [11], routes=routes_of(2, 5, 200))),
    ]
    rollout = rollout_of(*told)
    first, second = group_rows([RolloutGroup(rollouts=[rollout])], "grpo")
    assert first.routes is not None and second.routes is not None
    assert first.routes.experts_TLK[:, 0, 0].tolist() == [10, 11, 22, 23, 24, 0]
    assert first.routes.is_told_T.tolist() == [True] * 5 + [False]
    # The fork's first token was run by nobody who told; the token before it by turn 1.
    assert second.routes.is_told_T.tolist() == [True] * 3 + [False] * 2 + [True] * 2 + [False]
    told_of_second = second.routes.experts_TLK[second.routes.is_told_T, 0, 0]
    assert told_of_second.tolist() == [10, 11, 22, 205, 206]
    assert all(row.routes is None for row in rollout_rows(rollout))
    assert all(row.routes is None for row in supervised_rows([rollout]))
    untold = rollout_of(turn(record(None, 0, [1, 2], [3])))
    assert group_rows([RolloutGroup(rollouts=[untold])], "grpo")[0].routes is None


def test_experts_come_back_from_a_store_and_train(tmp_path: Path) -> None:
    made = []
    for name, reward, last in (("a", 1.0, 5), ("b", 0.0, 6)):
        experts = np.random.default_rng(last).permuted(np.tile(np.arange(4), (4, 2, 1)), axis=2)
        tokens = record(None, 0, [3, 4, 7], [8, last], routes=write_routes(experts[:, :, :2]))
        made.append(rollout_of(turn(tokens), reward=reward, episode_id=name))
    with RolloutStore.open(tmp_path) as store:
        for rollout in made:
            metadata = {"group_size": 2}
            record_rollout(store, rollout, group_id="g", metadata=metadata)
    trainer = Trainer(make("Mixtral"), "grpo", args={"learning_rate": 1e-3, "max_tokens": 50})
    metrics = trainer.step([RolloutGroup(rollouts=list(read_rollouts(tmp_path)))])
    trainer.close()
    assert 0 < metrics["train/route_difference"] <= 1


def test_experts_come_back_from_json() -> None:
    routes = write_routes(np.ones((2, 1, 1), dtype=int))
    for told in (routes, b""):
        rollout = rollout_of(turn(record(None, 0, [1, 2], [3], routes=told)))
        data = json.loads(json.dumps(rollout.to_json()))
        assert ("routes" in data["turns"][0]["tokens"]) == bool(told)
        tokens = Rollout.from_json(data).turns[0].tokens
        assert tokens is not None and tokens.routes == told


def test_turns_of_different_models_are_refused() -> None:
    rollout = rollout_of(
        turn(record(None, 0, [1, 2], [3], routes=write_routes([[[0]], [[1]]]))),
        turn(record(0, 3, [], [4], routes=write_routes([[[0, 1]]]))),
    )
    with pytest.raises(ValueError, match="sampled from different models, of which one is trained"):
        rollout_rows(rollout, should_replay_routes=True)
