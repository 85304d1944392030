"""The TOML file of `katgym train rl` as frozen dataclasses, one for each section.

Not here: sections that all kinds of runs have, and reading them (`run_config.py`), what can be
wrong with a model or an env (`rl/rl_checks.py`), how a trainer trains (`trainer_config.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from katgym.errors import UsageError
from katgym.evaluation.plan import parse_env
from katgym.play.limits import Limits
from katgym.plugins.env_file import file_versions
from katgym.policies.base import Sampling
from katgym.vllm_server.config import TransferBackend
from katgym_trainer.algorithms import resolve_algorithm
from katgym_trainer.config.frozen_models import ReferenceConfig, TeacherConfig, check_frozen
from katgym_trainer.config.rewards_config import RewardsConfig
from katgym_trainer.config.rules import (
    Count,
    CountOrZero,
    Decay,
    NotNegative,
    Pair,
    Positive,
    Share,
    changed_fields,
    check_fields,
)
from katgym_trainer.config.run_config import CheckpointConfig, RunConfig, RunLoopConfig, leave_out
from katgym_trainer.config.server_config import (
    OWN,
    ServerConfig,
    check_cluster,
    check_gateways,
    check_servers,
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
    """Such groups are given up, and others played: what takes long is trained on less often."""
    PARTIAL = "partial"
    """Such groups play on, and their tokens that are too old when they end are context alone."""


class SyncKind(StrEnum):
    """How weights get to vLLM servers."""

    AUTO = "auto"
    """`lora` if adapters are trained, else `reload`."""
    LORA = "lora"
    RELOAD = "reload"
    NCCL = "nccl"
    NCCL_M2N = "nccl_m2n"
    IPC = "ipc"

    @property
    def backend(self) -> TransferBackend:
        """Which of vLLM's transfer engines brings them; none for files."""
        is_transfer = self in (SyncKind.NCCL, SyncKind.NCCL_M2N, SyncKind.IPC)
        return TransferBackend(self.value if is_transfer else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """One of sections [[envs]]: what is played, and how much of it."""

    id: str
    """Env id, or FILE.py:CLASS, with ?name=value&... if needed."""
    weight: Positive = 1.0
    """Its share of the groups, relative to the others'."""
    split: str = "train"
    num_tasks: Count = 256
    """Tasks that are drawn from the split, once, and played again and again; all if it has
    fewer."""
    curriculum: Sequence[Mapping[str, Any]] = ()
    """Env arguments of one lesson after the other, added to those of `id`; empty: one lesson."""
    advance_at: Share = 0.8
    """Success rate at which the next lesson begins, over the last `window` groups."""
    window: Count = 16
    """Groups."""
    review: Share = 0.1
    """Share of groups from earlier lessons."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)
        env_id, kwargs = parse_env(self.id)
        for lesson in self.curriculum:
            both = sorted(set(lesson) & set(kwargs))
            if both:
                raise UsageError(f"{both[0]!r} is in `id` ({self.id!r}) and in the curriculum")
        changed = changed_fields(self, ("advance_at", "window", "review"))
        if changed and not self.curriculum:
            raise UsageError(f"{changed[0]} changes nothing for {env_id!r} without a curriculum")

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
    temperature: Positive = 1.0
    max_tokens: Count = 512
    """Sampled tokens a turn."""
    max_context_tokens: Pair = 4096
    """Prompt plus completion tokens of a model call."""
    max_batch_size: Count = 128
    """Completions decoded together, in this process."""
    sync: SyncKind = SyncKind.AUTO
    """Way of the weights to a server."""
    gateway: str = ""
    """URL of the `katgym gateway` through which others play on the servers, or several with commas:
    paused while weights move, and told the version. The owner's key is in KATGYM_GATEWAY_KEY."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)
        if self.uri and self.uri != OWN and not self.uri.startswith("vllm:"):
            raise UsageError(
                f"uri is 'vllm', 'vllm:URL#NAME', or \"\" for this process, got {self.uri!r}:"
                " weights get to no other policy"
            )
        check_servers(self.servers, uri=self.uri, sync=self.sync.backend)
        has_own = any(not where.url for where in self.placed)
        if not has_own and (self.server_args or self.server_python):
            raise UsageError(
                "server_args and server_python are of a server that the run starts: uri = 'vllm',"
                " or one of its servers without a url"
            )
        check_gateways(self.gateway, self.placed)
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
        return tuple(one for one in self.servers for _ in range(one.count)) or (ServerConfig(),)

    @property
    def sampling(self) -> Sampling:
        """How completions are sampled."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsConfig:
    """Section [rollouts]: how groups are played."""

    num_groups: Count = 8
    """Groups of a step."""
    group_size: Pair = 8
    """Rollouts of a group."""
    max_concurrency: Count = 64
    """Rollouts played at the same time."""
    choice: TaskChoice = TaskChoice.DIFFICULTY
    floor: NotNegative = 0.05
    """Weight that settled tasks keep, of `TaskSampler`."""
    decay: Decay = 0.9
    """What a task's counts are multiplied by when it was played again."""
    max_offered: CountOrZero = 0
    """Groups that a step may play to have `num_groups` with two rewards that differ; 0 takes groups
    as they come."""
    max_staleness: CountOrZero = 0
    """Steps that weights which sampled a trained token may be old; 0: sampling and training take
    turns."""
    stale: StaleGroups = StaleGroups.WAIT
    max_turns: Count | None = None
    """Of an episode; None: the env's own."""
    max_episode_tokens: Count | None = None
    """Sampled tokens of an episode."""
    timeout_s: Positive | None = None
    """Wall seconds of an episode; an env that holds the clock then has hung, and is played again as
    `max_retries` says. None: a hang is waited for."""
    max_retries: CountOrZero = 1
    """Times that a rollout is played again when infrastructure broke."""
    store: str = ""
    """Folder of a store that others play groups into (`katgym rollouts collect`, a gateway),
    several with commas: they are trained on as they come, and the run plays none itself."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)
        if self.max_offered and self.max_offered < self.num_groups:
            raise UsageError(
                f"max_offered is 0 or at least num_groups ({self.num_groups}), got"
                f" {self.max_offered!r}"
            )
        if self.choice is TaskChoice.UNIFORM and changed_fields(self, ("floor", "decay")):
            raise UsageError("floor and decay change nothing with choice = 'uniform'")
        if self.stale is not StaleGroups.WAIT and self.max_staleness == 0:
            raise UsageError(f"stale = {self.stale.value!r} changes nothing with max_staleness = 0")
        of_playing = ("choice", "floor", "decay", "max_offered", "stale", "max_turns",
                      "max_episode_tokens", "timeout_s", "max_retries")  # fmt: skip
        if self.store and (changed := changed_fields(self, of_playing)):
            raise UsageError(f"{changed[0]} changes nothing: groups come from store, played")

    @property
    def limits(self) -> Limits:
        """Budgets of an episode."""
        return Limits(
            max_turns=self.max_turns, max_tokens=self.max_episode_tokens, timeout_s=self.timeout_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Section [evaluate]: held-out tasks, played every so many steps."""

    every_steps: CountOrZero = 0
    """0: never. The first weights and the last are evaluated too."""
    num_tasks: Count = 64
    """Of each env."""
    attempts: Count = 1
    """Rollouts of each task."""
    split: str = "validation"
    seed: int = 1
    temperature: NotNegative = 1.0
    """0 is greedy."""
    envs: tuple[str, ...] = ()
    """Env ids, each with ?name=value&...; empty: what is trained on, at the last lesson of each."""
    should_keep_best: bool = True
    """Whether `model/` holds the weights of the highest success rate, instead of the last."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)

    def compared(self) -> str:
        """Return what success rates have to share to be compared, as a hash."""
        names = ("num_tasks", "attempts", "split", "seed", "temperature", "envs")
        told = json.dumps([getattr(self, name) for name in names])
        return hashlib.sha256(told.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RlLoopConfig(RunLoopConfig):
    """Keys of section [train] that are not the trainer's."""

    algorithm: str = "grpo"
    """Of `katgym_trainer.ALGORITHMS`."""
    num_steps: Count = 100
    """Optimizer steps."""
    seed: CountOrZero = 0
    """Chooses tasks, and seeds envs and sampling; the trainer's too."""
    max_idle_steps: Count = 10
    """Steps in a row without a group to learn from after which the run ends with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RlCheckpointConfig(CheckpointConfig):
    """Section [checkpoint]."""

    every_steps: Count = 10
    """Steps between two. The last step always makes one, and so does Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RlConfig(RunConfig):
    """A whole run.

    Example:
        RlConfig(model=ModelConfig(path="models/tiny"),
                 envs=(EnvConfig(id="katgym/Arithmetic-v1?level=2"),))
    """

    decided: ClassVar[frozenset[str]] = frozenset({"temperature"})

    envs: tuple[EnvConfig, ...] = ()
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    rollouts: RolloutsConfig = field(default_factory=RolloutsConfig)
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    reference: ReferenceConfig | None = None
    """None: with `lora_rank` the model without its adapters."""
    teachers: tuple[TeacherConfig, ...] = ()
    loop: RlLoopConfig = field(default_factory=RlLoopConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: RlCheckpointConfig = field(default_factory=RlCheckpointConfig)

    def check(self) -> None:
        """Raise `UsageError` for sections that contradict each other."""
        ids = [env.id for env in self.envs]
        for env_id in ids:
            if ids.count(env_id) > 1:
                raise UsageError(f"[[envs]]: {env_id!r} is there twice; once, with a weight")
        store = self.rollouts.store
        if self.envs and store:
            raise UsageError(
                "has [[envs]], and [rollouts] store: others play those groups; leave one out"
            )
        if not self.envs and not store:
            raise UsageError("has no section [[envs]]")
        if self.policy.gateway and not store:
            raise UsageError(
                "[policy] gateway changes nothing without [rollouts] store: the folder that katgym"
                " gateway was given"
            )
        check_cluster(self.cluster, self.policy.servers, uri=self.policy.uri, store=store)
        if self.evaluate.every_steps and not (self.evaluate.envs or self.envs):
            raise UsageError("[evaluate] needs envs: what is in the store does not tell them")
        try:
            trainer = self.trainer_config()
            algorithm, loss = resolve_algorithm(
                self.loop.algorithm, trainer, has_teachers=bool(self.teachers)
            )
        except ValueError as e:
            raise UsageError(f"[train]: {e}") from e
        if algorithm.advantage is None:
            raise UsageError(
                f"[train]: algorithm {self.loop.algorithm!r} makes no advantages of rewards; it is"
                " trained with katgym train sft"
            )
        if self.policy.sync is SyncKind.LORA and not trainer.lora_rank:
            raise UsageError("[train]: [policy] sync = 'lora' needs lora_rank >= 1, got 0")
        check_frozen(
            self.reference, self.teachers, loss.needs, has_adapters=bool(trainer.lora_rank),
            env_ids=[parse_env(env_id)[0] for env_id in ids], max_offered=self.rollouts.max_offered,
        )  # fmt: skip
        if trainer.should_compile and "--enable-return-routed-experts" in self.policy.server_args:
            raise UsageError(
                "[train] should_compile: compiled layers do not replay the experts that servers"
                " tell by --enable-return-routed-experts ([policy] server_args); leave out one"
            )
        self.rewards.check(self.rollouts.max_episode_tokens)
        if self.policy.max_context_tokens > trainer.max_tokens and not trainer.should_split:
            raise UsageError(
                f"[policy] max_context_tokens ({self.policy.max_context_tokens}) is more than"
                f" [train] max_tokens ({trainer.max_tokens}): a rollout that uses it could not be"
                " trained on. Lower the one, raise the other, or set should_split = true"
            )
        if self.policy.max_tokens >= self.policy.max_context_tokens:
            raise UsageError(
                f"[policy] max_tokens ({self.policy.max_tokens}) leaves no room for a prompt in"
                f" max_context_tokens ({self.policy.max_context_tokens})"
            )

    def trainer_config(self) -> TrainerConfig:
        """Return the trainer's settings; `ValueError` for options that do not go together."""
        return self.make_trainer_config(self.loop.num_steps, temperature=self.policy.temperature)

    def identity(self) -> dict[str, Any]:
        """Return what has to be equal for a run to be continued, as plain JSON values.

        How long it is trained, how often saved and evaluated, how many play at a time, where, and
        who is told may change.
        """
        found = {**dataclasses.asdict(self), "trainer": self.trainer_config().to_json()}
        names = (
            "model", "envs", "policy", "rollouts", "rewards", "reference", "teachers", "loop",
            "trainer",
        )  # fmt: skip
        found = leave_out(
            {name: found[name] for name in names},
            "loop.num_steps", "loop.max_idle_steps", "trainer.num_steps",
            "trainer.max_nonfinite_updates",
            "rollouts.max_concurrency", "policy.uri", "policy.max_batch_size", "policy.servers",
            "policy.server_args", "policy.server_python", "policy.gateway",
        )  # fmt: skip
        files = file_versions(env.lessons[0][0] for env in self.envs)
        return {"kind": "rl", **found, **({"env_files": files} if files else {})}
