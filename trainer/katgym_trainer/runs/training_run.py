"""Runs of any kind: set-up, checkpoints, metrics, the model at the end.

Not here: their loops (`train_run.py`, `rl/rl_run.py`), the command line (`cli/`), an optimizer step
(`trainer.py`).
"""

from __future__ import annotations

import abc
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from katgym.errors import MissingDependencyError, UsageError
from katgym_trainer.config.run_config import RunConfig
from katgym_trainer.fake_card.rehearsal_peak import compared_peak
from katgym_trainer.ranks.ranks import ALONE, Ranks, explain_lost_ranks
from katgym_trainer.runs.model_loading import NO_FROZEN_MODELS, FrozenModels, load_model
from katgym_trainer.runs.process.freed_memory import keep_freed_memory
from katgym_trainer.runs.process.full_disk import explain_full_disk
from katgym_trainer.runs.process.run_log import log_to
from katgym_trainer.runs.process.stop_signals import StopSignals
from katgym_trainer.runs.run_folder import FollowedFolder, RunFolder
from katgym_trainer.saving import checkpoints
from katgym_trainer.saving.atomic_folders import new_folder
from katgym_trainer.trackers.tracker import Tracker, make_tracker, tracking
from katgym_trainer.trainer import Trainer
from katgym_trainer.trainer_config import TrainerConfig

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Told what a run does; `cli/train_progress.py` shows it."""

    def say(self, text: str) -> None:
        """Take a line about what begins."""

    def step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step, counted from 1, of all there will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(abc.ABC):
    """What a run left behind."""

    folder: str
    kind: str
    step: int
    """Optimizer steps that were taken in all."""
    num_steps: int
    """Those the run is to have."""
    resumed_from: int
    """Steps that were taken when this process began."""
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

    def describe(self) -> str:
        """Return what came of the run in a line."""
        parts = [f"{self.step} of {self.num_steps} steps", *self.outcome()]
        return f"{', '.join(parts)}, {self.wall_s:.1f} s"

    @abc.abstractmethod
    def outcome(self) -> Iterator[str]:
        """Yield what matters of a run of this kind, in words."""


C = TypeVar("C", bound=RunConfig)
R = TypeVar("R", bound=RunResult)
T = TypeVar("T")


class SilentObserver:
    """Of the ranks that are not the first."""

    def say(self, text: str) -> None:
        """See `Observer.say`."""

    def step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """See `Observer.step`."""


class TrainingRun(abc.ABC, Generic[C, R]):
    """What one process of a run holds."""

    follower: ClassVar[type[TrainingRun[Any, Any]] | None] = None
    """What ranks that are not the first run; None: the same."""
    trainer: Trainer
    num_steps: int
    """Optimizer steps the run is to have."""
    first = 0
    """Steps that were taken before."""

    def __init__(
        self, config: C, folder: RunFolder, observer: Observer, ranks: Ranks = ALONE
    ) -> None:
        """Load what is trained, and the newest checkpoint if there is one."""
        self.config, self.folder, self.observer, self.ranks = config, folder, observer, ranks

    @classmethod
    def execute(
        cls,
        config: C,
        path: Path,
        *,
        config_text: str,
        observer: Observer,
        is_resume: bool = False,
    ) -> R:
        """Train in folder `path` until the last step or a signal; a run that was begun goes on.

        config_text: the file that `config` was read from, kept in the folder. is_resume: refuse a
        folder without a run to continue.

        Raises `UsageError` for what cannot be trained and a folder that cannot be used, and
        `DiskFullError`, or `InfrastructureError` where another rank is gone, after which the same
        call goes on.
        """
        began_s = time.perf_counter()
        keep_freed_memory()
        identity = config.identity()
        with contextlib.ExitStack() as stack:
            stack.enter_context(explain_lost_ranks())
            ranks = stack.enter_context(Ranks.join(timeout_s=config.ranks.timeout_s))
            trackers = [make_tracker(track, path) for track in config.track if ranks.is_first]
            stack.enter_context(explain_full_disk(path))

            def open_folder() -> RunFolder:
                if not ranks.is_first:
                    return FollowedFolder(path)
                return RunFolder.open(
                    path, config_text=config_text, identity=identity, is_resume=is_resume
                )

            folder = stack.enter_context(ranks.together(open_folder))
            name = "train.log" if ranks.is_first else f"train-rank-{ranks.number}.log"
            stack.enter_context(log_to(path / name))
            kind, told = cls, observer
            if not ranks.is_first:
                kind, told = cls.follower or cls, SilentObserver()
            run = kind(config, folder, told, ranks)
            with StopSignals() as stop, contextlib.closing(run):
                with tracking(trackers, folder.lock):
                    metrics = run.train(trackers, stop)
                is_finished = run.finish()
            return run.result(
                folder=str(path),
                kind=str(identity["kind"]),
                step=run.trainer.num_steps,
                num_steps=run.num_steps,
                resumed_from=run.first,
                metrics=metrics,
                model=str(folder.model) if is_finished else None,
                wall_s=time.perf_counter() - began_s,
                exit_code=0 if is_finished else stop.exit_code,
            )

    @abc.abstractmethod
    def train(self, trackers: Sequence[Tracker], stop: StopSignals) -> dict[str, float]:
        """Take the steps that are left, or until a signal; return the last one's metrics."""

    @abc.abstractmethod
    def result(self, **common: Any) -> R:
        """Return what the run left behind; common: the fields of `RunResult`."""

    def close(self) -> None:
        """Close what the run holds open."""
        self.trainer.close()

    def load_model(self) -> None:
        """Load model, tokenizer and renderer."""
        self.observer.say(f"loading {self.config.model.path}")
        dtype = str(self.config.trainer.get("dtype", "float32"))
        self.loaded = load_model(self.config.model, dtype, ranks=self.ranks)

    def make_trainer(
        self,
        algorithm: str,
        make_config: Callable[[], TrainerConfig],
        *,
        frozen: FrozenModels = NO_FROZEN_MODELS,
    ) -> None:
        """Make the trainer; `UsageError` for a model that cannot be trained like this.

        On a card, the memory that its rehearsal takes is told beside the prediction; of several
        ranks each holds a piece, which is not compared.
        """
        path = self.config.model.path
        try:
            config = make_config()
            with contextlib.ExitStack() as stack:
                if self.ranks.num == 1:
                    stack.enter_context(compared_peak(path, algorithm, config, self.observer.say))
                self.trainer = Trainer(
                    self.loaded.model,
                    algorithm,
                    args=config,
                    tokenizer=self.loaded.tokenizer,
                    reference=frozen.reference,
                    teachers=frozen.teachers,
                    ranks=self.ranks,
                )
                self.trainer.rehearse()
        except ValueError as e:
            raise UsageError(f"{path!r} cannot be trained like this: {e}") from e

    def restore(self) -> Mapping[str, Any] | None:
        """Load the newest checkpoint and return its cursor; None if there is none.

        Raises `UsageError` for one of more steps than the run is to have.
        """
        path = self.ranks.on_first(lambda: checkpoints.newest(self.folder.checkpoints))
        if path is None:
            return None
        cursor: Mapping[str, Any] = self.trainer.load_checkpoint(path)
        self.first = self.trainer.num_steps
        logger.info("continuing from %s", path)
        if self.first > self.num_steps:
            raise UsageError(
                f"the run has taken {self.first} steps already, and was to take {self.num_steps}"
            )
        return cursor

    def take_step(
        self, step: Callable[[list[T]], dict[str, float]], data: list[T]
    ) -> dict[str, float]:
        """Return the metrics of a step of the trainer; `UsageError` for data that it refuses."""
        try:
            return step(data)
        except ValueError as e:  # a row that is beyond the trainer's budget, for one
            raise UsageError(f"step {self.trainer.num_steps + 1} cannot be taken: {e}") from e

    def report(self, metrics: Mapping[str, float], trackers: Sequence[Tracker]) -> None:
        """Write a step's metrics, and pass them on."""
        step = self.trainer.num_steps
        self.folder.append_metrics(step, metrics)
        for tracker in trackers:
            tracker.log(step, metrics)
        self.observer.step(step, self.num_steps, metrics)

    def save(self, cursor: Mapping[str, Any]) -> None:
        """Write a checkpoint."""
        path = self.trainer.save_checkpoint(
            self.folder.checkpoints,
            cursor,
            max_checkpoints=self.config.checkpoint.max_checkpoints,
        )
        logger.info("checkpoint %s", path)

    def write_model(self, folder: Path) -> None:
        """Write the trained model into a folder."""
        self.trainer.save_pretrained(folder)

    def finish(self) -> bool:
        """Write the model if no step is left, and the plots; return whether none is."""
        is_finished = self.trainer.num_steps >= self.num_steps
        is_trained = self.trainer.num_steps > self.first
        has_model = self.ranks.on_first(lambda: self.folder.has_model_of(self.num_steps))
        if is_finished and (is_trained or not has_model):
            with contextlib.ExitStack() as stack:  # in place of a run's that is prolonged
                target = self.folder.model
                made = self.ranks.on_first(lambda: stack.enter_context(new_folder(target)))
                self.write_model(made)
            self.folder.note_model(self.num_steps)
        if self.trainer.num_steps and self.ranks.is_first:
            try:
                from katgym_trainer.runs.plots import plot_run
            except MissingDependencyError as e:
                logger.warning("no plots: %s", e)
            else:
                plot_run(self.folder.path)
        return is_finished
