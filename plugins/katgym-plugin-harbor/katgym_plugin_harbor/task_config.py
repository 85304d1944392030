"""The keys of `task.toml` that katgym reads, of schema 1.4 and before; others are left alone.

Not here: the other files of a task's folder (`task_folder.py`).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from katgym.errors import UsageError

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024}
_REFUSED = (
    *("steps", "environment.os", "environment.gpus", "environment.tpu", "environment.mcp_servers"),
    *("environment.healthcheck", "agent.user", "verifier.user", "verifier.collect"),
    "verifier.environment",
)
"""Keys that ask for what no sandbox of katgym gives, but for values in `_HONOURED`."""
_HONOURED = ("linux", "Linux", "root")


class VerifierTable(msgspec.Struct, frozen=True):
    """`[verifier]`."""

    timeout_sec: float = 600.0
    env: dict[str, str] = {}
    environment_mode: str | None = None

    @property
    def is_separate(self) -> bool:
        """Whether the verifier sees the artifacts alone, not all of the agent's workspace."""
        return self.environment_mode == "separate"


class AgentTable(msgspec.Struct, frozen=True):
    """`[agent]`."""

    timeout_sec: float | None = None


class EnvironmentTable(msgspec.Struct, frozen=True):
    """`[environment]`; `memory` and `storage` are the older `memory_mb` and `storage_mb`."""

    docker_image: str | None = None
    workdir: str | None = None
    env: dict[str, str] = {}
    memory_mb: int | None = None
    storage_mb: int | None = None
    memory: str | None = None
    storage: str | None = None


class SolutionTable(msgspec.Struct, frozen=True):
    """`[solution]`."""

    env: dict[str, str] = {}


class TaskConfig(msgspec.Struct, frozen=True):
    """The whole file."""

    verifier: VerifierTable = VerifierTable()
    agent: AgentTable = AgentTable()
    environment: EnvironmentTable = EnvironmentTable()
    solution: SolutionTable = SolutionTable()
    metadata: dict[str, Any] = {}
    artifacts: list[str | dict[str, Any]] = []
    problems: list[str] = []
    """What the file asks for that no sandbox of katgym gives; no key of the file."""

    @classmethod
    def read(cls, path: Path) -> TaskConfig:
        """Read a file; `UsageError` names it and what does not fit."""
        try:
            told = tomllib.loads(path.read_text(encoding="utf-8"))
            config = msgspec.convert(told, cls)
        except (OSError, ValueError) as e:  # msgspec's and tomllib's errors are ValueErrors
            raise UsageError(f"{str(path)!r} is no task.toml of Harbor: {e}") from e
        return msgspec.structs.replace(config, problems=[*_refusals(told), *config._lacks()])

    def _lacks(self) -> Iterator[str]:
        for artifact in self.artifacts:
            if isinstance(artifact, dict) and not (
                len(artifact) == 1 and isinstance(artifact.get("source"), str)
            ):
                yield "an artifact in task.toml has more than a source"
        for table in (self.environment.env, self.verifier.env, self.solution.env):
            for name, default in _VARIABLE.findall("\n".join(table.values())):
                if not default and name not in os.environ:
                    yield f"task.toml needs the environment variable {name}"

    @property
    def artifact_sources(self) -> list[str]:
        """Where the artifacts are, in the sandbox."""
        found = [item if isinstance(item, str) else item["source"] for item in self.artifacts]
        return [*dict.fromkeys(["/logs/artifacts", *found])]


def _refusals(told: Mapping[str, Any]) -> Iterator[str]:
    for path in _REFUSED:
        table, _, key = path.rpartition(".")
        value = (told.get(table, {}) if table else told).get(key)
        if value and value not in _HONOURED:
            yield f"task.toml sets {f'[{table}] ' if table else ''}{key}"


def resolve(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables with `${NAME}` and `${NAME:-default}` filled in from this process's."""
    return {
        name: _VARIABLE.sub(lambda found: os.environ.get(found[1], found[2] or ""), value)
        for name, value in env.items()
    }


def mebibytes(number: int | None, text: str | None) -> int | None:
    """Return a size: `number`, or else an older file's text, such as "2G"."""
    if number is not None or text is None:
        return number
    digits, unit = text.strip()[:-1], text.strip()[-1:].upper()
    try:
        return int(float(digits) * _UNITS[unit])
    except (KeyError, ValueError):
        raise UsageError(f"a size is a number and K, M or G, got {text!r}") from None
