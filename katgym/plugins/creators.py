"""Every env id as an attribute: the entry points katgym's envs have in Gymnasium's registry.

Gymnasium imports `"katgym.plugins.creators:acme/Shout-v0"` like any `"module:attribute"`, so that
`gymnasium.make` ends in the same checks and error texts as `katgym.make`, while specs stay strings
that survive JSON and pickling. Not here: anything to call by hand; use `katgym.make`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from katgym.plugins import registry


def __getattr__(name: str) -> Any:
    if "/" not in name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(registry.create, registry.spec(name))
