"""The best weights: which are kept, which are gone back to after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_qwen import tiny_qwen

from katgym_trainer.saving.best_model import BestModel
from katgym_trainer.trainer import Trainer


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(tiny_qwen(), "sft", args={"max_tokens": 64})


def folders(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "best").iterdir())


def test_the_newest_of_the_best_is_found(trainer: Trainer, tmp_path: Path) -> None:
    best = BestModel(tmp_path, "tasks")
    assert best.found is None
    with pytest.raises(ValueError, match="holds no model yet"):
        _ = best.path
    kept = [best.offer(trainer, step=s, headline=x) for s, x in ((0, 0.5), (2, 0.4), (4, 0.5))]
    assert kept == [True, False, True]
    assert best.found == {"step": 4, "headline": 0.5}
    assert best.path == tmp_path / "best" / "step-000004"
    assert BestModel(tmp_path, "tasks").found == best.found
    assert BestModel(tmp_path, "other tasks").found is None


def test_a_run_that_was_killed_has_the_best_from_before_its_checkpoint(
    trainer: Trainer, tmp_path: Path
) -> None:
    best = BestModel(tmp_path, "tasks")
    for step, success in ((0, 0.1), (2, 0.5), (4, 0.6), (6, 0.7)):
        best.offer(trainer, step=step, headline=success)
    best.settle(4)
    assert folders(tmp_path) == ["step-000004", "step-000006"]
    best.forget_after(4)
    assert best.found == {"step": 4, "headline": 0.6}
    assert folders(tmp_path) == ["step-000004"]
    best.forget_after(-1)
    assert best.found is None and folders(tmp_path) == []


def test_nothing_is_written_where_nothing_was_kept(tmp_path: Path) -> None:
    best = BestModel(tmp_path, "tasks")
    best.settle(3)
    best.forget_after(-1)
    assert list(tmp_path.iterdir()) == []
