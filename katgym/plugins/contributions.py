"""Contributions of plugins: env specs and named entries, staged first and committed as a whole.

Not here: who contributes (`plugins.py`); making an env from its spec (`registry.py`).
"""

from __future__ import annotations

import importlib
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from katgym.errors import DuplicateIdError, UnknownNameError, UsageError, check_name, unknown_name
from katgym.hookspecs import EntryPoint

_ENV_ID = re.compile(
    r"(?P<namespace>[A-Za-z0-9_-]+)/(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*?)-v(?P<version>\d+)",
    re.ASCII,
)
_ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]*")
_COMMAND_NAME = re.compile(rf"{_NAME.pattern}( {_NAME.pattern})?")


class EntryKind(StrEnum):
    """What a named entry is."""

    POLICY = "policy"
    SANDBOX = "sandbox"
    ADVANTAGE = "advantage"
    LOSS = "loss"
    TRACKER = "tracker"
    EXPORTER = "exporter"
    COMMAND = "command"


ALGORITHM_KINDS = (EntryKind.ADVANTAGE, EntryKind.LOSS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who registers; `namespace` is the only one allowed for env ids, None allows any."""

    plugin: str
    version: str = ""
    distribution: str = ""
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """An env that can be made.

    Example:
        EnvSpec(id="reasoning_gym/LegCounting-v1", namespace="reasoning_gym", name="LegCounting",
                version=0, plugin="reasoning_gym", plugin_version="0.1.0",
                distribution="katgym-plugin-reasoning-gym", kwargs={"dataset": "leg_counting"},
                entry_point="katgym_plugin_reasoning_gym.env:ReasoningGym")
    """

    id: str
    namespace: str
    name: str
    version: int
    plugin: str
    plugin_version: str
    distribution: str
    entry_point: EntryPoint
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    extra: str = ""
    """Extra of distribution `katgym`, or pip's requirement, that brings optional imports."""
    nondeterministic: bool = False

    @property
    def install_command(self) -> str:
        """The pip command that brings the env's optional imports; "" if its plugin names none."""
        if not self.extra:
            return ""
        is_own_extra = self.distribution == "katgym" and re.fullmatch(r"[\w.-]+", self.extra)
        return f"pip install '{f'katgym[{self.extra}]' if is_own_extra else self.extra}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A named thing of one kind, imported on use."""

    kind: EntryKind
    name: str
    plugin: str
    entry_point: EntryPoint
    description: str = ""

    def load(self) -> Any:
        """Import and return the object behind the entry."""
        return load_entry_point(self.entry_point)


class Contributions:
    """Everything that is registered."""

    def __init__(self) -> None:
        self.envs: dict[str, EnvSpec] = {}
        self._entries: dict[tuple[EntryKind, str], Entry] = {}

    def entries(self, kind: EntryKind) -> dict[str, Entry]:
        """Return the entries of a kind by name, sorted."""
        return {name: e for (k, name), e in sorted(self._entries.items()) if k == kind}

    def find(self, kind: EntryKind, name: str) -> Entry:
        """Return an entry; `UnknownNameError` names the nearest ones."""
        try:
            return self._entries[kind, name]
        except KeyError:
            raise UnknownNameError(unknown_name(kind, name, self.entries(kind))) from None


class Staging:
    """What one owner registers, kept apart from the rest until `commit`."""

    def __init__(self, owner: Owner, committed: Contributions) -> None:
        self.owner = owner
        self._committed = committed
        self._staged = Contributions()

    @property
    def env_ids(self) -> tuple[str, ...]:
        """Ids registered so far."""
        return tuple(self._staged.envs)

    def commit(self) -> None:
        """Add everything staged to what is registered."""
        self._committed.envs.update(self._staged.envs)
        self._committed._entries.update(self._staged._entries)

    def register_for(self, hook: str) -> Callable[..., None]:
        """Return the `register` callable that `hook` is given."""
        if hook == "katgym_register_envs":
            return self.register_env
        if hook == "katgym_register_algorithms":
            return self.register_algorithm
        kinds = {
            "katgym_register_policies": EntryKind.POLICY,
            "katgym_register_sandboxes": EntryKind.SANDBOX,
            "katgym_register_trackers": EntryKind.TRACKER,
            "katgym_register_exporters": EntryKind.EXPORTER,
            "katgym_register_commands": EntryKind.COMMAND,
        }
        return partial(self._register_entry, kinds[hook])

    def register_env(
        self,
        id: str,
        entry_point: EntryPoint,
        *,
        description: str = "",
        kwargs: Mapping[str, Any] | None = None,
        extra: str = "",
        nondeterministic: bool = False,
    ) -> None:
        """Stage an env; see `hookspecs.RegisterEnv`."""
        namespace, name, version = parse_env_id(id)
        owner = self.owner
        if owner.namespace is not None and namespace != owner.namespace:
            raise UsageError(
                f"env id {id!r} is in namespace {namespace!r}; plugin {owner.plugin!r} may register"
                f" '{owner.namespace}/...' only"
            )
        taken = self._staged.envs.get(id) or self._committed.envs.get(id)
        if taken is not None:
            raise DuplicateIdError(f"env id {id!r} is already registered by {taken.plugin!r}")
        _check_entry_point(id, entry_point)
        self._staged.envs[id] = EnvSpec(
            id=id,
            namespace=namespace,
            name=name,
            version=version,
            plugin=owner.plugin,
            plugin_version=owner.version,
            distribution=owner.distribution,
            entry_point=entry_point,
            kwargs=dict(kwargs or {}),
            description=description,
            extra=extra,
            nondeterministic=nondeterministic,
        )

    def register_algorithm(
        self, kind: str, name: str, entry_point: EntryPoint, *, description: str = ""
    ) -> None:
        """Stage an algorithm; see `hookspecs.RegisterAlgorithm`."""
        check_name("kind of algorithm", kind, ALGORITHM_KINDS)
        self._register_entry(EntryKind(kind), name, entry_point, description=description)

    def _register_entry(
        self, kind: EntryKind, name: str, entry_point: EntryPoint, *, description: str = ""
    ) -> None:
        pattern = _COMMAND_NAME if kind is EntryKind.COMMAND else _NAME
        if not isinstance(name, str) or not pattern.fullmatch(name):
            raise UsageError(f"{kind} name {name!r} does not match {pattern.pattern}")
        key = (kind, name)
        taken = self._staged._entries.get(key) or self._committed._entries.get(key)
        if taken is not None:
            raise DuplicateIdError(f"{kind} {name!r} is already registered by {taken.plugin!r}")
        _check_entry_point(name, entry_point)
        self._staged._entries[key] = Entry(
            kind=kind,
            name=name,
            plugin=self.owner.plugin,
            entry_point=entry_point,
            description=description,
        )


def parse_env_id(env_id: object) -> tuple[str, str, int]:
    """Return namespace, name and version of `namespace/Name-vN`; else raise `UsageError`.

    Example:
        >>> parse_env_id("katgym/Arithmetic-v1")
        ('katgym', 'Arithmetic', 0)
    """
    match = _ENV_ID.fullmatch(env_id) if isinstance(env_id, str) else None
    if match is None:
        raise UsageError(
            f"malformed env id {env_id!r}; an id is 'namespace/Name-vN' of ASCII letters, digits,"
            " '_' and '-' (and '.' in the name), for example 'acme/Shout-v0'"
        )
    return match["namespace"], match["name"], int(match["version"])


def load_entry_point(entry_point: EntryPoint) -> Any:
    """Import `"module:attribute"`, or return the object that was registered itself."""
    if not isinstance(entry_point, str):
        return entry_point
    module, _, attributes = entry_point.partition(":")
    return operator.attrgetter(attributes)(importlib.import_module(module))


def _check_entry_point(name: str, entry_point: object) -> None:
    if isinstance(entry_point, str):
        if _ENTRY_POINT.fullmatch(entry_point):
            return
    elif callable(entry_point):
        return
    raise UsageError(
        f"entry point of {name!r} is 'module:attribute' or a callable, got {entry_point!r}"
    )
