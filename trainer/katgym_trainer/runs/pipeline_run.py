"""Runs the stages of a pipeline one after the other, each in a folder of its own.

    RUN/stages.json      which stages are done
    RUN/01-sft/          a run's folder, as `katgym train sft` makes it
    RUN/02-rl/
    RUN/model            link to the model of the last stage

The same command goes on with the stage that was being run. Not here: one stage (`train_run.py`,
`rl/rl_run.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katgym.errors import UsageError
from katgym.system import FolderGuard, write_atomically
from katgym_trainer.config.pipeline_config import PipelineConfig
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.config.train_run_config import TrainRunConfig
from katgym_trainer.ranks.ranks import num_started
from katgym_trainer.rl.curriculum import Curriculum
from katgym_trainer.rl.held_out import HeldOut
from katgym_trainer.rl.rl_checks import check_prompts
from katgym_trainer.rl.rl_run import RlResult, RlRun
from katgym_trainer.runs.model_loading import load_renderer
from katgym_trainer.runs.train_run import TrainResult, TrainRun
from katgym_trainer.runs.training_data import check_sources
from katgym_trainer.runs.training_run import Observer, TrainingRun

logger = logging.getLogger(__name__)

FORMAT = 2
_RUNS: Mapping[type, type[TrainingRun[Any, Any]]] = {RlConfig: RlRun, TrainRunConfig: TrainRun}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """What the stages left behind.

    Example:
        {"folder": "runs/all", "stages": [{"kind": "sft", "step": 24, ...}, {"kind": "rl", ...}],
         "num_skipped": 0, "model": "runs/all/model", "wall_s": 512.5, "exit_code": 0}
    """

    folder: str
    stages: tuple[TrainResult | RlResult, ...]
    """Those that this process ran."""
    num_skipped: int
    """Stages that were done before."""
    model: str | None
    """Where the last stage's model lies; None: a stage was stopped before its end."""
    wall_s: float
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dataclasses.asdict(self)


def pipeline_run(
    config: PipelineConfig, path: Path, *, config_text: str, observer: Observer
) -> PipelineResult:
    """Run all stages that are not done, in folder `path`.

    config_text: the file that `config` was read from, kept in every stage's folder.

    Everything that can be found wrong without a trained model is, before the first stage begins:
    `UsageError`. Raises what the stages raise.
    """
    began_s = time.perf_counter()
    if (num := num_started()) > 1:
        raise UsageError(
            f"torchrun started {num} processes, and stages are run by one: give each stage a file"
            " of its own, with the model of the one before, and start them one after the other"
        )
    check_stages(config)
    path.mkdir(parents=True, exist_ok=True)
    guard = FolderGuard(path)
    guard.take()
    try:
        done = _Done(path / "stages.json")
        model: Path | None = None
        key, num_skipped = "", 0
        results: list[TrainResult | RlResult] = []
        for number, stage in enumerate(config.stages, 1):
            folder = path / f"{number:02d}-{stage.name}"
            stage_config = stage.config if model is None else stage.of_model(model)
            # A stage is what makes it, how long it runs, and the stage whose model it gets.
            facts = [stage_config.identity(), dataclasses.asdict(stage_config.loop), key]
            before = key
            key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
            model = folder / "model"
            if done.has(folder.name, key) and model.exists():
                observer.say(f"stage {number} ({stage.name}) is done")
                num_skipped += 1
                continue
            done.begin(folder, before)
            observer.say(f"stage {number} of {len(config.stages)}: {stage.name}")
            run = _RUNS[type(stage_config)]
            results.append(
                run.execute(stage_config, folder, config_text=config_text, observer=observer)
            )
            if results[-1].model is None:
                break
            done.add(folder.name, key)
        is_finished = not results or results[-1].model is not None
        if is_finished and model is not None:
            _link(path / "model", model)
    finally:
        guard.release()
    return PipelineResult(
        folder=str(path),
        stages=tuple(results),
        num_skipped=num_skipped,
        model=str(path / "model") if is_finished else None,
        wall_s=time.perf_counter() - began_s,
        exit_code=0 if is_finished else results[-1].exit_code,
    )


def check_stages(config: PipelineConfig) -> None:
    """Raise `UsageError` for stages that could not begin with any model."""
    renderer: Any = None
    for number, stage in enumerate(config.stages, 1):
        try:
            if isinstance(stage.config, RlConfig):
                source = Curriculum(
                    stage.config.envs, stage.config.rollouts, seed=stage.config.loop.seed
                )
                if stage.config.evaluate.every_steps:
                    HeldOut(stage.config)
                renderer = renderer or load_renderer(config.stages[0].config.model)
                check_prompts(stage.config, renderer, source.first_lessons())
            else:
                check_sources(stage.config)
        except UsageError as e:
            raise UsageError(f"stage {number} ({stage.name}): {e}") from e


def _link(link: Path, model: Path) -> None:
    """Point a link at a folder beside it; one that is there is exchanged at once."""
    new = link.with_name(f"{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(model.relative_to(link.parent))
    new.replace(link)


class _Done:
    """`stages.json`: folder of a stage -> hash of what it was told, once it is done.

    And of what the stage before it was told, from when it begins.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: dict[str, str] = {}
        self._inputs: dict[str, str] = {}
        if path.exists():
            try:
                saved = json.loads(path.read_text(encoding="utf-8"))
                if saved["format"] == FORMAT:
                    self._keys, self._inputs = dict(saved["stages"]), dict(saved["inputs"])
            except (ValueError, KeyError, TypeError) as e:
                raise UsageError(
                    f"{str(path)!r} is not of a run with stages; name another folder with --out"
                ) from e
        elif any(item.name != ".guard" for item in path.parent.iterdir()):
            raise UsageError(
                f"folder {str(path.parent)!r} is not empty and holds no stages.json; name another"
                " with --out"
            )
        else:
            self._write()

    def has(self, name: str, key: str) -> bool:
        return self._keys.get(name) == key

    def add(self, name: str, key: str) -> None:
        self._keys[name] = key
        self._write()

    def begin(self, folder: Path, before: str) -> None:
        """Note what a stage begins with; `UsageError` if it was begun with something else."""
        if folder.exists() and self._inputs.get(folder.name, before) != before:
            raise UsageError(
                f"{str(folder)!r} was begun with a model that the stage before it has trained anew,"
                " or longer, since. Delete that folder, and the stage begins with the new one"
            )
        self._inputs[folder.name] = before
        self._write()

    def _write(self) -> None:
        text = json.dumps(
            {"format": FORMAT, "stages": self._keys, "inputs": self._inputs}, indent=2
        )
        write_atomically(self._path, f"{text}\n".encode())
