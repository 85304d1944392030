"""Reads the TOML file of `katgym train rl`; what is wrong is named with its section.

Not here: what the sections mean (`rl_config.py`), what can be wrong with a model or an env
(`rl_checks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katgym.errors import UsageError
from katgym_trainer.algorithms import resolved
from katgym_trainer.rl.placement import ServerConfig
from katgym_trainer.rl.rl_config import (
    EnvConfig,
    EvaluateConfig,
    PolicyConfig,
    RlConfig,
    RlLoopConfig,
    RolloutsConfig,
    SyncKind,
)
from katgym_trainer.runs.toml_sections import check_keys, names, section, table
from katgym_trainer.runs.train_config_file import trackers
from katgym_trainer.runs.train_run_config import CheckpointConfig, ModelConfig
from katgym_trainer.trainer_config import TrainerConfig

SECTIONS = ("model", "envs", "policy", "rollouts", "train", "evaluate", "checkpoint", "track")
_OURS = ("num_steps", "seed", "temperature")
"""Options of the trainer that other keys of the file decide."""


def parse_rl_config(raw: Mapping[str, Any], *, name: str, num_steps: int | None = None) -> RlConfig:
    """Return the run that a file's content describes; `UsageError` says what is wrong in it.

    name: what errors call the file. num_steps: in place of the file's.
    """
    check_keys(raw, SECTIONS, f"section of {name}")
    if not raw.get("model"):
        raise UsageError(f"{name} has no section [model]")
    where = f"{name} [train]"
    train = dict(table(raw.get("train", {}), where))
    if num_steps is not None:
        train["num_steps"] = num_steps
    of_loop = names(RlLoopConfig)
    of_trainer = [key for key in names(TrainerConfig) if key not in _OURS]
    check_keys(train, {*of_loop, *of_trainer}, f"key of {where}")

    def of(cls: Any, key: str) -> Any:
        return section(cls, raw.get(key, {}), f"{name} [{key}]")

    checkpoint = {"every_steps": 10, **table(raw.get("checkpoint", {}), f"{name} [checkpoint]")}
    config = RlConfig(
        model=of(ModelConfig, "model"),
        envs=_envs(raw.get("envs", []), name),
        policy=_policy(raw.get("policy", {}), f"{name} [policy]"),
        rollouts=of(RolloutsConfig, "rollouts"),
        loop=section(RlLoopConfig, {k: v for k, v in train.items() if k in of_loop}, where),
        trainer={k: v for k, v in train.items() if k not in of_loop},
        evaluate=of(EvaluateConfig, "evaluate"),
        checkpoint=section(CheckpointConfig, checkpoint, f"{name} [checkpoint]"),
        track=trackers(raw.get("track", []), f"{name} [[track]]"),
    )
    _check_envs(config, name)
    _check_together(config, where)
    return config


def _envs(raw: object, name: str) -> tuple[EnvConfig, ...]:
    where = f"{name} [[envs]]"
    if not isinstance(raw, list):
        raise UsageError(f"{where} is a list of tables, each begun by [[envs]], got {raw!r}")
    found = tuple(section(EnvConfig, item, where) for item in raw)
    ids = [env.id for env in found]
    for env_id in ids:
        if ids.count(env_id) > 1:
            raise UsageError(f"{where}: {env_id!r} is there twice; give it once, with a weight")
    return found


def _policy(raw: object, where: str) -> PolicyConfig:
    told = table(raw, where)
    servers = told.get("servers", [])
    if not isinstance(servers, list):
        raise UsageError(
            f"{where} servers is a list of tables, each begun by [[policy.servers]], got"
            f" {servers!r}"
        )
    placed = tuple(
        section(ServerConfig, item, f"{where} servers.{number}")
        for number, item in enumerate(servers)
    )
    return section(PolicyConfig, {**told, "servers": placed}, where)


def _check_envs(config: RlConfig, name: str) -> None:
    if config.envs and config.rollouts.store:
        raise UsageError(
            f"{name} has [[envs]], and [rollouts] store: others play those groups; leave one out"
        )
    if not config.envs and not config.rollouts.store:
        raise UsageError(f"{name} has no section [[envs]]")
    if config.policy.gateway and not config.rollouts.store:
        raise UsageError(
            f"{name} [policy] gateway changes nothing without [rollouts] store: the folder that"
            " katgym gateway was given"
        )
    evaluate = config.evaluate
    if evaluate.every_steps and not (evaluate.envs or config.envs):
        raise UsageError(f"{name} [evaluate] needs envs: what is in the store does not tell them")


def _check_together(config: RlConfig, where: str) -> None:
    """Raise for sections that contradict each other."""
    try:
        trainer = config.trainer_config()
        algorithm, _ = resolved(config.loop.algorithm, trainer)
    except ValueError as e:
        raise UsageError(f"{where}: {e}") from e
    if algorithm.advantage is None:
        raise UsageError(
            f"{where}: algorithm {config.loop.algorithm!r} makes no advantages of rewards; it is"
            " trained with katgym train sft"
        )
    has_adapters = trainer.lora_rank > 0
    if config.policy.sync is SyncKind.LORA and not has_adapters:
        raise UsageError(f"{where}: [policy] sync = 'lora' needs lora_rank >= 1, got 0")
    if config.policy.max_tokens >= config.policy.max_context_tokens:
        raise UsageError(
            f"[policy] max_tokens ({config.policy.max_tokens}) leaves no room for a prompt in"
            f" max_context_tokens ({config.policy.max_context_tokens})"
        )
