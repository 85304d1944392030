"""One training run from its configuration to the trained model: the loop of `katgym train`.

Not here: the command line (`cli/`), an optimizer step (`trainer.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from katgym.errors import MissingDependencyError, UsageError
from katgym_trainer import checkpoints
from katgym_trainer.atomic_folders import new_folder
from katgym_trainer.checkpoints import CheckpointError
from katgym_trainer.runs.data_order import DataOrder
from katgym_trainer.runs.freed_memory import keep_freed_memory
from katgym_trainer.runs.full_disk import full_disk_told
from katgym_trainer.runs.model_loading import LoadedModel, load_model
from katgym_trainer.runs.run_folder import RunFolder
from katgym_trainer.runs.run_log import logged_to
from katgym_trainer.runs.stop_signals import StopSignals
from katgym_trainer.runs.train_run_config import TrainRunConfig
from katgym_trainer.runs.training_data import TrainingData, sources_of
from katgym_trainer.trackers.tracker import Tracker, make_tracker, tracking
from katgym_trainer.trainer import Trainer

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Told what a run does; `cli/train_progress.py` shows it."""

    def say(self, text: str) -> None:
        """Take a line about what begins."""

    def step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step, counted from 1, of all there will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a run left behind.

    Example:
        {"folder": "runs/tiny", "kind": "sft", "step": 24, "num_steps": 24, "resumed_from": 0,
         "num_rollouts": 64, "num_left_out": {"reward too low": 3}, "metrics": {"train/loss": 0.7},
         "model": "runs/tiny/model", "wall_s": 12.5, "exit_code": 0}
    """

    folder: str
    kind: str
    step: int
    """Optimizer steps that were taken in all."""
    num_steps: int
    """Those the run is to have."""
    resumed_from: int
    """Steps that were taken when this process began."""
    num_rollouts: int
    num_left_out: Mapping[str, int]
    """Rollouts that were not trained on, by reason."""
    metrics: Mapping[str, float]
    """Of the last step; empty if this process took none."""
    model: str | None
    """Where the trained model lies; None: the run was stopped before its end."""
    wall_s: float
    exit_code: int
    """0, or 128 and the number of the signal that stopped the run."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def train_run(
    config: TrainRunConfig,
    path: Path,
    *,
    config_text: str,
    observer: Observer,
    is_resume: bool = False,
) -> TrainResult:
    """Train in folder `path` until the last step or a signal.

    config_text: the file that `config` was read from, kept in the folder.

    Raises `UsageError` for what cannot be trained and a folder that cannot be used, and
    `DiskFullError`, after which the same call goes on.
    """
    began_s = time.perf_counter()
    keep_freed_memory()
    trackers = [make_tracker(track, path) for track in config.track]
    identity = config.identity()
    with (
        full_disk_told(path),
        RunFolder.open(
            path, config_text=config_text, identity=identity, is_resume=is_resume
        ) as folder,
        logged_to(path / "train.log"),
    ):
        run = _TrainRun.prepare(config, folder, observer)
        with StopSignals() as stop:
            with tracking(trackers, folder.lock):
                metrics = run.train(trackers, stop, observer)
            is_finished = run.finish()
        return TrainResult(
            folder=str(path),
            kind=config.kind,
            step=run.trainer.num_steps,
            num_steps=run.num_steps,
            resumed_from=run.first,
            num_rollouts=len(run.data.examples),
            num_left_out=run.data.num_left_out,
            metrics=metrics,
            model=str(folder.model) if is_finished else None,
            wall_s=time.perf_counter() - began_s,
            exit_code=0 if is_finished else stop.exit_code,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainRun:
    """What one process of a run holds."""

    config: TrainRunConfig
    folder: RunFolder
    data: TrainingData
    order: DataOrder
    trainer: Trainer
    first: int
    """Steps that were taken before."""
    num_steps: int

    @classmethod
    def prepare(cls, config: TrainRunConfig, folder: RunFolder, observer: Observer) -> _TrainRun:
        """Load model, data and checkpoint."""
        observer.say(f"loading {config.model.path}")
        loaded = load_model(config.model, dtype=str(config.trainer.get("dtype", "float32")))
        observer.say("reading rollouts")
        data = TrainingData.read(config, loaded.renderer, sources=sources_of(config, folder.path))
        folder.set_data(data.identity())
        tasks = [example.task for example in data.examples]
        loop = config.loop
        order = DataOrder(tasks, batch_rollouts=loop.batch_rollouts, seed=loop.seed)
        num_steps = loop.total_steps(order.steps_per_epoch)
        trainer = _trainer(loaded, config, num_steps)
        _check_budget(data, trainer)
        first = _restore(trainer, folder, order)
        if first > num_steps:
            raise UsageError(
                f"the run has taken {first} steps already, and was to take {num_steps}"
            )
        folder.open_metrics(first)
        logger.info("steps %d to %d on %d rollouts", first, num_steps, len(tasks))
        observer.say(f"{len(tasks)} rollouts, {order.steps_per_epoch} steps an epoch")
        return cls(
            config=config, folder=folder, data=data, order=order, trainer=trainer,
            first=first, num_steps=num_steps,
        )  # fmt: skip

    def train(
        self, trackers: Sequence[Tracker], stop: StopSignals, observer: Observer
    ) -> dict[str, float]:
        """Take the steps that are left, or until a signal; return the last one's metrics."""
        metrics: dict[str, float] = {}
        saved = self.first
        for step in range(self.first + 1, self.num_steps + 1):
            if stop.received is not None:
                break
            metrics = self._step(step)
            self.folder.append_metrics(step, metrics)
            for tracker in trackers:
                tracker.log(step, metrics)
            observer.step(step, self.num_steps, metrics)
            if step % self.config.checkpoint.every_steps == 0:
                saved = self._save(step)
        if self.trainer.num_steps > saved:
            self._save(self.trainer.num_steps)
        return metrics

    def finish(self) -> bool:
        """Write the model if no step is left, and the plots; return whether none is."""
        is_finished = self.trainer.num_steps >= self.num_steps
        is_trained = self.trainer.num_steps > self.first
        if is_finished and (is_trained or not self.folder.has_model_of(self.num_steps)):
            with new_folder(self.folder.model) as made:  # in place of a run's that is prolonged
                self.trainer.save_pretrained(made)
            self.folder.note_model(self.num_steps)
        if self.trainer.num_steps:
            plot(self.folder.path)
        return is_finished

    def _step(self, step: int) -> dict[str, float]:
        places = self.order.batch(step - 1)
        try:
            metrics = self.trainer.step_rows(self.data.rows(places))
        except ValueError as e:  # a row that is beyond the trainer's budget, for one
            raise UsageError(f"step {step} cannot be taken: {e}") from e
        return {
            **metrics,
            "rollout/reward": self.data.mean_reward(places),
            "data/epoch": step / self.order.steps_per_epoch,
        }

    def _save(self, step: int) -> int:
        path = self.trainer.save_checkpoint(
            self.folder.checkpoints,
            self.order.cursor(step),
            max_checkpoints=self.config.checkpoint.max_checkpoints,
        )
        logger.info("checkpoint %s", path)
        return step


def _trainer(loaded: LoadedModel, config: TrainRunConfig, num_steps: int) -> Trainer:
    try:
        args = config.trainer_config(num_steps)
        return Trainer(loaded.model, "sft", args=args, tokenizer=loaded.tokenizer)
    except ValueError as e:
        raise UsageError(f"{config.model.path!r} cannot be trained like this: {e}") from e


def _check_budget(data: TrainingData, trainer: Trainer) -> None:
    """Raise for a row that the trainer would refuse when its step comes."""
    longest, budget = data.longest_row, trainer.config.max_tokens
    if longest > budget and not trainer.config.should_split:
        raise UsageError(
            f"the longest rollout has {longest} tokens, [train] max_tokens is {budget}: raise it,"
            " or set should_split = true to run such rollouts in parts"
        )


def _restore(trainer: Trainer, folder: RunFolder, order: DataOrder) -> int:
    """Load the newest checkpoint if there is one; return how many steps the trainer has taken."""
    try:
        path = checkpoints.latest(folder.checkpoints)
    except CheckpointError:
        return 0
    cursor = trainer.load_checkpoint(path)
    order.check(cursor, trainer.num_steps)
    logger.info("continuing from %s", path)
    return trainer.num_steps


def plot(path: Path) -> None:
    """Draw the curves; without matplotlib one line of the log says so."""
    try:
        from katgym_trainer.runs.plots import plot_run
    except MissingDependencyError as e:
        logger.warning("no plots: %s", e)
        return
    plot_run(path)
