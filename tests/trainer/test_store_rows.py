"""Stored sessions become rows of the trainer, token by token; exported ones are the same rows."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from katgym.rollout_store import RolloutStore, SessionStatus, export, rollout_groups, rollouts
from katgym_trainer import Row
from katgym_trainer.rollouts.rollout_rows import group_rows, rollout_rows

HELPERS = Path(__file__).parents[1] / "katgym/rollout_store/made_sessions.py"


@pytest.fixture(scope="module")
def made() -> Any:
    """The sessions of the store's own tests."""
    spec = importlib.util.spec_from_file_location("made_sessions", HELPERS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("made_sessions", module)
    spec.loader.exec_module(module)
    return module


def values(row: Row) -> tuple[list[int], list[bool], list[float] | None]:
    logprobs = None if row.policy_logprobs is None else row.policy_logprobs.tolist()
    return row.token_ids.tolist(), row.loss_mask.tolist(), logprobs


F, T = False, True
BRANCHED_ROWS = [
    ([1, 2, 3, 4, 5, 6, 7], [F, F, T, T, F, T, T], [0, 0, -0.375, -0.5, 0, -0.75, -0.875]),
    ([1, 2, 8, 9], [F, F, F, T], [0, 0, 0, -1.125]),
]
TWO_ROWS = [
    ([1, 2, 3], [F, F, T], [0, 0, -0.375]),
    ([1, 2, 4, 5], [F, F, T, T], [0, 0, -0.5, -0.625]),
]


def test_rows_of_branches_and_of_several_answers(tmp_path: Path, made: Any) -> None:
    with RolloutStore.open(tmp_path) as store:
        made.add(store, "s1", made.BRANCHED, reward=1.0)
        made.add(store, "s2", made.TWO_ANSWERS, reward=0.0)
        for should_seal in (False, True):
            if should_seal:
                store.seal()
            rows = rollout_rows(rollouts(store, "s1"), advantage=0.5)
            assert [values(row) for row in rows] == BRANCHED_ROWS
            assert {row.rollout for row in rows} == {("s1", "agent")}
            # Node 0 called a tool and got its result: those tokens are kept by pruning.
            assert rows[0].is_kept is not None
            assert rows[0].is_kept.tolist() == [F, F, T, T, F, F, F]
            assert [values(row) for row in rollout_rows(rollouts(store, "s2"))] == TWO_ROWS


def test_failed_sessions_are_in_no_row_and_no_mean(tmp_path: Path, made: Any) -> None:
    with RolloutStore.open(tmp_path) as store:
        made.add(store, "good", made.BRANCHED, reward=1.0)
        made.add(store, "bad", made.TWO_ANSWERS, reward=0.0)
        made.add(store, "failed", made.BRANCHED, status=SessionStatus.FAILED, reward=9.0)
        made.add(store, "silent", made.BRANCHED)
        groups = rollout_groups(store)
        assert [len(group.rollouts) for group in groups] == [4]
        rows = group_rows(groups, "dr_grpo")  # the mean of 1 and 0 is 0.5
        assert {row.rollout: row.advantages[-1] for row in rows} == {
            ("good", "agent"): 0.5,
            ("bad", "agent"): -0.5,
        }


def test_exported_rows_are_the_trainers(tmp_path: Path, made: Any) -> None:
    with RolloutStore.open(tmp_path / "store") as store:
        made.add(store, "s1", made.BRANCHED, reward=1.0)
        made.add(store, "s2", made.TWO_ANSWERS, reward=0.0)
        expected = [r for name in ("s1", "s2") for r in rollout_rows(rollouts(store, name))]
        assert export(store, tmp_path / "rows.jsonl", format="rows") == 4
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    rows = [
        Row(row["token_ids"], row["loss_mask"], row["policy_logprobs"], group=row["group"],
            rollout=(row["rollout"], row["seat"]))
        for row in lines
    ]  # fmt: skip
    for row, other in zip(rows, expected, strict=True):
        assert values(row) == values(other)
        assert row.rollout == other.rollout
        assert np.isfinite(row.advantages).all()
    assert [row["reward"] for row in lines] == [1.0, 1.0, 0.0, 0.0]
