"""Training on a rollout store: what was collected is read by group, sealed or not, and trained.

Not here: run folders and files (`test_training_data.py`); rows of one session
(`test_store_rows.py`).
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer
from made_rollouts import short_rollout
from tiny_qwen import tiny_qwen

from katgym.cli.main import main
from katgym.environment.reward import Reward
from katgym.errors import UsageError
from katgym.policies.rendering.chatml_renderer import ChatMLRenderer
from katgym.rollout_store import RolloutStore, record_rollout, rollouts, stored_groups
from katgym_trainer import group_rows, read_rollouts
from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig
from katgym_trainer.runs.training_data import Source, TrainingData

ARITHMETIC = "katgym/Arithmetic-v1?level=1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two groups whose rollouts ended in turns, one of them without a valid reward."""
    folder = tmp_path / "store"
    with RolloutStore.open(folder) as opened:
        for name, group, attempt, reward in (
            ("b1", "b", 1, 0.0), ("a0", "a", 0, 1.0), ("b0", "b", 0, 1.0), ("a1", "a", 1, None),
        ):  # fmt: skip
            tokens = range(10, 13 + attempt)
            made = short_rollout(name, reward, *tokens, task_id=group, attempt=attempt)
            record_rollout(opened, made, group_id=group, metadata={"group_size": 2})
    return folder


def read(store: Path, kind: TrainKind = TrainKind.SFT) -> TrainingData:
    config = TrainRunConfig.of(
        {"model": {"path": "m"}, "data": {"rollouts": ["a"]}}, kind=kind, name="a"
    )
    source = Source(path=store, name="store", is_teacher=False)
    return TrainingData.read(config, ChatMLRenderer(byte_tokenizer()), sources=[source])


def test_rollouts_come_group_by_group_with_their_tools(store: Path) -> None:
    assert [rollout.episode_id for rollout in read_rollouts(store)] == ["a0", "a1", "b0", "b1"]
    data = read(store)
    assert [(example.task[1], example.reward) for example in data.examples] == [
        ("a", 1.0), ("b", 1.0), ("b", 0.0),
    ]  # fmt: skip
    assert data.num_left_out == {"no valid reward": 1}
    assert data.rows([2])[0].token_ids.tolist() == [1, 2, 10, 11, 12, 13]
    assert read(store, TrainKind.RFT).num_left_out == {"no valid reward": 1, "reward too low": 1}


def test_sealing_changes_no_identity_and_new_rollouts_and_rewards_do(store: Path) -> None:
    before = read(store).identity()
    with RolloutStore.open(store) as opened:
        opened.update_session("b1", reward=Reward(value=0.5))
        changed = read(store).identity()
        opened.seal()
    assert read(store).identity() == changed
    assert changed["rows_sha256"] == before["rows_sha256"]
    assert changed["sources"] != before["sources"]
    with RolloutStore.open(store) as opened:
        record_rollout(opened, short_rollout("c", 1.0, 9))
    assert read(store).identity()["rows_sha256"] != before["rows_sha256"]


def test_a_store_that_cannot_be_read_is_named(store: Path) -> None:
    connection = sqlite3.connect(store / "live.sqlite")
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(UsageError, match=r"\[data\] 'store': .* was written by an older katgym"):
        read(store)


def test_a_group_of_the_store_has_the_advantages_of_its_rewards(store: Path) -> None:
    with RolloutStore.open(store) as opened:
        groups = dict(stored_groups(opened))
    rows = {row.rollout: row.advantages[-1] for row in group_rows([groups["b"]], "dr_grpo")}
    assert rows == {("b0", "player"): 0.5, ("b1", "player"): -0.5}


CONFIG = """
[model]
path = "{model}"

[data]
rollouts = ["{collected}"]
teachers = ["{teachers}"]

[train]
num_steps = 2
batch_rollouts = 4
learning_rate = 1e-2
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_sampled"), [("sft", 4), ("rft", 0)])
def test_collect_then_train(tmp_path: Path, kind: str, num_sampled: int) -> None:
    """The random model earns nothing, so `rft` has its teacher alone."""
    model, tokenizer = tmp_path / "model", byte_tokenizer()
    ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    tiny_qwen(vocab_size=len(tokenizer), max_position_embeddings=1024, **ends).save_pretrained(
        model
    )
    tokenizer.save_pretrained(model)
    for policy, name in ((f"hf:{model}", "collected"), ("oracle", "teachers")):
        told = ["--policy", policy, "--tasks", "2", "--group-size", "2", "--max-tokens", "8"]
        store = ["--store", str(tmp_path / name)]
        assert main(["rollouts", "collect", ARITHMETIC, *told, *store]) == 0
    paths = {name: tmp_path / name for name in ("model", "collected", "teachers")}
    (tmp_path / "tiny.toml").write_text(CONFIG.format(**paths))
    assert main(["train", kind, str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "run")]) == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    lock = json.loads((tmp_path / "run/lock.json").read_text())
    assert f'"num_rollouts": {num_sampled + 4}' in json.dumps(lock)
    with RolloutStore.open(tmp_path / "teachers") as opened:
        taught = [rollouts(opened, record.session_id) for record in opened.sessions()]
    assert [rollout.has_tokens for rollout in taught] == [False] * 4
