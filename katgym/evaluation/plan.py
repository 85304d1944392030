"""The plan of an evaluation: envs with their arguments, tasks, attempts, seeds.

The plan of a configuration is the same in every process, so that a second run of the same command
finds what the first one finished. Not here: playing it (`run.py`), keeping it (`store.py`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

import msgspec
import numpy as np

from katgym.cluster.cluster_config import ClusterConfig
from katgym.environment.env import Env
from katgym.errors import UsageError, check_name
from katgym.play.engine import RolloutRequest
from katgym.play.limits import Limits
from katgym.play.seeding import derive_seed
from katgym.plugins.registry import make
from katgym.policies.base import Sampling

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingConfig:
    """Test-time scaling: how one of several attempts at a task is chosen (`scaling/`)."""

    best_of: int = 1
    """Attempts that are played side by side."""
    judge: str = ""
    """URI of the policy that compares answers; "": the answer of most attempts wins."""
    reflect: int = 0
    """Attempts after those at most, each told the policy's own criticism of the chosen one."""
    filter: bool = True
    """Leave out attempts without an answer, or with a problem that their env sees."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `best_of=8,judge=URI,reflect=2`; `UsageError` says what is wrong."""
        form = "its form is best_of=8,judge=URI,reflect=2,filter=false, each part at most once"
        found: dict[str, str] = {}
        for name, _, value in (part.partition("=") for part in re.split(r",(?=\w+=)", text)):
            check_name("part of tts", name, [item.name for item in fields(cls)])
            if name in found or not value:
                raise UsageError(f"cannot read tts {text!r} at {name!r}: {form}")
            found[name] = value
        try:
            config = msgspec.convert(found, cls, strict=False)
        except msgspec.ValidationError as e:
            raise UsageError(f"cannot read tts {text!r}: {e}; {form}") from e
        if config.best_of < 1 or config.reflect < 0 or config.best_of + config.reflect < 2:
            raise UsageError(f"tts {text!r} leaves nothing to choose: best_of >= 2 or reflect >= 1")
        return config

    @property
    def max_episodes(self) -> int:
        """Attempts at a task, criticisms and questions for the judge, at most."""
        return self.best_of + 2 * self.reflect + (self.reflect + 1) * bool(self.judge)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """One evaluation; who plays it, how many at a time and how often is not its identity."""

    envs: tuple[str, ...]
    """Env ids, or FILE.py:CLASS, each with `?name=value&...`: `katgym/Arithmetic-v1?level=3`."""
    policy: str
    """URI of the policy: oracle, noop, random, smollm2, hf:MODEL, vllm:URL#MODEL, ..."""
    num_tasks: int = 100
    """Of each env; all of them if the split has fewer."""
    group_size: int = 1
    """Attempts per task."""
    seed: int = 0
    """Chooses the tasks and seeds env and sampling of every rollout."""
    split: str = "test"
    """Split of the tasks: train, validation or test."""
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    max_concurrency: int = 16
    """Rollouts at a time."""
    max_retries: int = 1
    """Attempts after the first, after infrastructure faults."""
    num_workers: int = 0
    """Processes that play; 0: the command's own."""
    tts: str = ""
    """Test-time scaling, best_of=8,judge=URI,reflect=2: one of several attempts at each task is
    chosen without its reward, and counts; "": none."""
    cluster: str = ""
    """Ray cluster that places the workers: HOST:PORT, auto or local; "": they are on this
    machine."""

    def __post_init__(self) -> None:
        for name in ("num_tasks", "group_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is >= 1, got {getattr(self, name)!r}")
        if self.num_workers < 0:
            raise UsageError(f"num_workers is >= 0, got {self.num_workers!r}")
        if self.tts:
            ScalingConfig.parse(self.tts)
            if self.group_size > 1:
                raise UsageError("tts chooses one attempt a task; best_of says of how many")
        if self.cluster and not self.num_workers:
            raise UsageError("a cluster needs a number of workers that play there: --workers N")
        if self.cluster:
            ClusterConfig(address=self.cluster)
        if not self.envs:
            raise UsageError("an evaluation needs at least one env; `katgym envs` lists them")

    def identity(self) -> dict[str, Any]:
        """Return how every rollout of it is played, whatever the env and the task."""
        return {
            "policy": self.policy,
            "split": self.split,
            "seed": self.seed,
            "group_size": self.group_size,
            "sampling": asdict(self.sampling),
            "limits": asdict(self.limits),
            **({"tts": self.tts} if self.tts else {}),
        }


@dataclass(frozen=True, slots=True)
class PlannedEnv:
    """One env of the plan, with the tasks chosen for it."""

    env: Env
    env_id: str
    kwargs: Mapping[str, Any]
    task_sha256: Mapping[str, str]
    """Chosen task ids with their content hashes, in playing order."""

    def lock(self) -> dict[str, Any]:
        """Return what `lock.json` says of this env."""
        hashes = json.dumps(sorted(self.task_sha256.items())).encode()
        return {
            "env_id": self.env_id,
            "kwargs": dict(self.kwargs),
            "plugin_version": self.env.plugin_version,
            "max_turns": self.env.max_turns,
            "num_tasks": len(self.task_sha256),
            "tasks_sha256": hashlib.sha256(hashes).hexdigest(),
            "tasks": dict(self.task_sha256),
            "tools": [tool.to_openai() for tool in self.env.tools.values()],
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """Every rollout of an evaluation, in order."""

    config: EvalConfig
    envs: tuple[PlannedEnv, ...]

    @classmethod
    def of(cls, config: EvalConfig) -> Plan:
        """Make the envs and choose their tasks; raises `UsageError` for what cannot be played."""
        planned = tuple(plan_env(*parse_env(text), config) for text in config.envs)
        ids = [item.env_id for item in planned]
        for env_id in ids:
            if ids.count(env_id) > 1:
                raise UsageError(
                    f"env {env_id!r} is named twice; give each set of arguments its own run"
                )
        return cls(config, planned)

    def __len__(self) -> int:
        return sum(len(item.task_sha256) for item in self.envs) * self.config.group_size

    def requests(self) -> Iterator[RolloutRequest]:
        """Yield all rollouts, attempts of one task behind each other.

        Attempts share the env's seed, so that they meet the same episode.
        """
        for item in self.envs:
            for task_id in item.task_sha256:
                for attempt in range(self.config.group_size):
                    yield RolloutRequest(
                        env=item.env,
                        seed=derive_seed("env", self.config.seed, item.env_id, task_id),
                        task_id=task_id,
                        split=self.config.split,
                        attempt=attempt,
                        key=rollout_key(item.env_id, task_id, attempt),
                    )

    def identity(self) -> dict[str, Any]:
        """Return what has to be equal for two runs to be one: goes into `lock.json`."""
        return {**self.config.identity(), "envs": [item.lock() for item in self.envs]}


def rollout_key(env_id: str, task_id: str, attempt: int) -> str:
    """Return what names one rollout within a run."""
    return f"{env_id} {task_id} {attempt}"


def parse_env(text: str) -> tuple[str, dict[str, Any]]:
    """Split `id?name=value&...` into the id and keyword arguments; values are JSON or text.

    Example:
        >>> parse_env("katgym/OpenSpiel-v0?game=tic_tac_toe&max_turns=9")
        ('katgym/OpenSpiel-v0', {'game': 'tic_tac_toe', 'max_turns': 9})
    """
    env_id, mark, query = text.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark))
    except ValueError as e:
        raise UsageError(f"env {text!r}: arguments have the form ?name=value&name=value") from e
    return env_id, {name: _json_or_text(value) for name, value in pairs}


def make_single(text: str) -> Env:
    """Return the env of `id?name=value&...` for one client; `UsageError` if it has more seats."""
    env_id, kwargs = parse_env(text)
    env = make(env_id, **kwargs)
    if len(env.seats) > 1:
        raise UsageError(f"env {text!r} has {len(env.seats)} seats; one can be served")
    return env


def env_text(env_id: str, kwargs: Mapping[str, Any]) -> str:
    """Return `id?name=value&...`, which `parse_env` reads back."""
    texts = {}
    for name, value in kwargs.items():
        is_plain = isinstance(value, str) and _json_or_text(value) == value  # the text "3" is not
        texts[name] = value if is_plain else json.dumps(value)
    return f"{env_id}?{urlencode(texts, safe='/:,')}" if texts else env_id


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def plan_env(env_id: str, kwargs: Mapping[str, Any], config: EvalConfig) -> PlannedEnv:
    """Make an env and choose its tasks: the same for equal seed, split and number of tasks."""
    env = make(env_id, **kwargs)
    if len(env.seats) > 1:
        raise UsageError(
            f"env {env_id!r} has {len(env.seats)} seats; `katgym eval` and `katgym rollouts"
            " collect` play one. Use katgym.run_match, or another opponent."
        )
    tasks = env.tasks(config.split)
    if len(tasks) < config.num_tasks:
        logger.warning(
            "%s has %d tasks in split %r: all are played", env_id, len(tasks), config.split
        )
    rng = np.random.default_rng(derive_seed("tasks", config.seed, env_id))
    count = min(config.num_tasks, len(tasks))
    chosen = rng.choice(len(tasks), size=count, replace=False)
    return PlannedEnv(
        env, env_id, kwargs, {t.task_id: t.sha256 for t in (tasks[int(i)] for i in sorted(chosen))}
    )
