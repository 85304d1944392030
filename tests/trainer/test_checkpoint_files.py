"""Checkpoints as files: whole or not at all, and damage is told by name."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from katgym.errors import InfrastructureError
from katgym_trainer.saving.checkpoints import (
    Checkpoint,
    CheckpointError,
    choose,
    latest,
    load,
    save,
)

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


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, "is not as it was written"),
        (flip, "is not as it was written"),
        (Path.unlink, "is missing"),
    ],
)
def test_damage_names_the_file_and_the_last_good_checkpoint(
    tmp_path: Path, file: str, damage: Callable[[Path], None], words: str
) -> None:
    for step in (1, 2, 3):
        save(checkpoint(step), tmp_path)
    for step in (2, 3):
        damage(tmp_path / f"step-{step:06d}" / file)
    assert latest(tmp_path).name == "step-000003"
    with pytest.raises(CheckpointError) as caught:
        load(latest(tmp_path))
    text = str(caught.value)
    assert f"{file!r} {words}" in text and "step-000003' cannot be used" in text
    assert text.endswith(f"the last good checkpoint beside it is {str(tmp_path / 'step-000001')!r}")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (None, "'manifest.json' is missing"),
        ("{", "'manifest.json' is not JSON"),
        ("[]", "'manifest.json' is not of format 1"),
        ('{"format": 2, "sha256": {}}', "'manifest.json' is not of format 1"),
        ('{"format": 1, "sha256": {"../x": "0"}}', "'manifest.json' does not list optimizer.saf"),
    ],
)
def test_a_manifest_that_says_nothing_is_told(
    tmp_path: Path, manifest: str | None, words: str
) -> None:
    path = save(checkpoint(1), tmp_path)
    (path / "manifest.json").unlink()
    if manifest is not None:
        (path / "manifest.json").write_text(manifest)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert words in str(caught.value) and "there is no good checkpoint beside it" in str(
        caught.value
    )


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


@pytest.mark.parametrize("cursor", [object(), {1: 2}, (1, 2), float("nan")])
def test_a_cursor_that_would_not_come_back_as_it_is_is_refused(
    tmp_path: Path, cursor: object
) -> None:
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
