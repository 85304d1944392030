"""Env ids: registering, listing, describing and making envs, here and in Gymnasium's registry.

Not here: plugins (`plugins.py`); what an env is (`env.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from katgym.environment.env import Env
from katgym.errors import (
    DuplicateIdError,
    MissingDependencyError,
    UnknownNameError,
    UsageError,
    unknown_name,
)
from katgym.hookspecs import EntryPoint
from katgym.plugins import loader
from katgym.plugins.contributions import EnvSpec, Owner, load_entry_point, parse_env_id
from katgym.plugins.discovery import RESERVED_NAMESPACE, PluginStatus
from katgym.plugins.env_file import FILE, file_spec, is_file_id

__all__ = [
    "EnvSpec",
    "create",
    "describe",
    "list_envs",
    "make",
    "register",
    "spec",
    "sync_gymnasium",
]

SCRIPT = "script"
"""Owner of what `register` adds: code that runs, as opposed to a plugin that is installed."""


def register(
    id: str,
    entry_point: EntryPoint,
    *,
    description: str = "",
    kwargs: Mapping[str, Any] | None = None,
    nondeterministic: bool = False,
    should_replace: bool = False,
) -> None:
    """Register an env from a script or a notebook, for this process.

    id: `namespace/Name-vN` in any namespace that no installed plugin owns.
    should_replace: an id registered here before is replaced, for a notebook cell that runs again.

    Worker processes see it only if they run the same code; a plugin is seen by all of them.
    """
    envs = loader.load().envs
    namespace, _, _ = parse_env_id(id)
    owned = {info.namespace: info.name for info in loader.list_plugins() if info.module}
    if namespace in owned or namespace == RESERVED_NAMESPACE:
        owner = owned.get(namespace, "katgym")
        raise UsageError(f"env id {id!r}: namespace {namespace!r} belongs to plugin {owner!r}")
    if id in envs:
        if not should_replace:
            raise DuplicateIdError(
                f"env id {id!r} is already registered by a {SCRIPT}; pass should_replace=True to"
                " replace it"
            )
        del envs[id]
        gymnasium.registry.pop(id, None)
    staging = loader.staging(Owner(plugin=SCRIPT))
    staging.register_env(
        id,
        entry_point,
        description=description,
        kwargs=kwargs,
        nondeterministic=nondeterministic,
    )
    staging.commit()
    sync_gymnasium()


def make(env_id: str, **kwargs: Any) -> Env:
    """Make an env, without Gymnasium's wrappers (`gymnasium.make` adds those).

    env_id: of a plugin or script, or `FILE.py:CLASS`, which runs the file.

    Raises `UnknownNameError` for an unknown id or argument, `MissingDependencyError` with the pip
    command when the env's optional packages are not installed.
    """
    found = spec(env_id)
    arguments = {**found.kwargs, **kwargs}
    env = create(found, **arguments)
    env.spec = _gymnasium_spec(found, arguments, is_wrapped=False)
    return env


def spec(env_id: str) -> EnvSpec:
    """Return the spec of an id, or of `FILE.py:CLASS`; `UnknownNameError` names the nearest."""
    if is_file_id(env_id):
        return file_spec(env_id)
    sync_gymnasium()
    envs = loader.load().envs
    if env_id in envs:
        return envs[env_id]
    if not isinstance(env_id, str):
        raise UsageError(f"an env id is a str, got {type(env_id).__name__}: {env_id!r}")
    raise UnknownNameError(_unknown_env(env_id, sorted(envs)))


def list_envs() -> list[EnvSpec]:
    """Return every registered env, sorted by id."""
    sync_gymnasium()
    return [found for _, found in sorted(loader.load().envs.items())]


def describe(env_id: str) -> dict[str, Any]:
    """Return an env's JSON description; imports and makes the env, but loads no tasks.

    Example:
        {"id": "katgym/Arithmetic-v1", "plugin": "katgym.math", "plugin_version": "0.1.0",
         "version": 0, "description": "...", "tools": ["calculator"],
         "splits": ["train", "validation", "test"], "max_turns": 8,
         "success": "reward at least 1", "headline": "success_rate", "error": None}
    """
    found = spec(env_id)
    description = {
        "id": found.id,
        "plugin": found.plugin,
        "plugin_version": found.plugin_version,
        "version": found.version,
        "description": found.description,
    }
    try:
        env = make(env_id)
    except Exception as e:  # one env that cannot be made must not hide the others
        is_ours = isinstance(e, MissingDependencyError | UsageError)
        error = str(e) if is_ours else f"{type(e).__name__}: {e}"
        unknown = {"max_turns": None, "success": None, "headline": None}
        return {**description, "tools": [], "splits": [], **unknown, "error": error}
    env.close()
    return {
        **description,
        "tools": list(env.tools),
        "splits": list(env.splits),
        "max_turns": env.max_turns,
        "success": str(env.success),
        "headline": str(env.success.headline),
        "error": None,
    }


def sync_gymnasium() -> None:
    """Load the plugins and give Gymnasium's registry every env it does not have yet."""
    for found in loader.load().envs.values():
        if found.id not in gymnasium.registry:
            gymnasium.registry[found.id] = _gymnasium_spec(found, found.kwargs, is_wrapped=True)


def create(found: EnvSpec, /, **kwargs: Any) -> Env:
    """Import an env's class and make it with exactly `kwargs`; `spec` is left unset."""
    try:
        env_class = load_entry_point(found.entry_point)
        accepted = _list_kwargs(env_class)
        for name in kwargs:
            if accepted is not None and name not in accepted:
                raise UnknownNameError(unknown_name(f"argument of {found.id!r}", name, accepted))
        env = env_class(**kwargs)
    except ImportError as e:
        raise _import_error(found, e) from e
    if not isinstance(env, Env):
        raise UsageError(
            f"entry point {found.entry_point!r} of {found.id!r} makes a katgym.Env, got"
            f" {type(env).__name__}"
        )
    env.plugin_version = found.plugin_version
    return env


class _FileSpec(GymnasiumSpec):
    """Gymnasium's spec of an env whose id is a path."""

    def __post_init__(self) -> None:
        self.namespace, self.name, self.version = None, self.id, None

    def make(self, **kwargs: Any) -> Env:
        """Make the env, without wrappers: `gymnasium.make` takes no path for an id."""
        return make(self.id, **{**self.kwargs, **kwargs})


def _gymnasium_spec(
    found: EnvSpec, kwargs: Mapping[str, Any], *, is_wrapped: bool
) -> GymnasiumSpec:
    of_file = found.plugin == FILE
    return (_FileSpec if of_file else GymnasiumSpec)(
        id=found.id,
        entry_point=partial(create, found) if of_file else f"katgym.plugins.creators:{found.id}",
        nondeterministic=found.nondeterministic,
        order_enforce=is_wrapped,
        disable_env_checker=not is_wrapped,
        kwargs=dict(kwargs),
    )


def _list_kwargs(env_class: Callable[..., Any]) -> list[str] | None:
    """Return the keyword arguments a class or function takes; None when it takes any.

    A `**kwargs` of a class's `__init__` stands for what the next class in line takes.
    """
    initializers: Sequence[Callable[..., Any]] = (env_class,)
    if inspect.isclass(env_class):
        initializers = [vars(c)["__init__"] for c in env_class.__mro__ if "__init__" in vars(c)]
    names: list[str] = []
    for initializer in initializers:
        parameters = list(inspect.signature(initializer).parameters.values())
        if inspect.isclass(env_class):
            parameters = parameters[1:]
        names += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names
    return None


def _import_error(found: EnvSpec, error: ImportError) -> Exception:
    """Return the error for an env that cannot be imported: a missing package, or a wrong path."""
    if isinstance(error, MissingDependencyError):
        return error
    target = found.entry_point
    own = target.partition(":")[0].partition(".")[0] if isinstance(target, str) else "katgym"
    missing = (error.name or "").partition(".")[0]
    if missing == own:
        return UsageError(
            f"entry point {target!r} of {found.id!r} cannot be imported: {error}."
            f" This is a fault of plugin {found.plugin!r}."
        )
    hint = f"Install it with: {found.install_command}"
    if not found.install_command:
        hint = f"Plugin {found.plugin!r} names no command that installs it."
    return MissingDependencyError(
        f"env {found.id!r} needs a package that is missing: {error}. {hint}"
    )


def _unknown_env(env_id: str, known: Sequence[str]) -> str:
    """Return the text for an unknown id: its versions, its plugin's fate, or the nearest ids."""
    stem = env_id.rpartition("-v")[0] if _has_version(env_id) else env_id
    versions = [other for other in known if other.rpartition("-v")[0] == stem]
    if versions:
        listed = " or ".join(repr(other) for other in versions)
        problem = "is no registered version" if _has_version(env_id) else "has no version"
        return f"unknown env {env_id!r}: it {problem}. Use {listed}."
    namespace = env_id.partition("/")[0]
    hints = [
        f"Plugin {info.name!r} is {info.status}{f': {info.error}' if info.error else ''}."
        for info in loader.list_plugins()
        if namespace in (info.namespace, info.name)
        and info.status in (PluginStatus.REFUSED, PluginStatus.DISABLED, PluginStatus.MISSING)
    ]
    return unknown_name("env", env_id, known, hint=" ".join(hints))


def _has_version(env_id: str) -> bool:
    stem, separator, version = env_id.rpartition("-v")
    return bool(stem and separator and version.isdigit())
