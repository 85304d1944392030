"""Recorded rollouts become rows with weights; what is left out is counted by its reason.

A rollout is trained on if its reward is valid and, unless a teacher made it, at least the least
that is asked for. Not here: rows of one rollout (`rollout_rows.py`), their order (`data_order.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from katgym.errors import UsageError
from katgym.evaluation.plan import Plan
from katgym.play.rollout import Rollout
from katgym_trainer.config.train_run_config import TrainRunConfig, Weights
from katgym_trainer.rollouts.rollout_checks import rollout_key
from katgym_trainer.rollouts.rollout_files import read_rollouts, rollouts_sha256
from katgym_trainer.rollouts.supervised_rows import supervised_rows
from katgym_trainer.rollouts.teacher_tokens import AnswerBoundaryError, tokenize_rollout
from katgym_trainer.rollouts.turn_errors import ErrorMasks
from katgym_trainer.row import Row
from katgym_trainer.runs.played_sources import (
    TaskKey,
    collect_plan,
    oracle_plan,
    play_model,
    play_oracle,
    relative_reward,
)

logger = logging.getLogger(__name__)

INVALID = "no valid reward"
LOW = "reward too low"
UNTRAINED = "no token to train"
NO_BOUNDARY = "an answer whose tokens cannot be told from its chat format's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where rollouts come from."""

    path: Path
    name: str
    """What the run's lock calls it: the path as it was told, or `oracle`."""
    is_teacher: bool
    best_turns: Mapping[TaskKey, int] = field(default_factory=dict)
    """Turns of the best known solutions, which rewards are relative to; {}: to nothing."""

    def reward(self, rollout: Rollout) -> float | None:
        """Return a rollout's reward as the source counts it; None if it is not valid."""
        if rollout.reward.value is None:
            return None
        best = self.best_turns.get((rollout.env_id, rollout.task_id))
        return relative_reward(rollout.reward.value, rollout.num_turns, best)

    def sha256(self) -> str:
        """Return the hash of the rollouts there."""
        return rollouts_sha256(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One rollout's rows."""

    task: Hashable
    is_teacher: bool
    reward: float
    rows: tuple[Row, ...]

    @property
    def num_trained(self) -> int:
        """Trained tokens."""
        return sum(row.num_trained for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Everything a run trains on.

    Example:
        data = TrainingData.read(config, renderer, sources=sources_of(config, folder))
    """

    examples: Sequence[Example]
    sources: Sequence[Source]
    num_left_out: Mapping[str, int]
    """Rollouts that are not trained on, by reason."""

    @classmethod
    def read(
        cls, config: TrainRunConfig, renderer: Any, *, sources: Sequence[Source]
    ) -> TrainingData:
        """Read, choose and weigh.

        renderer: makes the tokens of what teachers did, and of rollouts recorded without tokens.

        Raises `UsageError` if nothing is left, and for a rollout that occurs twice or cannot become
        rows.
        """
        left_out: Counter[str] = Counter()
        masks = ErrorMasks(loss=frozenset(config.data.masks))
        examples = []
        for source, rollout in _read(sources):
            least = None if source.is_teacher else config.min_reward
            value = source.reward(rollout)
            if value is None:
                left_out[INVALID] += 1
                continue
            if least is not None and value < least:
                left_out[LOW] += 1
                continue
            try:
                # Tokens of teachers are of their own tokenizers, so they are made anew.
                if source.is_teacher or not rollout.has_tokens:
                    rollout = tokenize_rollout(rollout, renderer)
                rows = tuple(supervised_rows([rollout], masks=masks))
            except AnswerBoundaryError as e:
                if not left_out[NO_BOUNDARY]:
                    logger.warning(
                        "[data] %r: rollouts like this one are left out: %s", source.name, e
                    )
                left_out[NO_BOUNDARY] += 1
                continue
            except ValueError as e:
                raise UsageError(f"[data] {source.name!r}: {e}") from e
            if not rows:
                left_out[UNTRAINED] += 1
                continue
            task = (rollout.env_id, rollout.task_id, rollout.task_sha256)
            examples.append(
                Example(task=task, is_teacher=source.is_teacher, reward=value, rows=rows)
            )
        if not examples:
            reasons = ", ".join(f"{num} with {why}" for why, num in left_out.items())
            raise UsageError(f"no rollout is left to train on ({reasons or 'the files are empty'})")
        # Multiply the rows' weights, see `Weights`; teachers' rollouts of a task count apart.
        num_of_task = Counter((e.task, e.is_teacher) for e in examples)
        for place, example in enumerate(examples):
            weight = config.data.teacher_weight if example.is_teacher else 1.0
            if config.weights is not Weights.TOKENS:
                weight /= example.num_trained
            if config.weights is Weights.TASKS:
                weight /= num_of_task[example.task, example.is_teacher]
            rows = tuple(row.replace(weight=row.weight * weight) for row in example.rows)
            examples[place] = dataclasses.replace(example, rows=rows)
        return cls(examples=examples, sources=sources, num_left_out=dict(left_out))

    def rows(self, places: Sequence[int]) -> list[Row]:
        """Return the rows of some rollouts."""
        return [row for place in places for row in self.examples[place].rows]

    @property
    def longest_row(self) -> int:
        """Tokens of the longest row."""
        return max(len(row) for example in self.examples for row in example.rows)

    def mean_reward(self, places: Sequence[int]) -> float:
        """Return the mean reward of some rollouts."""
        return float(np.mean([self.examples[place].reward for place in places]))

    def identity(self) -> dict[str, Any]:
        """Return what tells these data from others: hashes of the files and of what is trained."""
        digest = hashlib.sha256()
        for row in self.rows(range(len(self.examples))):
            for array in (row.token_ids, row.loss_mask, row.weight):
                digest.update(np.int64(len(array)).tobytes() + array.tobytes())
        return {
            "sources": [
                {"name": s.name, "is_teacher": s.is_teacher, "sha256": s.sha256()}
                for s in self.sources
            ],
            "num_rollouts": len(self.examples),
            "rows_sha256": digest.hexdigest(),
        }


def check_sources(config: TrainRunConfig) -> None:
    """Raise `UsageError` for a path where nothing is, and for what an oracle cannot play."""
    _make_sources(config)
    if (oracle := config.data.oracle) is not None:
        for envs in oracle.runs():
            Plan.of(oracle_plan(oracle, envs))
    if config.data.collect is not None:
        Plan.of(collect_plan(config.data.collect, config.model))


def sources_of(config: TrainRunConfig, folder: Path) -> list[Source]:
    """Return the run's sources, after the oracle and the model have played into the folder.

    Raises `UsageError` for a path where nothing is, and what `evaluate` raises.
    """
    found = _make_sources(config)
    if config.data.oracle is not None:
        for number, envs in enumerate(config.data.oracle.runs(), 1):
            name = "oracle" if number == 1 else f"oracle-{number}"
            play_oracle(config.data.oracle, envs, folder / name)
            found.append(Source(path=folder / name, name=name, is_teacher=True))
    if (collect := config.data.collect) is not None:
        best = play_model(collect, config.model, folder)
        found.append(
            Source(
                path=folder / "collected",
                name="collected",
                is_teacher=False,
                best_turns=best if collect.is_relative else {},
            )
        )
    return found


def _make_sources(config: TrainRunConfig) -> list[Source]:
    found = []
    for key, paths in (("rollouts", config.data.rollouts), ("teachers", config.data.teachers)):
        for path in paths:
            if not Path(path).exists():
                raise UsageError(
                    f"[data] {key}: there is no file or folder {path!r}; `katgym eval` makes run"
                    " folders, `katgym rollouts collect` stores"
                )
            found.append(Source(path=Path(path), name=path, is_teacher=key == "teachers"))
    return found


def _read(sources: Sequence[Source]) -> Iterator[tuple[Source, Rollout]]:
    """Yield all rollouts, each with where it comes from."""
    seen: dict[tuple[str, str], str] = {}
    for source in sources:
        for rollout in _read_source(source):
            key = rollout_key(rollout)
            if key in seen:
                raise UsageError(
                    f"rollout {rollout.episode_id!r} of {source.name!r} is in {seen[key]!r}"
                    " already; what is to count more has a weight (weights, teacher_weight)"
                )
            seen[key] = source.name
            yield source, rollout


def _read_source(source: Source) -> Iterator[Rollout]:
    try:
        yield from read_rollouts(source.path)
    except ValueError as e:
        raise UsageError(f"[data] {source.name!r}: {e}") from e
