"""Hooks of pluggy project `katgym`: all that a plugin may register.

A plugin is a module named in entry-point group `katgym`. It defines some of these hooks and calls
the `register` it is given; it should import nothing heavy, as it is imported with katgym itself
(the objects behind its entry points are imported on use):

    import katgym

    @katgym.hookimpl
    def katgym_register_envs(register):
        register("acme/Shout-v0", "katgym_plugin_acme.env:Shout", description="Say it louder.")

    # pyproject.toml
    [project.entry-points.katgym]
    acme = "katgym_plugin_acme.plugin"

A module may set `katgym_api_version = 1`, the `API_VERSION` it was written for; without it 1 is
assumed, and a plugin of another version is refused. An `entry_point` is `"module:attribute"`, or
the object itself.

Not here: finding and loading plugins (`plugins.py`); what is kept of a registration
(`contributions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pluggy

API_VERSION = 1
PROJECT = "katgym"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

EntryPoint = str | Callable[..., Any]
"""`"module:attribute"`, imported on use, or the object itself."""


class RegisterEnv(Protocol):
    """Register an env under `namespace/Name-vN`, the namespace being the plugin's own.

    entry_point: a `katgym.Env` class, or a callable that returns an env.
    description: one line for `katgym envs`.
    kwargs: arguments the env is made with, which `katgym.make` may override.
    extra: what brings the env's optional imports: an extra of distribution `katgym` (`"games"`), or
        the text for pip (`"katgym-plugin-acme[board]"`).
    nondeterministic: the same seed and actions may lead elsewhere.

    Raises `UsageError` for a malformed id or a foreign namespace, `DuplicateIdError` for an id
    that is taken; the plugin is then refused as a whole.
    """

    def __call__(
        self,
        id: str,
        entry_point: EntryPoint,
        *,
        description: str = "",
        kwargs: Mapping[str, Any] | None = None,
        extra: str = "",
        nondeterministic: bool = False,
    ) -> None: ...


class RegisterNamed(Protocol):
    """Register something under a name that is unique among its kind."""

    def __call__(self, name: str, entry_point: EntryPoint, *, description: str = "") -> None: ...


class RegisterAlgorithm(Protocol):
    """Register an algorithm; `kind` is `"advantage"` or `"loss"`."""

    def __call__(
        self, kind: str, name: str, entry_point: EntryPoint, *, description: str = ""
    ) -> None: ...


@hookspec
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register environments:
    `register(id, entry_point, *, description="", kwargs=None, extra="", nondeterministic=False)`.
    """


@hookspec
def katgym_register_policies(register: RegisterNamed) -> None:
    """Register policies: `register(scheme, entry_point, *, description="")`.

    `katgym.policy("scheme:rest")` calls the entry point with what follows the scheme.
    """


@hookspec
def katgym_register_sandboxes(register: RegisterNamed) -> None:
    """Register sandbox backends: `register(name, entry_point, *, description="")`."""


@hookspec
def katgym_register_algorithms(register: RegisterAlgorithm) -> None:
    """Register algorithms: `register(kind, name, entry_point, *, description="")`."""


@hookspec
def katgym_register_commands(register: RegisterNamed) -> None:
    """Register subcommands of `katgym`: `register(name, entry_point, *, description="")`.

    The entry point is imported when `katgym NAME` runs. It is called with the subcommand's
    `argparse.ArgumentParser`, adds arguments (or subparsers) to it, and sets their default `run`,
    a function of the parsed arguments that returns the exit code. Its docstring is the help text.
    katgym's own commands cannot be replaced: such a one is left out with a warning.

    A name of two words is a subcommand that is added to another plugin's command: "swe make" runs
    as `katgym swe make`. "doctor model" is none: it is called with the parsed arguments of `katgym
    doctor --model`, and returns the exit code.
    """


@hookspec
def katgym_register_trackers(register: RegisterNamed) -> None:
    """Register experiment trackers: `register(name, entry_point, *, description="")`.

    The entry point is called with the `Path` of a training run's folder, and with the other keys of
    the run's [[track]] section as keyword arguments. What it returns has the methods of
    `katgym_trainer.trackers.tracker.Tracker`: `start(config)`, `log(step, metrics)`, `finish()`.
    """


@hookspec
def katgym_register_exporters(register: RegisterNamed) -> None:
    """Register formats that stored rollouts are exported in: `register(name, entry_point, *,
    description="")`.

    The entry point is a `katgym.rollout_store.Exporter`: a function from a stored session to rows,
    and the types of their columns. `katgym rollouts export STORE --format NAME` writes them.
    """
