"""One run of `katgym train sft` or `rft`: the loop over recorded rollouts.

Not here: what all runs share (`training_run.py`), an optimizer step (`trainer.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from katgym.errors import UsageError
from katgym_trainer.config.train_run_config import TrainRunConfig
from katgym_trainer.ranks.ranks import ALONE, Ranks
from katgym_trainer.runs.data_order import DataOrder
from katgym_trainer.runs.process.stop_signals import StopSignals
from katgym_trainer.runs.run_folder import RunFolder
from katgym_trainer.runs.training_data import TrainingData, sources_of
from katgym_trainer.runs.training_run import Observer, RunResult, TrainingRun
from katgym_trainer.trackers.tracker import Tracker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult(RunResult):
    """What a run left behind.

    Example:
        {"folder": "runs/tiny", "kind": "sft", "step": 24, "num_steps": 24, "resumed_from": 0,
         "metrics": {"train/loss": 0.7}, "model": "runs/tiny/model", "wall_s": 12.5,
         "exit_code": 0, "num_rollouts": 64, "num_left_out": {"reward too low": 3}}
    """

    num_rollouts: int
    num_left_out: Mapping[str, int]
    """Rollouts that were not trained on, by reason."""

    def outcome(self) -> Iterator[str]:
        if "train/loss" in self.metrics:
            yield f"loss {self.metrics['train/loss']:.4f}"
        yield f"{self.num_rollouts} rollouts"
        yield from (f"{num} left out ({why})" for why, num in self.num_left_out.items())


class TrainRun(TrainingRun[TrainRunConfig, TrainResult]):
    """What one process of a run on recorded rollouts holds."""

    def __init__(
        self, config: TrainRunConfig, folder: RunFolder, observer: Observer, ranks: Ranks = ALONE
    ) -> None:
        """Load model, data and checkpoint."""
        super().__init__(config, folder, observer, ranks)
        self.load_model()
        observer.say("reading rollouts")
        sources = ranks.on_first(lambda: sources_of(config, folder.path))
        self.data = TrainingData.read(config, self.loaded.renderer, sources=sources)
        ranks.together(lambda: folder.set_data(self.data.identity()))
        tasks = [example.task for example in self.data.examples]
        loop = config.loop
        self.order = DataOrder(tasks, batch_rollouts=loop.batch_rollouts, seed=loop.seed)
        self.num_steps = loop.total_steps(self.order.steps_per_epoch)
        self.make_trainer("sft", lambda: config.make_trainer_config(self.num_steps))
        longest, budget = self.data.longest_row, self.trainer.config.max_tokens
        if longest > budget and not self.trainer.config.should_split:
            raise UsageError(
                f"the longest rollout has {longest} tokens, [train] max_tokens is {budget}: raise"
                " it, or set should_split = true to run such rollouts in parts"
            )
        if (cursor := self.restore()) is not None:
            self.order.check(cursor, self.first)
        folder.open_metrics(self.first)
        logger.info("steps %d to %d on %d rollouts", self.first, self.num_steps, len(tasks))
        observer.say(f"{len(tasks)} rollouts, {self.order.steps_per_epoch} steps an epoch")

    def train(self, trackers: Sequence[Tracker], stop: StopSignals) -> dict[str, float]:
        metrics: dict[str, float] = {}
        saved = self.first
        for step in range(self.first + 1, self.num_steps + 1):
            if self.ranks.any(stop.received is not None):
                break
            places = self.order.batch(step - 1)
            metrics = self.take_step(self.trainer.step_rows, self.data.rows(places))
            metrics["rollout/reward"] = self.data.mean_reward(places)
            metrics["data/epoch"] = step / self.order.steps_per_epoch
            self.report(metrics, trackers)
            if step % self.config.checkpoint.every_steps == 0:
                self.save(self.order.cursor(step))
                saved = step
        if self.trainer.num_steps > saved:
            self.save(self.order.cursor(self.trainer.num_steps))
        return metrics

    def result(self, **common: Any) -> TrainResult:
        return TrainResult(
            **common,
            num_rollouts=len(self.data.examples),
            num_left_out=self.data.num_left_out,
        )
