"""Finds plugins by their metadata and loads each by itself, so that a broken one hurts nobody.

A plugin is staged alone and committed only if all of it is right; otherwise it is *refused*: its
record says why (`katgym plugins`), one warning is logged, and everything else works.

Isolation is against mistakes, not against malice: a plugin's module runs with the rights of the
process, and one that hangs on import hangs katgym.

A plugin whose own modules are imported before katgym may still be half imported when its turn
comes. It stays *pending* until the next use of katgym's registry; `gymnasium.make` alone is none.

Not here: what is installed and allowed (`discovery.py`); the hooks (`hookspecs.py`); env ids and
making envs (`registry.py`).
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pluggy

from katgym import hookspecs
from katgym.errors import KatgymError, UsageError, unknown_name
from katgym.plugins.contributions import (
    ALGORITHM_KINDS,
    Contributions,
    Entry,
    EntryKind,
    Owner,
    Staging,
)
from katgym.plugins.discovery import (
    InstalledPlugin,
    PluginInfo,
    PluginStatus,
    allow_list,
    discover,
    labels,
    metadata_error,
    missing_plugins,
    normalize,
)

logger = logging.getLogger(__name__)

BUILT_IN_MODULES = ("katgym.plugins.built_ins",)
"""Part of katgym itself: always loaded, and their faults are not caught."""


class PluginLoader:
    """Loads what `discover` finds, once, on first use; safe to use from many threads."""

    def __init__(
        self,
        discover: Callable[[], list[InstalledPlugin]] = discover,
        built_in_modules: Sequence[str] = BUILT_IN_MODULES,
    ) -> None:
        self._discover = discover
        self._built_in_modules = built_in_modules
        self._contributions = Contributions()
        self._infos: dict[tuple[str, str], PluginInfo] = {}
        self._pending: dict[tuple[str, str], InstalledPlugin] = {}
        self._lock = threading.RLock()
        self._is_discovered = False
        self._is_loading = False

    def load(self) -> Contributions:
        """Load what is not loaded yet, and return what is registered.

        A plugin that calls it while being loaded gets what is registered so far.
        """
        if self._is_discovered and not self._pending:
            return self._contributions
        with self._lock:
            if self._is_loading:
                return self._contributions
            self._is_loading = True
            try:
                if not self._is_discovered:
                    for module in self._built_in_modules:
                        owner = Owner(plugin="katgym", distribution="katgym", namespace="katgym")
                        staging = Staging(owner, self._contributions)
                        call_hooks(importlib.import_module(module), staging)
                        staging.commit()
                    self._find()
                for key, candidate in list(self._pending.items()):
                    self._infos[key] = info = self._load_one(candidate)
                    if info.status is not PluginStatus.PENDING:
                        del self._pending[key]
                self._is_discovered = True
            finally:
                self._is_loading = False
        return self._contributions

    def infos(self) -> list[PluginInfo]:
        """Return a record per plugin, in the order of loading."""
        self.load()
        return list(self._infos.values())

    def staging(self, owner: Owner) -> Staging:
        """Open a staging area for registrations made by hand."""
        return Staging(owner, self.load())

    def _find(self) -> None:
        """Decide from metadata alone which plugins are to be loaded."""
        candidates = self._discover()
        allowed = allow_list()
        owners: dict[str, str] = {}
        self._infos.clear()
        self._pending.clear()
        for candidate in candidates:
            info = candidate.info
            key = (normalize(info.distribution), info.name)
            if allowed is not None and not labels(info) & allowed.keys():
                info = replace(info, status=PluginStatus.DISABLED)
            elif info.status is not PluginStatus.REFUSED:
                error = metadata_error(info, owners)
                if error is None:
                    owners.setdefault(info.namespace, info.distribution)
                    self._pending[key] = candidate
                else:
                    info = _refuse(info, error)
            self._infos[key] = info
        for info in missing_plugins(allowed or {}, [candidate.info for candidate in candidates]):
            self._infos["", info.name] = info

    def _load_one(self, candidate: InstalledPlugin) -> PluginInfo:
        info = candidate.info
        if _is_initializing(info.module):
            return info
        owner = Owner(
            plugin=info.name,
            version=info.version,
            distribution=info.distribution,
            namespace=info.namespace,
        )
        staging = Staging(owner, self._contributions)
        started = time.perf_counter()
        try:
            plugin = candidate.load()
            if _is_initializing(info.module):  # another thread is still importing it
                return info
            hooks = call_hooks(plugin, staging)
        except (Exception, SystemExit) as e:  # a plugin's fault must not cost the others
            parts = info.module.split(".")
            if any(_is_initializing(".".join(parts[: i + 1])) for i in range(len(parts))):
                return info  # its package was half imported: it gets another chance
            is_ours = isinstance(e, KatgymError)
            return _refuse(info, str(e) if is_ours else f"{type(e).__name__}: {e}")
        staging.commit()
        return replace(
            info,
            status=PluginStatus.LOADED,
            hooks=hooks,
            env_ids=staging.env_ids,
            load_s=time.perf_counter() - started,
        )


def call_hooks(plugin: object, staging: Staging) -> tuple[str, ...]:
    """Call a plugin's hooks on `staging`; return their names.

    Raises `UsageError` for another API version, no hook at all, a hook that does not exist or
    whose arguments are wrong, and one that is not marked with `@katgym.hookimpl`.
    """
    version = getattr(plugin, "katgym_api_version", hookspecs.API_VERSION)
    if version != hookspecs.API_VERSION:
        raise UsageError(
            f"it is written for katgym's plugin API {version!r}; this katgym has API"
            f" {hookspecs.API_VERSION}. Install a matching version of the plugin or of katgym."
        )
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    known = [name for name in vars(hookspecs) if name.startswith("katgym_")]
    try:
        manager.register(plugin)
    except pluggy.PluginValidationError as e:
        raise UsageError(" ".join(str(e).split())) from e
    callers = manager.get_hookcallers(plugin) or []
    hooks = tuple(sorted(caller.name for caller in callers))
    for name in hooks:
        if name not in known:
            raise UsageError(unknown_name("hook", name, known))
    for name in dir(plugin):  # what looks like a hook and would never be called
        is_hook_like = name.startswith("katgym_") and name not in hooks
        if is_hook_like and inspect.isroutine(getattr(plugin, name)):
            if name not in known:
                raise UsageError(unknown_name("hook", name, known))
            raise UsageError(f"hook {name!r} is not marked: put @katgym.hookimpl above it")
    if not hooks:
        name = f"module {plugin.__name__!r}" if inspect.ismodule(plugin) else repr(plugin)
        raise UsageError(f"{name} defines no hook. Known: {', '.join(known)}.")
    for name in hooks:
        getattr(manager.hook, name)(register=staging.register_for(name))
    return hooks


def _refuse(info: PluginInfo, error: str) -> PluginInfo:
    logger.warning("plugin %r (%s) is refused: %s", info.name, info.distribution, error)
    return replace(info, status=PluginStatus.REFUSED, error=error)


def _is_initializing(module: str) -> bool:
    """Whether a module is being imported at this moment, further up the stack or elsewhere."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


_loader = PluginLoader()


def load() -> Contributions:
    """Load the plugins that are not loaded yet, and return everything registered."""
    return _loader.load()


def list_plugins() -> list[PluginInfo]:
    """Return a record per plugin: loaded, refused, disabled, missing or pending."""
    return _loader.infos()


def staging(owner: Owner) -> Staging:
    """Open a staging area on this process's registry."""
    return _loader.staging(owner)


def policy_schemes() -> dict[str, Entry]:
    """Return the policies' URI schemes."""
    return load().entries(EntryKind.POLICY)


def sandboxes() -> dict[str, Entry]:
    """Return the sandbox backends."""
    return load().entries(EntryKind.SANDBOX)


def algorithms(kind: str) -> dict[str, Entry]:
    """Return the algorithms of a kind, `"advantage"` or `"loss"`."""
    if kind not in ALGORITHM_KINDS:
        raise UsageError(unknown_name("kind of algorithm", kind, ALGORITHM_KINDS))
    return load().entries(EntryKind(kind))


def trackers() -> dict[str, Entry]:
    """Return the experiment trackers."""
    return load().entries(EntryKind.TRACKER)


def exporters() -> dict[str, Entry]:
    """Return the formats that rollouts are exported in."""
    return load().entries(EntryKind.EXPORTER)


def commands() -> dict[str, Entry]:
    """Return the subcommands that plugins add to `katgym`."""
    return load().entries(EntryKind.COMMAND)
