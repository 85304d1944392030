"""Checkpoints as files: whole or not at all, and damage is told by name.

Then a run that was stopped and taken up again is the run that was never stopped, bit for bit.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from nightly import IS_NIGHT
from tiny_model import TinyModel
from tiny_qwen import group_of_rows, same, tiny_qwen, weights

from katgym.errors import InfrastructureError
from katgym_trainer import Row
from katgym_trainer.saving.checkpoints import (
    Checkpoint,
    CheckpointError,
    choose,
    latest,
    load,
    save,
)
from katgym_trainer.trainer import Trainer

FILES = ("weights.safetensors", "optimizer.safetensors", "random.safetensors", "state.json")


def checkpoint(num_steps: int, **more: Any) -> Checkpoint:
    return Checkpoint(
        weights={"w": torch.full((3,), float(num_steps))},
        optimizer={"w.step": torch.tensor(float(num_steps))},
        random={"cpu": torch.arange(4, dtype=torch.uint8)},
        state={"num_steps": num_steps, "cursor": {"row": 63, "seen": [1, None]}, **more},
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = save(checkpoint(12), tmp_path / "run" / "checkpoints")
    assert path == tmp_path / "run" / "checkpoints" / "step-000012"
    assert names(path) == sorted([*FILES, "manifest.json"])
    found = load(path)
    assert found.weights["w"].tolist() == [12, 12, 12]
    assert found.optimizer["w.step"].tolist() == 12
    assert found.random["cpu"].tolist() == [0, 1, 2, 3]
    assert found.state == {"num_steps": 12, "cursor": {"row": 63, "seen": [1, None]}}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "words"),
    [(cut, "is not as it was written"), (flip, "is not as"), (Path.unlink, "is missing")],
)
def test_damage_names_the_file_and_the_last_good_checkpoint(
    tmp_path: Path, damage: Callable[[Path], None], words: str, subtests: pytest.Subtests
) -> None:
    for file in FILES:
        with subtests.test(file=file):
            folder = tmp_path / file
            for step in (1, 2, 3):
                save(checkpoint(step), folder)
            for step in (2, 3):
                damage(folder / f"step-{step:06d}" / file)
            assert latest(folder).name == "step-000003"
            with pytest.raises(CheckpointError) as caught:
                load(latest(folder))
            text, good = str(caught.value), str(folder / "step-000001")
            assert f"{file!r} {words}" in text and "step-000003' cannot be used" in text
            assert text.endswith(f"the last good checkpoint beside it is {good!r}")
            assert isinstance(caught.value, ValueError)


def test_a_manifest_that_says_nothing_is_told(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = save(checkpoint(1), tmp_path)
    for manifest, words in [
        ("{", "'manifest.json' is not JSON"),
        ("[]", "'manifest.json' is not of format 1"),
        ('{"format": 2, "sha256": {}}', "'manifest.json' is not of format 1"),
        ('{"format": 1, "sha256": {"../x": "0"}}', "'manifest.json' does not list optimizer.saf"),
        (None, "'manifest.json' is missing"),
    ]:
        (path / "manifest.json").unlink()
        if manifest is not None:
            (path / "manifest.json").write_text(manifest)
        words = f"{words}.*there is no good checkpoint beside it"
        with subtests.test(manifest=manifest), pytest.raises(CheckpointError, match=words):
            load(path)


def test_the_newest_are_kept_and_the_one_that_was_written(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for step in (1, 2, 3):
        save(checkpoint(step), tmp_path)
    assert save(checkpoint(4), tmp_path, max_checkpoints=2).name == "step-000004"
    assert names(tmp_path) == ["notes", "step-000003", "step-000004"]
    save(checkpoint(2), tmp_path, max_checkpoints=1)  # of a run that was taken up further back
    assert names(tmp_path) == ["notes", "step-000002", "step-000004"]
    save(checkpoint(1_000_000), tmp_path, max_checkpoints=1)
    assert names(tmp_path) == ["notes", "step-1000000"]


def test_one_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    cut(save(checkpoint(1), tmp_path) / "state.json")
    save(checkpoint(1, algorithm="sft"), tmp_path)
    assert load(tmp_path / "step-000001").state["algorithm"] == "sft"
    assert names(tmp_path) == ["step-000001"]


def test_a_save_killed_while_it_replaced_is_still_found(tmp_path: Path) -> None:
    path = save(checkpoint(1), tmp_path)
    path.rename(tmp_path / "step-000001.replaced")
    (tmp_path / ".unfinished-step-000001-abc").mkdir()
    assert load(choose(tmp_path)).state["num_steps"] == 1
    save(checkpoint(1), tmp_path)
    assert names(tmp_path) == ["step-000001"]


def test_a_disk_that_is_full_leaves_the_old_ones(tmp_path: Path) -> None:
    old = save(checkpoint(1), tmp_path)
    big = Checkpoint(
        weights={"w": torch.zeros(2**20)}, optimizer={}, random={}, state={"num_steps": 1}
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(InfrastructureError, match=r"cannot write .*step-000001"):
            save(big, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-000001"]
    assert load(old).weights["w"].tolist() == [1, 1, 1]


def test_a_cursor_that_would_not_come_back_as_it_is_is_refused(tmp_path: Path) -> None:
    for cursor in [object(), {1: 2}, (1, 2), float("nan")]:
        with pytest.raises(ValueError, match="the state of a checkpoint is plain JSON"):
            save(checkpoint(1, other=cursor), tmp_path)
        assert names(tmp_path) == []


def test_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match="there is no checkpoint in "):
            latest(folder)
    with pytest.raises(CheckpointError, match=r"'manifest.json' is missing; there is no good"):
        load(tmp_path / "step-000001")
    with pytest.raises(ValueError, match="max_checkpoints is an int >= 1, or None, got 0"):
        save(checkpoint(1), tmp_path, max_checkpoints=0)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = save(checkpoint(1), tmp_path)
    for file in FILES[:3]:
        size = int.from_bytes((path / file).read_bytes()[:8], "little")
        assert json.loads((path / file).read_bytes()[8 : 8 + size])  # safetensors: JSON, numbers


ARGS: dict[str, Any] = {
    "learning_rate": 0.01, "weight_decay": 0.1, "schedule": "cosine", "num_steps": 9,
    "num_updates": 2, "max_tokens": 20,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw bfloat16": {"dtype": "bfloat16"},
    "adamw lora": {"lora_rank": 3},
    "adamw lora bfloat16": {"lora_rank": 3, "dtype": "bfloat16", "lora_targets": ["q_proj"]},
    "adamw stochastic": {"dtype": "bfloat16", "rounding": "stochastic"},
    "adamw stochastic lora": {"dtype": "bfloat16", "rounding": "stochastic", "lora_rank": 3},
    "muon": {"optimizer": "muon"},
    "muon stochastic": {"optimizer": "muon", "dtype": "bfloat16", "rounding": "stochastic"},
    "muon bfloat16": {"optimizer": "muon", "dtype": "bfloat16"},
    "muon lora": {"optimizer": "muon", "lora_rank": 3},
}
CHOSEN = ["adamw", "adamw bfloat16", "adamw stochastic lora", "muon", "muon lora"]


def rows_of(step: int) -> list[Row]:
    return [
        row
        for number in range(2)
        for row in group_of_rows([1.0, -1.0], name=f"g{number}", seed=10 * step + number)
    ]


@pytest.mark.parametrize("kind", KINDS if IS_NIGHT else CHOSEN)
def test_the_next_step_is_the_same(kind: str, tmp_path: Path) -> None:
    args = {**ARGS, **KINDS[kind]}
    trainer = Trainer(tiny_qwen(), "grpo", args=args)
    first = weights(trainer.model)
    for step in range(2):
        trainer.step_rows(rows_of(step))
    path = trainer.save_checkpoint(tmp_path, cursor={"next": 2})
    stopped = weights(trainer.model)
    metrics = trainer.step_rows(rows_of(2))
    assert path.name == "step-000002"

    other = Trainer(tiny_qwen(), "grpo", args=args)
    assert same(weights(other.model), first)
    torch.rand(3)  # another place in the global stream
    assert other.load_checkpoint(tmp_path) == {"next": 2}
    assert other.num_steps == 2 and same(weights(other.model), stopped)
    found = other.step_rows(rows_of(2))
    assert same(weights(other.model), weights(trainer.model))
    assert same(dict(other._masters.named()), dict(trainer._masters.named()))
    assert not same(weights(other.model), stopped)
    for name in ("train/loss", "train/grad_norm", "train/learning_rate"):
        assert found[name] == metrics[name]


@pytest.mark.slow
def test_a_new_process_goes_on_the_same(tmp_path: Path) -> None:
    trainer = Trainer(TinyModel(), "grpo", args={"learning_rate": 0.1})
    rows = [Row([1, 2, 3], [0, 1, 1], [0, -2, -2], a, group=0) for a in (1.0, -0.5)]
    trainer.step_rows(rows)
    trainer.save_checkpoint(tmp_path)
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from tiny_model import TinyModel
from katgym_trainer import Row
from katgym_trainer.trainer import Trainer
trainer = Trainer(TinyModel(), "grpo", args={{"learning_rate": 0.1}})
trainer.load_checkpoint({str(tmp_path)!r})
rows = [Row([1, 2, 3], [0, 1, 1], [0, -2, -2], a, group=0) for a in (1.0, -0.5)]
trainer.step_rows(rows)
trainer.save_checkpoint({str(tmp_path)!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    trainer.step_rows(rows)
    wanted = weights(trainer.model)
    trainer.load_checkpoint(tmp_path / "step-000002")
    assert same(weights(trainer.model), wanted)


def test_random_numbers_go_on(tmp_path: Path) -> None:
    trainer = Trainer(TinyModel(), "sft")
    before = torch.get_rng_state()
    try:
        trainer.save_checkpoint(tmp_path)
        wanted = torch.rand(3)
        trainer.load_checkpoint(tmp_path)
        assert torch.equal(torch.rand(3), wanted)
    finally:
        torch.set_rng_state(before)


def test_damage_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    trainer = Trainer(TinyModel(), "sft", args={"learning_rate": 0.1})
    rows = [Row([1, 2, 3], [0, 1, 1])]
    trainer.save_checkpoint(tmp_path)
    trainer.step_rows(rows)
    path = trainer.save_checkpoint(tmp_path)
    (path / "optimizer.safetensors").write_bytes(b"")
    trainer.step_rows(rows)
    before = weights(trainer.model)
    with pytest.raises(CheckpointError, match=r"'optimizer.safetensors' is not .*step-000000'$"):
        trainer.load_checkpoint(tmp_path)
    assert same(weights(trainer.model), before) and trainer.num_steps == 2
    trainer.load_checkpoint(tmp_path / "step-000000")
    assert trainer.num_steps == 0


def test_checkpoints_of_others_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    Trainer(tiny_qwen(), "sft").save_checkpoint(tmp_path)
    for model, args, words in [
        ({}, {"optimizer": "muon"}, "made with optimizer='adamw', this trainer has 'muon'"),
        ({}, {"dtype": "bfloat16"}, "made with dtype='float32', this trainer has 'bfloat16'"),
        ({}, {"lora_rank": 2}, "made with lora_rank=0, this trainer has 2"),
        ({"num_hidden_layers": 1}, {}, r"the checkpoint alone has 'model.layers.1.input_layernorm"),
        ({"intermediate_size": 32}, {}, r"'model.layers.0.mlp.gate_proj.weight' has shape \[48, 3"),
    ]:
        with subtests.test(words=words):
            other = Trainer(tiny_qwen(**model), "sft", args=args)
            before = weights(other.model)
            with pytest.raises(CheckpointError, match=words):
                other.load_checkpoint(tmp_path)
            assert same(weights(other.model), before)


def test_adapters_of_another_model_are_refused(tmp_path: Path) -> None:
    Trainer(tiny_qwen(), "sft", args={"lora_rank": 2}).save_checkpoint(tmp_path)
    other = Trainer(tiny_qwen(seed=1), "sft", args={"lora_rank": 2})
    with pytest.raises(CheckpointError, match="the weights that are not trained differ"):
        other.load_checkpoint(tmp_path)


def test_settings_that_may_change_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Trainer(TinyModel(), "sft", args={"learning_rate": 0.1}).save_checkpoint(tmp_path)
    other = Trainer(TinyModel(), "reinforce", args={"learning_rate": 0.2})
    other.load_checkpoint(tmp_path)
    assert "was made with learning_rate=0.1; going on with 0.2" in caplog.text
    assert "was made with algorithm='sft'; going on with 'reinforce'" in caplog.text
    assert "max_tokens" not in caplog.text


def test_old_checkpoints_go(tmp_path: Path) -> None:
    trainer = Trainer(TinyModel(), "sft")
    for _ in range(4):
        trainer.step_rows([Row([1, 2], [0, 1])])
        trainer.save_checkpoint(tmp_path, max_checkpoints=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000003", "step-000004"]
