"""A katgym env as an environment of TRL's `GRPOTrainer`: a class with a method for each tool.

    env_id = "katgym/TreasureHunt-v1"
    trainer = GRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        environment_factory=environment_class(env_id),
        train_dataset=Dataset.from_list(rows(env_id, num_tasks=256, seed=0)),
        reward_funcs=reward,
    )

TRL plays: it samples, parses and calls one tool after the other, each a turn of the env. A message
without calls ends its rollout; what the env would reply is not shown. TRL is not imported here.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import katgym
from katgym.environment.failure import FailureKind
from katgym.environment.messages import assistant
from katgym.environment.tool import Tool
from katgym.play.seeding import derive_seed
from katgym.plugins import registry
from katgym.system.sync import run_sync

_TYPES: Mapping[object, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "null": None,
}
_OF_TRL = ("reset", "get_reward")


class TrlEnvironment:
    """One env, reset for each rollout; `environment_class` adds a method for each of its tools."""

    _env_id: ClassVar[str] = ""
    _kwargs: ClassVar[Mapping[str, Any]] = {}
    _tools: ClassVar[Mapping[str, Tool]] = {}

    def __init__(self) -> None:
        self._env = registry.make(self._env_id, **self._kwargs)

    def reset(self, seed: int, split: str | None = None, **row: Any) -> str:
        """Start the episode of a seed; return its opening, which TRL adds to the prompt."""
        opening, _ = self._env.reset(seed=seed, options={"split": split})
        if self._env.tools.keys() - self._tools.keys():
            raise katgym.UsageError(
                f"env {self._env_id!r} has tools of its own for a task: {sorted(self._env.tools)};"
                f" TRL was told {sorted(self._tools)} and cannot be told others"
            )
        return _text(opening)

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        if not self._env.is_running:
            return "The episode has ended."
        try:
            observation, *_ = self._env.step(assistant("", [(name, arguments)]))
        except katgym.InfrastructureError:
            self._env.close()  # there is no reward; TRL gets the error as the call's result
            raise
        return _text(observation)

    def _finish(self, completion: Sequence[Mapping[str, Any]]) -> float:
        """End the episode with the last message of a rollout; return its reward, NaN for none."""
        env = self._env
        last: Mapping[str, Any] = completion[-1] if completion else {}
        try:
            if env.is_running and last.get("role") == "assistant" and not last.get("tool_calls"):
                env.step(str(last.get("content") or ""))
            if env.is_running:
                run_sync(env.atruncate(FailureKind.MAX_TURNS))
        except katgym.InfrastructureError:
            env.close()
        return math.nan if env.last_reward is None else env.last_reward.value_or_nan()


def environment_class(env_id: str, **kwargs: Any) -> type[TrlEnvironment]:
    """Return what `GRPOTrainer` takes as `environment_factory`; the tools are a first task's.

    kwargs: arguments of the env.
    """
    env = registry.make(env_id, **kwargs)
    if len(env.seats) > 1:
        raise katgym.UsageError(f"env {env_id!r} has {len(env.seats)} seats; TRL plays one")
    env.reset(seed=0)
    tools = dict(env.tools)
    env.close()
    if taken := [name for name in tools if name in _OF_TRL or name.startswith("_")]:
        raise katgym.UsageError(f"env {env_id!r}: TRL keeps the names {taken} of its tools")
    members: dict[str, Any] = {name: _method(tool) for name, tool in tools.items()}
    members |= {"_env_id": env_id, "_kwargs": kwargs, "_tools": tools}
    return type("TrlEnvironment", (TrlEnvironment,), members)


def rows(
    env_id: str, *, num_tasks: int, seed: int, split: str | None = None, prompt: str = ""
) -> list[dict[str, Any]]:
    """Return rows for `Dataset.from_list`: a seed each, so that a group's rollouts share a task.

    prompt: what the user says before the env's opening.
    """
    message = {"role": "user", "content": prompt}
    chosen = {} if split is None else {"split": split}
    return [
        {"prompt": [message], "seed": derive_seed("trl", seed, env_id, index), **chosen}
        for index in range(num_tasks)
    ]


def reward(
    completions: Sequence[Sequence[Mapping[str, Any]]],
    environments: Sequence[TrlEnvironment],
    **columns: Any,
) -> list[float | None]:
    """Return what each rollout earned, for `reward_funcs`; None where infrastructure broke."""
    values = [
        environment._finish(completion)
        for environment, completion in zip(environments, completions, strict=True)
    ]
    return [None if math.isnan(value) else value for value in values]


def _method(tool: Tool) -> Any:
    """Return a method with the signature and the docstring that TRL makes a schema of."""

    def call(self: TrlEnvironment, **arguments: Any) -> str:
        return self._call(tool.name, arguments)

    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    kind = inspect.Parameter.KEYWORD_ONLY
    call.__annotations__ = {name: _hint(schema) for name, schema in properties.items()}
    parameters = [
        inspect.Parameter(
            name,
            kind,
            default=inspect.Parameter.empty if name in required else schema.get("default"),
            annotation=call.__annotations__[name],
        )
        for name, schema in properties.items()
    ]
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    call.__signature__ = inspect.Signature([receiver, *parameters], return_annotation=str)  # type: ignore[attr-defined]  # functions have one
    call.__annotations__["return"] = str
    lines = []
    for name, schema in properties.items():
        told = [*str(schema.get("description") or "").split()]
        told += [f"Default: {json.dumps(schema['default'])}"] if "default" in schema else []
        lines.append(f"    {name}: {' '.join(told) or 'a value'}")
    arguments = "\n\nArgs:\n" + "\n".join(lines) if lines else ""
    call.__doc__ = f"{tool.description or tool.name}{arguments}"
    call.__name__ = tool.name
    return call


def _hint(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        hint = _hint(options[0])
        for option in options[1:]:
            hint = hint | _hint(option)
        return hint
    if schema.get("type") == "array":
        return list[_hint(schema["items"])] if "type" in (schema.get("items") or {}) else list  # type: ignore[misc]  # made of a value
    return _TYPES.get(schema.get("type"), str)


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(message["content"] for message in messages if message["content"])
