"""tau2's databases and tools as inspect-evals carries them, imported without Inspect.

They use a few names of `inspect_ai`; stand-ins are there during the import, and gone behind it.
`current_store` holds the services that a call of a tool works on.
"""

from __future__ import annotations

import importlib
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pydantic

from katgym.plugins.upstream import package_folder as find_package
from katgym.plugins.upstream import stand_ins

PACKAGE = "inspect_evals.tau2"
MODULES = (
    *("airline.AirlineAgentTools", "airline.tools", "retail.RetailAgentTools", "retail.tools"),
    *("telecom.TelecomAgentTools", "telecom.TelecomUserTools", "telecom.environment"),
    *("telecom.tools", "telecom.user_tools"),
)
Store = dict[type, Any]
"""The services of one episode: class of their tools -> instance, which holds the database."""
current_store: ContextVar[Store] = ContextVar("current_store")


class StoreModel(pydantic.BaseModel):
    """Stands in for Inspect's: a model that lives in the episode's store."""

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)


class UpstreamToolError(Exception):
    """Stands in for Inspect's: what a tool answers if it cannot do what it is asked to."""


def store_as(model: type, instance: str | None = None) -> Any:
    """Stand in for Inspect's function: return the episode's instance of a model."""
    return current_store.get()[model]


def package_folder() -> Path:
    """Return where tau2 is; `MissingDependencyError` says how to install it."""
    because = "Inspect, datasets and more that nothing here uses"
    return find_package("inspect_evals", "inspect-evals==0.28.0", because=because) / "tau2"


@lru_cache(maxsize=1)
def modules() -> dict[str, ModuleType]:
    """Return tau2's `MODULES` by name, imported together: they share their classes."""
    parts: dict[str, dict[str, Any]] = {
        PACKAGE: {"__path__": [str(package_folder())]},
        "inspect_ai": {},
        "inspect_ai.tool": {"Tool": Any, "ToolError": UpstreamToolError, "tool": lambda make: make},
        "inspect_ai.util": {"StoreModel": StoreModel, "store_as": store_as},
        "inspect_ai.model": {"Content": Any, "ContentText": str},
    }
    with stand_ins(parts):
        return {name: importlib.import_module(f"{PACKAGE}.{name}") for name in MODULES}
