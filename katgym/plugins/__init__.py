"""Plugins: entry points found, loaded in isolation, and asked for what they contribute."""

from katgym.plugins.loader import (
    algorithms,
    call_hooks,
    commands,
    exporters,
    list_plugins,
    load,
    policy_schemes,
    sandboxes,
    staging,
    trackers,
)

__all__ = [
    "algorithms",
    "call_hooks",
    "commands",
    "exporters",
    "list_plugins",
    "load",
    "policy_schemes",
    "sandboxes",
    "staging",
    "trackers",
]
