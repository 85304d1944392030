"""`katgym train rl` on a full disk: one message, nothing harmed, the same command goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rl_play import LowEnv, config_text, metrics
from small_disk import fill, small_disk

from katgym.cli.main import main
from katgym.plugins.registry import register
from katgym.rollout_store.store import RolloutStore

ENV_ID = "rltest/Filling-v0"
NUM_ROLLOUTS = 16  # of a step
NUM_STEPS = 5


def register_filling(first_of_step: int, fill_disk: Callable[[], Any]) -> None:
    """Register an env that fills the disk when the rollouts of a step begin."""
    episodes = itertools.count()

    class FillingEnv(LowEnv):
        async def setup(self) -> None:
            # The first reset of a run checks the length of a prompt.
            if next(episodes) == 1 + (first_of_step - 1) * NUM_ROLLOUTS:
                fill_disk()

    register(ENV_ID, FillingEnv, description="Fills a disk.", should_replace=True)


def learned(run: Path) -> list[dict[str, Any]]:
    names = ("step", "rollout/reward", "rollout/completion_tokens", "train/loss")
    return [{name: pytest.approx(line[name], abs=1e-4) for name in names} for line in metrics(run)]


@pytest.fixture(scope="module")
def told(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, `rl.toml`, and an undisturbed run of it, `whole`."""
    folder = tmp_path_factory.mktemp("told")
    config = folder / "rl.toml"
    config.write_text(config_text(model, steps=NUM_STEPS, env=ENV_ID))
    register_filling(NUM_STEPS + 1, lambda: None)
    assert main(["train", "rl", str(config), "--out", str(folder / "whole")]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("what", ["checkpoint", "rollouts"])
def test_a_run_whose_disk_was_full_goes_on_as_if_it_had_not_been(
    what: str, told: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "rl", str(told / "rl.toml"), "--out"]
    checkpoint = told / "whole" / "checkpoints" / "step-000004"
    num_bytes = sum(file.stat().st_size for file in checkpoint.iterdir())

    with small_disk(tmp_path / "disk", size="32m") as disk:
        run = disk / "run"
        num_free = num_bytes * 3 // 4 if what == "checkpoint" else 0
        register_filling(4, lambda: fill(disk, num_free=num_free))
        capfd.readouterr()
        assert main([*command, str(run)]) == 1
        err = " ".join(capfd.readouterr().err.split())
        written = run / ("checkpoints/step-000004" if what == "checkpoint" else "rollouts")
        assert f"cannot write '{written}" in err
        assert f"MiB are free for the run in '{run}'. Its last checkpoint," in err
        assert f"'{run}/checkpoints/step-000002' (step 2), is whole: make room and run the" in err
        assert "Traceback" not in err
        assert "Logging error" not in err
        assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000002"]
        assert len(learned(run)) == (4 if what == "checkpoint" else 3)

        fill(disk)
        assert main([*command, str(run)]) == 1  # still full: told at once
        assert "the disk is full; 0.00 MiB are free" in " ".join(capfd.readouterr().err.split())

        (disk / "filler").unlink()
        register_filling(NUM_STEPS + 1, lambda: None)
        assert main([*command, str(run)]) == 0
        assert learned(run) == learned(told / "whole")
        with RolloutStore.open(run / "rollouts") as store:
            assert len(list(store.sessions())) == NUM_STEPS * NUM_ROLLOUTS


def test_a_run_does_not_begin_on_a_full_disk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "rl.toml"
    config.write_text(config_text(tmp_path))
    with small_disk(tmp_path / "disk", size="512k") as disk:
        assert main(["train", "rl", str(config), "--out", str(disk / "run")]) == 1
        err = " ".join(capfd.readouterr().err.split())
        assert f"cannot write '{disk / 'run'}': the disk is full; 0.50 MiB are free" in err
        assert "has no checkpoint yet: make room and run the same command again" in err
        assert list(disk.iterdir()) == []
