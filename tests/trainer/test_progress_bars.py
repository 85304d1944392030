"""Loading and saving show no bars of transformers, and leave its setting as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_qwen import tiny_qwen
from transformers.utils import logging as bars

from katgym_trainer.models.pretrained import load_model, save_model
from katgym_trainer.models.progress_bars import no_progress_bars


def test_models_are_saved_and_loaded_without_bars(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model: Any = tiny_qwen()
    model.save_pretrained(tmp_path / "by_transformers")
    assert "Writing model shards" in capfd.readouterr().err  # what is to be silenced
    save_model(model, None, tmp_path / "ours", is_merged=True)
    load_model(str(tmp_path / "ours"), torch.float32)
    assert capfd.readouterr().err == ""
    model.save_pretrained(tmp_path / "again")
    assert "Writing model shards" in capfd.readouterr().err


def test_a_hook_of_the_users_own_is_put_back_also_after_an_error() -> None:
    calls: list[str] = []

    def hook(factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.append(kwargs["desc"])
        return bars.EmptyTqdm(*args, **kwargs)

    before = bars.set_tqdm_hook(hook)
    try:
        with pytest.raises(KeyError), no_progress_bars():
            bars.tqdm([1], desc="within")
            raise KeyError
        bars.tqdm([1], desc="after")
    finally:
        bars.set_tqdm_hook(before)
    assert calls == ["after"]
