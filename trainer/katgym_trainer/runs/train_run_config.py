"""What `katgym train` is told: a TOML file as frozen dataclasses, one for each section.

Not here: reading the file's sections (`train_config_file.py`), how a trainer trains
(`trainer_config.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from katgym.errors import UsageError
from katgym_trainer.rollouts.turn_errors import TurnError
from katgym_trainer.trainer_config import TrainerConfig

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
class ModelConfig:
    """Section [model]."""

    path: str
    """Folder or hub id."""
    tokenizer: str = ""
    """Folder or hub id; "" is the model's."""
    renderer: str = ""
    """How messages become tokens, as in `hf:MODEL?renderer=NAME`; "" chooses by the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleConfig:
    """Section [data.oracle]: rollouts that the envs' own solutions make before training."""

    envs: tuple[str, ...]
    """Env ids, each with ?name=value&... if needed; one id may stand there several times."""
    num_tasks: int = 100
    """Tasks per env."""
    max_calls: int | None = None
    """Tool calls of one turn; None: as many as the solution makes."""
    seed: int = 0
    """Chooses the tasks and seeds the episodes."""
    split: str = "train"

    def __post_init__(self) -> None:
        at_least("num_tasks", self.num_tasks, 1)
        if self.max_calls is not None:
            at_least("max_calls", self.max_calls, 1)

    @property
    def policy(self) -> str:
        """The URI of who plays."""
        return "oracle" if self.max_calls is None else f"oracle?max_calls={self.max_calls}"

    def runs(self) -> list[tuple[str, ...]]:
        """Return the envs in parts that hold every id once, as a run folder does.

        Example:
            >>> OracleConfig(envs=("a/A-v0?level=1", "a/A-v0?level=2", "a/B-v0")).runs()
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
    num_tasks: int = 100
    """Tasks per env."""
    group_size: int = 4
    """Attempts at each task."""
    seed: int = 0
    """Chooses the tasks, and seeds episodes and sampling."""
    split: str = "train"
    temperature: float = 1.0
    max_tokens: int = 512
    """Sampled tokens a turn."""
    max_context_tokens: int = 4096
    """Prompt plus completion tokens of a model call."""
    max_turns: int | None = None
    """Of an episode; None: the env's own."""
    max_concurrency: int = 64
    """Rollouts at the same time."""
    slack: float | None = None
    """A rollout is stopped when it has taken so many times the turns of the env's own solution;
    None: never."""
    is_relative: bool = False
    """Whether a reward is multiplied by the solution's turns over the rollout's, where that took
    more."""

    def __post_init__(self) -> None:
        for name in ("num_tasks", "group_size", "max_tokens", "max_concurrency"):
            at_least(name, getattr(self, name), 1)
        if not self.envs:
            raise UsageError("envs names what the model plays; there is none")
        if not self.temperature >= 0:
            raise UsageError(f"temperature is >= 0, got {self.temperature!r}")
        if self.slack is not None and not 1 <= self.slack < math.inf:
            raise UsageError(f"slack is a number >= 1, got {self.slack!r}")

    @property
    def needs_solutions(self) -> bool:
        """Whether the envs solve the tasks first."""
        return self.slack is not None or self.is_relative


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Section [data]. Paths are run folders, files of rollouts, or rollout stores."""

    rollouts: tuple[str, ...] = ()
    """Of the model that is trained, or one with its tokenizer: tokens stay as they were sampled."""
    teachers: tuple[str, ...] = ()
    """Of anybody, learned from whatever their reward: tokens are made of their messages."""
    oracle: OracleConfig | None = None
    """Teachers that are made at the start."""
    collect: CollectConfig | None = None
    """What the model plays at the start."""
    teacher_weight: float = 1.0
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
        if not 0 < self.teacher_weight < math.inf:
            raise UsageError(f"teacher_weight is a number > 0, got {self.teacher_weight!r}")
        if self.min_reward is not None and not math.isfinite(self.min_reward):
            raise UsageError(f"min_reward is a finite number, got {self.min_reward!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """Keys of section [train] that are not the trainer's."""

    num_steps: int | None = None
    """Optimizer steps; None: as many as `num_epochs` takes."""
    num_epochs: int | None = None
    """Times every rollout is trained on; 1 if `num_steps` is None too."""
    batch_rollouts: int = 8
    """Rollouts of one step; an epoch's last step has what is left."""
    seed: int = 0
    """Orders the rollouts; the trainer's too."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "num_epochs"):
            if (value := getattr(self, name)) is not None:
                at_least(name, value, 1)
        at_least("batch_rollouts", self.batch_rollouts, 1)
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
class CheckpointConfig:
    """Section [checkpoint]."""

    every_steps: int = 100
    """The last step always makes one, and so does Ctrl-C."""
    max_checkpoints: int = 2
    """The newest that are kept."""

    def __post_init__(self) -> None:
        at_least("every_steps", self.every_steps, 1)
        at_least("max_checkpoints", self.max_checkpoints, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackConfig:
    """One of sections [[track]]."""

    name: str
    """Of a tracker: `tensorboard`, `trackio`, `wandb`, or a plugin's."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The section's other keys, which the tracker takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRunConfig:
    """A whole run.

    Example:
        TrainRunConfig(kind=TrainKind.SFT, model=ModelConfig(path="models/tiny"),
                       data=DataConfig(rollouts=("runs/oracle",)))
    """

    kind: TrainKind
    model: ModelConfig
    data: DataConfig
    loop: LoopConfig = field(default_factory=LoopConfig)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """The other keys of [train]: options of `TrainerConfig`."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    track: tuple[TrackConfig, ...] = ()

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

    def trainer_config(self, num_steps: int) -> TrainerConfig:
        """Return the trainer's settings; a learning rate that falls does so over `num_steps`.

        Raises `ValueError` for options that are not known or do not go together.
        """
        options = {**self.trainer, "seed": self.loop.seed}
        if options.get("schedule", "constant") != "constant":
            options["num_steps"] = num_steps
        return TrainerConfig.of(options)

    def identity(self) -> dict[str, Any]:
        """Return what has to be equal for a run to be continued, as plain JSON values.

        How long it is trained, how often it is saved and who is told may change.
        """
        found = dataclasses.asdict(self)
        trainer = self.trainer_config(_MANY).to_json()
        for section, key in ((found["loop"], "num_steps"), (found["loop"], "num_epochs"),
                             (trainer, "num_steps")):  # fmt: skip
            del section[key]
        return {**{name: found[name] for name in ("kind", "model", "data", "loop")},
                "trainer": trainer}  # fmt: skip


def at_least(name: str, value: int, least: int) -> None:
    """Raise `UsageError` for less."""
    if value < least:
        raise UsageError(f"{name} is an int >= {least}, got {value!r}")
