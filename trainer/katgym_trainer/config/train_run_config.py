"""The TOML file of `katgym train sft` and `rft` as frozen dataclasses, one for each section.

Not here: sections that all kinds of runs have, and reading them (`run_config.py`), how a trainer
trains (`trainer_config.py`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from katgym.errors import UsageError
from katgym_trainer.config.rules import (
    AtLeastOne,
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    check_fields,
)
from katgym_trainer.config.run_config import RunConfig, RunLoopConfig, leave_out
from katgym_trainer.rollouts.turn_errors import TurnError

_MANY = 2**31
"""Steps of a run of which it is not known how many it has."""


class TrainKind(StrEnum):
    """Which rollouts are trained on, and what counts alike."""

    SFT = "sft"
    """All rollouts, all of their trained tokens alike."""
    RFT = "rft"
    """Rollouts of the highest reward and those of teachers, all tasks alike."""


class Weights(StrEnum):
    """What counts alike; w is the weight of each trained token, t the trained tokens of its
    rollout, k the rollouts of its task that are trained on."""

    TOKENS = "tokens"
    """w = 1."""
    ROLLOUTS = "rollouts"
    """w = 1 / t."""
    TASKS = "tasks"
    """w = 1 / (k t)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleRolloutsConfig:
    """Section [data.oracle]: rollouts that the envs' own solutions make before training."""

    envs: tuple[str, ...]
    """Env ids or FILE.py:CLASS, each with ?name=value&... if needed; one id may stand there several
    times."""
    num_tasks: Count = 100
    """Tasks per env."""
    max_calls: Count | None = None
    """Tool calls of one turn; None: as many as the solution makes."""
    seed: int = 0
    """Chooses the tasks and seeds the episodes."""
    split: str = "train"

    def __post_init__(self) -> None:
        check_fields(self, UsageError)

    @property
    def policy(self) -> str:
        """The URI of who plays."""
        return "oracle" if self.max_calls is None else f"oracle?max_calls={self.max_calls}"

    def runs(self) -> list[tuple[str, ...]]:
        """Return the envs in parts that hold every id once, as a run folder does.

        Example:
            >>> OracleRolloutsConfig(envs=("a/A-v0?level=1", "a/A-v0?level=2", "a/B-v0")).runs()
            [('a/A-v0?level=1', 'a/B-v0'), ('a/A-v0?level=2',)]
        """
        seen: Counter[str] = Counter()
        parts: dict[int, tuple[str, ...]] = {}
        for env in self.envs:
            env_id = env.partition("?")[0]
            parts[seen[env_id]] = (*parts.get(seen[env_id], ()), env)
            seen[env_id] += 1
        return list(parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig:
    """Section [data.collect]: rollouts that the model itself plays before it is trained."""

    envs: tuple[str, ...]
    """Env ids, each with ?name=value&... if needed."""
    num_tasks: Count = 100
    """Tasks per env."""
    group_size: Count = 4
    """Attempts at each task."""
    seed: int = 0
    """Chooses the tasks, and seeds episodes and sampling."""
    split: str = "train"
    temperature: NotNegative = 1.0
    max_tokens: Count = 512
    """Sampled tokens a turn."""
    max_context_tokens: int = 4096
    """Prompt plus completion tokens of a model call."""
    max_turns: int | None = None
    """Of an episode; None: the env's own."""
    max_concurrency: Count = 64
    """Rollouts at the same time."""
    slack: AtLeastOne | None = None
    """A rollout is stopped when it has taken so many times the turns of the env's own solution;
    None: never."""
    is_relative: bool = False
    """Whether a reward is multiplied by the solution's turns over the rollout's, where that took
    more."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)
        if not self.envs:
            raise UsageError("envs names what the model plays; there is none")

    @property
    def needs_solutions(self) -> bool:
        """Whether the envs solve the tasks first."""
        return self.slack is not None or self.is_relative


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Section [data]. Paths are run folders, rollout stores, files of rollouts or of ATIF."""

    rollouts: tuple[str, ...] = ()
    """Of the model that is trained, or one with its tokenizer: tokens stay as they were sampled."""
    teachers: tuple[str, ...] = ()
    """Of anybody, learned from whatever their reward: tokens are made of their messages."""
    oracle: OracleRolloutsConfig | None = None
    """Teachers that are made at the start."""
    collect: CollectConfig | None = None
    """What the model plays at the start."""
    teacher_weight: Positive = 1.0
    """Times the weight of what teachers (the oracle too) did."""
    weights: Weights | None = None
    """None: `tokens` for sft, `tasks` for rft."""
    min_reward: float | None = None
    """Rollouts of less are left out, teachers' are not; None: none is for sft, 1.0 for rft."""
    masks: tuple[TurnError, ...] = ()
    """Turns with these errors are read and not learned."""

    def __post_init__(self) -> None:
        if not (self.rollouts or self.teachers or self.oracle or self.collect):
            raise UsageError(
                "there is nothing to train on: name rollouts, teachers, an oracle, or what to"
                " collect"
            )
        check_fields(self, UsageError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig(RunLoopConfig):
    """Keys of section [train] that are not the trainer's."""

    num_steps: Count | None = None
    """Optimizer steps; None: as many as `num_epochs` takes."""
    num_epochs: Count | None = None
    """Times every rollout is trained on; 1 if `num_steps` is None too."""
    batch_rollouts: Count = 8
    """Rollouts of one step; an epoch's last step has what is left."""
    seed: CountOrZero = 0
    """Orders the rollouts; the trainer's too."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)
        if self.num_steps is not None and self.num_epochs is not None:
            raise UsageError(
                f"num_steps = {self.num_steps!r} and num_epochs = {self.num_epochs!r} say the same"
                " thing twice; give one"
            )

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the steps of the whole run."""
        if self.num_steps is not None:
            return self.num_steps
        return (self.num_epochs or 1) * steps_per_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRunConfig(RunConfig):
    """A whole run.

    Example:
        TrainRunConfig(kind=TrainKind.SFT, model=ModelConfig(path="models/tiny"),
                       data=DataConfig(rollouts=("runs/oracle",)))
    """

    kind: TrainKind
    data: DataConfig
    loop: LoopConfig = field(default_factory=LoopConfig)

    @property
    def weights(self) -> Weights:
        """What counts alike."""
        by_kind = {TrainKind.SFT: Weights.TOKENS, TrainKind.RFT: Weights.TASKS}
        return self.data.weights or by_kind[self.kind]

    @property
    def min_reward(self) -> float | None:
        """Rollouts of less are left out; None: none is."""
        if self.data.min_reward is None and self.kind is TrainKind.RFT:
            return 1.0
        return self.data.min_reward

    def check(self) -> None:
        """Raise `ValueError` for options that do not go together, or change nothing."""
        if self.rollout_workers:
            raise UsageError("[cluster] rollout_workers are of katgym train rl: nothing is played")
        if self.cluster is not None and not self.cluster.trainer_ranks:
            raise UsageError("[cluster] changes nothing with trainer_ranks = 0: leave it out")
        try:
            self.identity()
        except ValueError as e:
            raise UsageError(f"[train]: {e}") from e

    def identity(self) -> dict[str, Any]:
        """Return what has to be equal for a run to be continued, as plain JSON values.

        How long it is trained, how often it is saved and who is told may change.
        """
        found = dataclasses.asdict(self)
        found["trainer"] = self.make_trainer_config(_MANY).to_json()
        found = {name: found[name] for name in ("kind", "model", "data", "loop", "trainer")}
        return leave_out(
            found, "loop.num_steps", "loop.num_epochs", "trainer.num_steps",
            "trainer.max_nonfinite_updates",
        )  # fmt: skip
