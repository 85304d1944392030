"""The TOML file of `katgym eval FILE.toml`: models by envs by seeds, with prices and a budget.

    envs = ["katgym/Arithmetic-v1?level=2", "katgym/TreasureHunt-v1"]
    num_tasks = 50
    max_cost = 5.0

    [[models]]
    policy = "openai:https://api.openai.com/v1#gpt-4.1-mini"
    prompt_price = 0.4
    completion_price = 1.6

    [[models]]
    policy = "openai:https://api.example.com/v1#other"
    key = "EXAMPLE_API_KEY"

Not here: playing it (`suite.py`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from katgym.config.json_schema import DIALECT, Schema, table_schema
from katgym.config.sections import section
from katgym.config.toml_files import read_toml
from katgym.errors import UsageError
from katgym.evaluation.leaderboard.leaderboard_entry import Prices
from katgym.evaluation.plan import EvalConfig, parse_env
from katgym.play.limits import Limits
from katgym.policies.base import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteModel:
    """One of tables [[models]]."""

    policy: str
    """URI of the policy, as `--policy` takes it."""
    name: str = ""
    """On the board; "" is the model's name in the URI."""
    key: str = ""
    """Environment variable that holds the API key of this endpoint; "" is the policy's own."""
    prompt_price: float = 0.0
    """Dollars for a million prompt tokens."""
    completion_price: float = 0.0
    """Dollars for a million sampled tokens."""
    context_tokens: int = 0
    """Tokens of the model's context window: what a dry run takes every prompt to have at most; 0:
    not known."""
    max_concurrency: int = 16
    """Rollouts at a time."""
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        for name in ("prompt_price", "completion_price", "context_tokens"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is >= 0, got {getattr(self, name)!r}")
        if self.key and self.key not in os.environ:
            raise UsageError(
                f"environment variable {self.key!r}, which is to hold the key of"
                f" {self.label!r}, is not set"
            )

    @property
    def label(self) -> str:
        """The name on the board."""
        return self.name or self.policy.partition("?")[0].rpartition("#")[2]

    @property
    def uri(self) -> str:
        """The policy's URI, with where its key is."""
        if not self.key:
            return self.policy
        return f"{self.policy}{'&' if '?' in self.policy else '?'}key={self.key}"

    @property
    def prices(self) -> Prices:
        """What its tokens cost."""
        return Prices(prompt=self.prompt_price, completion=self.completion_price)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteConfig:
    """A whole suite: a run for each model, env and seed.

    Example:
        SuiteConfig(models=(SuiteModel(policy="oracle"),), envs=("katgym/Arithmetic-v1",))
    """

    models: tuple[SuiteModel, ...]
    envs: tuple[str, ...]
    """Env ids, each once, with ?name=value&... if needed."""
    seeds: tuple[int, ...] = (0,)
    """Each chooses tasks of its own, and seeds their episodes; a board's row has those of all."""
    num_tasks: int = 100
    """Of each env and seed; all of them if the split has fewer."""
    group_size: int = 1
    """Attempts per task."""
    split: str = "test"
    """Split of the tasks: train, validation or test."""
    limits: Limits = field(default_factory=Limits)
    max_cost: float | None = None
    """Dollars of the whole suite, earlier starts of it included, from which on no rollout is begun;
    those that run end. None: no limit."""

    def __post_init__(self) -> None:
        for name in ("models", "envs", "seeds"):
            if not getattr(self, name):
                raise UsageError(f"{name} is empty; a suite needs at least one")
        ids = [parse_env(env)[0] for env in self.envs]
        named = {"model": [model.label for model in self.models], "env": ids, "seed": self.seeds}
        for kind, found in named.items():
            value, count = Counter(found).most_common(1)[0]
            if count > 1:
                hint = "; give each its own `name`" if kind == "model" else ""
                raise UsageError(f"{kind} {value!r} is there {count} times{hint}")
        if self.max_cost is not None and not self.max_cost > 0:
            raise UsageError(f"max_cost is > 0, got {self.max_cost!r}")
        is_free = not any(m.prompt_price or m.completion_price for m in self.models)
        if self.max_cost is not None and is_free:
            raise UsageError(
                "max_cost holds nothing back: no model has a prompt_price or a completion_price"
            )
        for model in self.models:
            self.config_of(model, self.envs[0], self.seeds[0])

    @classmethod
    def read(cls, path: Path, settings: Sequence[str] = ()) -> SuiteConfig:
        """Return the suite that a file describes, with settings in place of the file's."""
        return section(cls, read_toml(path, settings), path.name)

    def config_of(self, model: SuiteModel, env: str, seed: int) -> EvalConfig:
        """Return the configuration of one run."""
        return EvalConfig(
            envs=(env,),
            policy=model.uri,
            num_tasks=self.num_tasks,
            group_size=self.group_size,
            seed=seed,
            split=self.split,
            sampling=model.sampling,
            limits=self.limits,
            max_concurrency=model.max_concurrency,
        )


def make_schemas() -> dict[str, Schema]:
    """Return file name -> JSON Schema of the file."""
    schema = {"title": "katgym eval FILE.toml", **table_schema(SuiteConfig)}
    return {"eval-suite.json": {"$schema": DIALECT, **schema}}
