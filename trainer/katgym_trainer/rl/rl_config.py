"""What `katgym train rl` is told: a TOML file as frozen dataclasses, one for each section.

Not here: reading the file (`rl_config_file.py`), sections that all kinds of runs have
(`runs/train_run_config.py`), how a trainer trains (`trainer_config.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from katgym.errors import UsageError
from katgym.evaluation.plan import parse_env
from katgym.limits import Limits
from katgym.policies.base import Sampling
from katgym_trainer.rl.placement import OWN, ServerConfig, check_servers
from katgym_trainer.runs.train_run_config import (
    CheckpointConfig,
    ModelConfig,
    TrackConfig,
    at_least,
)
from katgym_trainer.trainer_config import TrainerConfig


class TaskChoice(StrEnum):
    """How the tasks of a step are drawn."""

    DIFFICULTY = "difficulty"
    """Those of open outcome more often (`TaskSampler`)."""
    UNIFORM = "uniform"
    """All alike."""


class StaleGroups(StrEnum):
    """How it is seen to that no step trains on groups of weights that are too old."""

    WAIT = "wait"
    """A step waits for the groups that the next one would find too old: none is lost, and one slow
    rollout holds up all."""
    DROP = "drop"
    """Such groups are given up, and others are played: quicker, and what takes long is trained on
    less often than it is met."""


class SyncKind(StrEnum):
    """How weights get to vLLM servers."""

    AUTO = "auto"
    """`lora` if adapters are trained, else `reload`."""
    LORA = "lora"
    RELOAD = "reload"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """One of sections [[envs]]: what is played, and how much of it."""

    id: str
    """Env id, with ?name=value&... if needed."""
    weight: float = 1.0
    """Its share of the groups, relative to the others'."""
    split: str = "train"
    num_tasks: int = 256
    """Tasks that are drawn from the split, once, and played again and again; all if it has
    fewer."""
    curriculum: Sequence[Mapping[str, Any]] = ()
    """Env arguments of one lesson after the other, added to those of `id`; empty: one lesson."""
    advance_at: float = 0.8
    """Success rate at which the next lesson begins, over the last `window` groups."""
    window: int = 16
    """Groups."""
    review: float = 0.1
    """Share of groups from earlier lessons."""

    def __post_init__(self) -> None:
        positive("weight", self.weight)
        at_least("num_tasks", self.num_tasks, 1)
        at_least("window", self.window, 1)
        share("advance_at", self.advance_at)
        share("review", self.review)
        env_id, kwargs = parse_env(self.id)
        for lesson in self.curriculum:
            both = sorted(set(lesson) & set(kwargs))
            if both:
                raise UsageError(f"{both[0]!r} is in `id` ({self.id!r}) and in the curriculum")
        if not self.curriculum:
            for name in ("advance_at", "window", "review"):
                default = next(f.default for f in dataclasses.fields(self) if f.name == name)
                if getattr(self, name) != default:
                    raise UsageError(f"{name} changes nothing for {env_id!r} without a curriculum")

    @property
    def lessons(self) -> list[tuple[str, dict[str, Any]]]:
        """Env id and arguments of each lesson."""
        env_id, kwargs = parse_env(self.id)
        return [(env_id, {**kwargs, **lesson}) for lesson in self.curriculum or ({},)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Section [policy]: who plays, and how it samples."""

    uri: str = ""
    """`vllm`: a server that the run starts, and starts again when it dies, or those of `servers`;
    `vllm:URL#NAME`: one that is there, with the routes of `katgym vllm serve --rl`; "": the model
    plays in this process."""
    servers: tuple[ServerConfig, ...] = ()
    """Of uri `vllm`, each a section [[policy.servers]]; none: one that only samples."""
    server_args: tuple[str, ...] = ()
    """Further arguments of the servers that the run starts."""
    server_python: str = ""
    """Python of an environment with vLLM for them; "" is the one `katgym vllm install` makes."""
    temperature: float = 1.0
    max_tokens: int = 512
    """Sampled tokens a turn."""
    max_context_tokens: int = 4096
    """Prompt plus completion tokens of a model call."""
    max_batch_size: int = 128
    """Completions decoded together, in this process."""
    sync: SyncKind = SyncKind.AUTO
    """Way of the weights to a server."""
    gateway: str = ""
    """URL of the `katgym gateway` through which others play on the server: it is paused while the
    weights move and told their version. Its owner's key is in KATGYM_GATEWAY_KEY."""

    def __post_init__(self) -> None:
        positive("temperature", self.temperature)
        at_least("max_tokens", self.max_tokens, 1)
        at_least("max_context_tokens", self.max_context_tokens, 2)
        at_least("max_batch_size", self.max_batch_size, 1)
        if self.uri and self.uri != OWN and not self.uri.startswith("vllm:"):
            raise UsageError(
                f"uri is 'vllm', 'vllm:URL#NAME', or \"\" for this process, got {self.uri!r}:"
                " weights get to no other policy"
            )
        check_servers(self.servers, uri=self.uri, gateway=self.gateway)
        has_own = any(not where.url for where in self.placed)
        if not has_own and (self.server_args or self.server_python):
            raise UsageError(
                "server_args and server_python are of a server that the run starts: uri = 'vllm',"
                " or one of its servers without a url"
            )
        if self.gateway and not self.uri.startswith("vllm:"):
            raise UsageError(
                f"gateway = {self.gateway!r} stands in front of a server, which gets the weights:"
                " name it with uri = 'vllm:URL#NAME'"
            )
        if self.gateway and not self.gateway.startswith(("http://", "https://")):
            raise UsageError(f"gateway {self.gateway!r} is no URL, as http://127.0.0.1:8900 is")
        if not self.uri and self.sync is not SyncKind.AUTO:
            raise UsageError(f"sync = {self.sync.value!r} changes nothing without a uri")
        if self.uri and self.max_batch_size != 128:
            raise UsageError("max_batch_size is of the policy in this process; servers have theirs")

    @property
    def placed(self) -> tuple[ServerConfig, ...]:
        """The servers; none where the model plays in this process."""
        if not self.uri:
            return ()
        if self.uri != OWN:
            return (ServerConfig(url=self.uri.removeprefix("vllm:")),)
        return self.servers or (ServerConfig(),)

    @property
    def sampling(self) -> Sampling:
        """How completions are sampled."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsConfig:
    """Section [rollouts]: how groups are played."""

    num_groups: int = 8
    """Groups of a step."""
    group_size: int = 8
    """Rollouts of a group."""
    max_concurrency: int = 64
    """Rollouts played at the same time."""
    choice: TaskChoice = TaskChoice.DIFFICULTY
    floor: float = 0.05
    """Weight that settled tasks keep, of `TaskSampler`."""
    decay: float = 0.9
    """What a task's counts are multiplied by when it was played again."""
    max_offered: int = 0
    """Groups that a step may play to have `num_groups` with two rewards that differ; 0 takes groups
    as they come."""
    max_staleness: int = 0
    """Steps that the weights which sampled a rollout may be old; 0: sampling and training take
    turns."""
    stale: StaleGroups = StaleGroups.WAIT
    max_turns: int | None = None
    """Of an episode; None: the env's own."""
    max_episode_tokens: int | None = None
    """Sampled tokens of an episode."""
    timeout_s: float | None = None
    """Wall seconds of an episode; an env that holds the clock then has hung, and is played again as
    `max_retries` says. None: a hang is waited for."""
    max_retries: int = 1
    """Times that a rollout is played again when infrastructure broke."""
    store: str = ""
    """Folder of a store that others play groups into (`katgym rollouts collect`, a gateway): they
    are trained on as they come, and the run plays none itself."""

    def __post_init__(self) -> None:
        for name in ("num_groups", "max_concurrency"):
            at_least(name, getattr(self, name), 1)
        at_least("group_size", self.group_size, 2)
        at_least("max_staleness", self.max_staleness, 0)
        at_least("max_retries", self.max_retries, 0)
        if self.max_offered and self.max_offered < self.num_groups:
            raise UsageError(
                f"max_offered is 0 or at least num_groups ({self.num_groups}), got"
                f" {self.max_offered!r}"
            )
        if not 0 <= self.floor < math.inf:
            raise UsageError(f"floor is a number >= 0, got {self.floor!r}")
        if not 0 < self.decay <= 1:
            raise UsageError(f"decay is above 0 and at most 1, got {self.decay!r}")
        self._check_what_applies()

    def _check_what_applies(self) -> None:
        if self.choice is TaskChoice.UNIFORM and (self.floor, self.decay) != (0.05, 0.9):
            raise UsageError("floor and decay change nothing with choice = 'uniform'")
        if self.stale is StaleGroups.DROP and self.max_staleness == 0:
            raise UsageError("stale = 'drop' changes nothing with max_staleness = 0")
        if self.store:
            self._check_no_playing()

    def _check_no_playing(self) -> None:
        playing = ("choice", "floor", "decay", "max_offered", "stale", "max_turns",
                   "max_episode_tokens", "timeout_s", "max_retries")  # fmt: skip
        for item in dataclasses.fields(self):
            if item.name in playing and getattr(self, item.name) != item.default:
                raise UsageError(f"{item.name} changes nothing: groups come from store, played")

    @property
    def limits(self) -> Limits:
        """Budgets of an episode."""
        return Limits(
            max_turns=self.max_turns, max_tokens=self.max_episode_tokens, timeout_s=self.timeout_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Section [evaluate]: held-out tasks, played every so many steps."""

    every_steps: int = 0
    """0: never. The first weights and the last are evaluated too."""
    num_tasks: int = 64
    """Of each env."""
    attempts: int = 1
    """Rollouts of each task."""
    split: str = "validation"
    seed: int = 1
    temperature: float = 1.0
    """0 is greedy."""
    envs: tuple[str, ...] = ()
    """Env ids, each with ?name=value&...; empty: what is trained on, at the last lesson of each."""
    should_keep_best: bool = True
    """Whether `model/` holds the weights of the highest success rate, instead of the last."""

    def __post_init__(self) -> None:
        at_least("every_steps", self.every_steps, 0)
        at_least("num_tasks", self.num_tasks, 1)
        at_least("attempts", self.attempts, 1)
        if not self.temperature >= 0:
            raise UsageError(f"temperature is >= 0, got {self.temperature!r}")

    def compared(self) -> str:
        """Return what success rates have to share to be compared, as a hash."""
        names = ("num_tasks", "attempts", "split", "seed", "temperature", "envs")
        told = json.dumps([getattr(self, name) for name in names])
        return hashlib.sha256(told.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RlLoopConfig:
    """Keys of section [train] that are not the trainer's."""

    algorithm: str = "grpo"
    """Of `katgym_trainer.ALGORITHMS`."""
    num_steps: int = 100
    seed: int = 0
    """Chooses tasks, and seeds envs and sampling; the trainer's too."""
    max_idle_steps: int = 10
    """Steps in a row without a group to learn from after which the run ends with an error."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "max_idle_steps"):
            at_least(name, getattr(self, name), 1)
        at_least("seed", self.seed, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlConfig:
    """A whole run.

    Example:
        RlConfig(model=ModelConfig(path="models/tiny"),
                 envs=(EnvConfig(id="katgym/Arithmetic-v0?level=2"),))
    """

    model: ModelConfig
    envs: tuple[EnvConfig, ...]
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    rollouts: RolloutsConfig = field(default_factory=RolloutsConfig)
    loop: RlLoopConfig = field(default_factory=RlLoopConfig)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """The other keys of [train]: options of `TrainerConfig`."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=lambda: CheckpointConfig(every_steps=10))
    track: tuple[TrackConfig, ...] = ()

    def trainer_config(self) -> TrainerConfig:
        """Return the trainer's settings; `ValueError` for options that do not go together."""
        options = {
            **self.trainer,
            "seed": self.loop.seed,
            "temperature": self.policy.temperature,
        }
        if options.get("schedule", "constant") != "constant":
            options["num_steps"] = self.loop.num_steps
        return TrainerConfig.of(options)

    def identity(self) -> dict[str, Any]:
        """Return what has to be equal for a run to be continued, as plain JSON values.

        How long it is trained, how often it is saved and evaluated, how many play at the same time
        and who is told may change.
        """
        found = dataclasses.asdict(self)
        trainer = self.trainer_config().to_json()
        for section, key in (
            (found["loop"], "num_steps"), (found["loop"], "max_idle_steps"),
            (trainer, "num_steps"), (found["rollouts"], "max_concurrency"),
            (found["policy"], "uri"), (found["policy"], "max_batch_size"),
            (found["policy"], "servers"), (found["policy"], "server_args"),
            (found["policy"], "server_python"), (found["policy"], "gateway"),
        ):  # fmt: skip
            del section[key]
        names = ("model", "envs", "policy", "rollouts", "loop")
        return {"kind": "rl", **{name: found[name] for name in names}, "trainer": trainer}


def positive(name: str, value: float) -> None:
    """Raise `UsageError` unless a number is above 0 and finite."""
    if not 0 < value < math.inf:
        raise UsageError(f"{name} is a number > 0, got {value!r}")


def share(name: str, value: float) -> None:
    """Raise `UsageError` unless a number is from 0 to 1."""
    if not 0 <= value <= 1:
        raise UsageError(f"{name} is a number from 0 to 1, got {value!r}")
