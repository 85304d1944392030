"""Installed and allowed plugins, read from metadata: nothing is imported here.

Environment variable `KATGYM_PLUGINS`: unset allows all; a comma-separated list of entry-point
names, namespaces or distributions allows those; "" allows none.

Not here: loading them (`plugins.py`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from typing import Any

from katgym.errors import unknown_name

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "katgym"
ALLOW_VARIABLE = "KATGYM_PLUGINS"
BUILT_IN_DISTRIBUTION = "katgym"
RESERVED_NAMESPACE = "katgym"


class PluginStatus(StrEnum):
    """What became of a plugin."""

    LOADED = "loaded"
    REFUSED = "refused"
    """Something is wrong with it; `error` says what."""
    DISABLED = "disabled"
    """`KATGYM_PLUGINS` leaves it out."""
    MISSING = "missing"
    """`KATGYM_PLUGINS` asks for it, but it is not installed."""
    PENDING = "pending"
    """Its module is being imported right now; loaded at the next use of the registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One plugin as `katgym plugins` lists it.

    Example:
        PluginInfo(name="katgym.math", namespace="katgym", distribution="katgym", version="0.1.0",
                   module="katgym_envs.math.plugin", status="loaded",
                   hooks=("katgym_register_envs",), env_ids=("katgym/Arithmetic-v1",), load_s=0.001)
    """

    name: str
    namespace: str = ""
    distribution: str = ""
    version: str = ""
    module: str = ""
    status: PluginStatus = PluginStatus.PENDING
    error: str | None = None
    hooks: Sequence[str] = ()
    env_ids: Sequence[str] = ()
    load_s: float = 0.0
    """Wall seconds of importing the module and calling its hooks."""


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """An installed entry point, not imported yet."""

    info: PluginInfo
    load: Callable[[], Any]


def discover(path: Sequence[str] | None = None) -> list[InstalledPlugin]:
    """Return the installed plugins, katgym's own first; reads metadata and imports nothing.

    path: folders to look in, as in `sys.path`, which None stands for.
    """
    found: dict[str, list[InstalledPlugin]] = {}
    for distribution in metadata.distributions(path=list(sys.path if path is None else path)):
        # The name costs a parse of METADATA, so it is asked of the few that may be plugins only.
        try:
            text = distribution.read_text("entry_points.txt") or ""
        except UnicodeDecodeError:
            continue  # not a file any tool can read, so nobody's plugin
        if ENTRY_POINT_GROUP not in text:
            continue
        name = distribution.metadata["Name"] or "unknown"
        found.setdefault(normalize(name), _candidates(name, distribution))
    flat = [candidate for candidates in found.values() for candidate in candidates]

    def order(plugin: InstalledPlugin) -> tuple[bool, str, str]:
        distribution = normalize(plugin.info.distribution)
        return distribution != BUILT_IN_DISTRIBUTION, distribution, plugin.info.name

    return sorted(flat, key=order)


def _candidates(name: str, distribution: metadata.Distribution) -> list[InstalledPlugin]:
    version = distribution.metadata["Version"] or ""
    try:
        points = list(distribution.entry_points.select(group=ENTRY_POINT_GROUP))
        modules = [point.module for point in points]
    except Exception as e:  # whatever a malformed entry_points.txt makes the parser raise
        error = f"entry_points.txt cannot be read: {type(e).__name__}: {e}"
        broken = PluginInfo(
            name=name,
            distribution=name,
            version=version,
            status=PluginStatus.REFUSED,
            error=error,
        )
        return [InstalledPlugin(broken, lambda: None)]
    return [
        InstalledPlugin(
            PluginInfo(
                name=point.name,
                namespace=point.name.partition(".")[0],
                distribution=name,
                version=version,
                module=module,
            ),
            point.load,
        )
        for point, module in zip(points, modules, strict=True)
    ]


def allow_list() -> dict[str, str] | None:
    """Return the entries of `KATGYM_PLUGINS`, normalized name -> as written; None allows all."""
    text = os.environ.get(ALLOW_VARIABLE)
    if text is None:
        return None
    return {normalize(part): part.strip() for part in text.split(",") if part.strip()}


def missing_plugins(allowed: dict[str, str], infos: Sequence[PluginInfo]) -> list[PluginInfo]:
    """Return a record for each entry of `KATGYM_PLUGINS` that matches no plugin."""
    installed = {label for info in infos for label in labels(info)}
    known = {info.name for info in infos}
    missing = []
    for normalized, written in allowed.items():
        if normalized in installed:
            continue
        error = f"not installed: {unknown_name(f'plugin in {ALLOW_VARIABLE}', written, known)}"
        logger.warning("%s", error)
        missing.append(PluginInfo(name=written, status=PluginStatus.MISSING, error=error))
    return missing


def metadata_error(info: PluginInfo, owners: dict[str, str]) -> str | None:
    """Return why a plugin is refused without importing it, or None."""
    is_built_in = normalize(info.distribution) == BUILT_IN_DISTRIBUTION
    if not is_built_in and info.namespace == RESERVED_NAMESPACE:
        return (
            f"namespace {RESERVED_NAMESPACE!r} belongs to katgym itself; name the entry point after"
            " your plugin"
        )
    name = info.namespace if is_built_in else info.name
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return (
            f"entry-point name {info.name!r} cannot be a namespace; allowed are ASCII letters,"
            " digits, '_' and '-'"
        )
    owner = owners.get(info.namespace, info.distribution)
    if owner != info.distribution:
        return f"namespace {info.namespace!r} is already taken by distribution {owner!r}"
    return None


def labels(info: PluginInfo) -> set[str]:
    return {normalize(label) for label in (info.name, info.namespace, info.distribution)}


def normalize(name: str) -> str:
    """Lower case, with `-` and `_` alike, as in names of distributions; dots stay."""
    return re.sub(r"[-_]+", "-", name.strip()).lower()
