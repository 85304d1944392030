"""Shards are plain Parquet: DuckDB, pandas and `datasets` read them without katgym."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from made_sessions import BRANCHED, FAILED, TWO_ANSWERS, add

from katgym import Reward
from katgym.environment.reward import Component
from katgym.rollout_store import RolloutStore


@pytest.fixture
def folder(store: RolloutStore) -> Path:
    """Two shards, of which one has no branch, no failed call and float64 log-probs."""
    add(store, "s1", BRANCHED, reward=1.0, failed=[FAILED])
    store.seal()
    first = TWO_ANSWERS[0]
    assert first.tokens is not None
    tokens = msgspec.structs.replace(first.tokens, policy_logprobs=[-0.1])
    wide = [msgspec.structs.replace(first, tokens=tokens)]
    reward = Reward(value=0.25, components={"tests": Component(score=0.1)})
    add(store, "s2", wide, reward=reward)
    store.seal()
    return store.finished


def test_duckdb_joins_sessions_and_calls(folder: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb, of extra dev")
    connection = duckdb.connect()
    found = connection.sql(
        f"""
        SELECT r.session_id, r.reward, n.index, n.prompt_ids || n.completion_ids AS token_ids,
               n.loss_mask, n.policy_logprobs, n.versions[1].version, n.branch,
               json_extract_string(n.sampling, '$.seed')
        FROM '{folder}/rollouts-*.parquet' r JOIN '{folder}/turns-*.parquet' n USING (session_id)
        ORDER BY ALL
        """
    ).fetchall()
    assert found == [
        ("s1", 1.0, 0, [1, 2, 3, 4], [False, False, True, True], [-0.375, -0.5], 7, None, "3"),
        ("s1", 1.0, 1, [5, 6, 7], [False, True, True], [-0.75, -0.875], 7, None, "3"),
        ("s1", 1.0, 2, [8, 9], [False, True], [-1.125], 7, "compaction", "3"),
        ("s2", 0.25, 0, [1, 2, 3], [False, False, True], [-0.1], 7, None, "3"),
    ]
    kinds = connection.sql(
        f"SELECT unnest(failed_calls).kind FROM '{folder}/rollouts-*.parquet'"
    ).fetchall()
    assert kinds == [("malformed",)]
    connection.close()


def test_pandas_reads_a_shard(folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    frames = [pandas.read_parquet(path) for path in sorted(folder.glob("turns-*.parquet"))]
    found = pandas.concat(frames).sort_values(["session_id", "index"])
    assert found["prompt_ids"].map(list).tolist() == [[1, 2], [5], [8], [1, 2]]
    assert found["num_prompt_tokens"].tolist() == [2, 5, 3, 2]
    assert json.loads(found["answer"].iloc[1])["content"] == "two"
    assert [dict(span) for span in found["versions"].iloc[1]] == [
        {"version": 7, "start": 0, "end": 1},
        {"version": 8, "start": 1, "end": 2},
    ]


def test_datasets_loads_all_shards(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets, which no extra brings")
    loaded = datasets.load_dataset(
        "parquet",
        data_files=str(folder / "turns-*.parquet"),
        cache_dir=str(tmp_path / "cache"),
        split="train",
    )
    rows = sorted(loaded, key=lambda row: (row["session_id"], row["index"]))
    assert [row["completion_ids"] for row in rows] == [[3, 4], [6, 7], [9], [3]]
    assert [row["loss_mask"] for row in rows][1] == [False, True, True]
    sessions = datasets.load_dataset(
        "parquet",
        data_files=str(folder / "rollouts-*.parquet"),
        cache_dir=str(tmp_path / "cache2"),
        split="train",
    )
    assert sorted(sessions["reward"]) == [0.25, 1.0]
    assert sorted(sessions["reward_components"], key=len)[1] == [{"name": "tests", "value": 0.1}]
