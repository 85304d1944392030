"""A domain's services: their databases, the tools of the agent and of the user, the tasks.

Not here: episodes (`env.py`), who the user is (`users.py`).
"""

from __future__ import annotations

import copy
import gzip
import inspect
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, get_type_hints

import pydantic

import katgym
from katgym_plugin_tau2.upstream import (
    Store,
    UpstreamToolError,
    current_store,
    modules,
    package_folder,
)

DATABASES = {
    "airline": {"airline.AirlineAgentTools": "db.json.gz"},
    "retail": {"retail.RetailAgentTools": "db.json.gz"},
    "telecom": {"telecom.TelecomAgentTools": "db.toml", "telecom.TelecomUserTools": "user_db.toml"},
}
"""Module of a class of the same name -> file of its database."""
POLICIES = {
    "airline": ("policy.txt",),
    "retail": ("policy.txt",),
    "telecom": ("main_policy.txt", "tech_support_manual.txt"),
}
AGENT_TOOLS = {
    "airline": ("airline.tools", "all_airline_tools"),
    "retail": ("retail.tools", "all_retail_tools"),
    "telecom": ("telecom.tools", "all_telecom_agent_tools"),
}
USER_TOOLS = {"telecom": ("telecom.user_tools", "all_telecom_user_tools")}
SILENT = frozenset(
    """
    airline-0 airline-1 airline-4 airline-5 airline-6 airline-10 airline-13 airline-26 airline-28
    airline-31 airline-34 airline-36 airline-41 airline-43 airline-45 airline-46 airline-47
    airline-48 airline-49 retail-10 retail-12 retail-25 retail-50 retail-57 retail-65 retail-105
    """.split()  # noqa: SIM905 - a list would be a screen long
)
"""Tasks in which the agent has to refuse: an agent that does nothing at all passes them."""
TOOL_ERRORS = (UpstreamToolError, ArithmeticError, AttributeError, LookupError, TypeError)
"""What tools raise for arguments they do not expect; `ValueError`, pydantic's too, as well."""


@lru_cache(maxsize=32)
def read_file(domain: str, name: str) -> Any:
    """Return what a domain's file holds; not to be changed."""
    content = (package_folder() / "data" / "domains" / domain / name).read_bytes()
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    if ".json" in name:
        return json.loads(content)
    return tomllib.loads(content.decode()) if name.endswith(".toml") else content.decode()


def new_store(domain: str, initial: Iterable[Mapping[str, Any]] = ()) -> Store:
    """Return a domain's services as they are before an episode.

    initial: calls that make a task's situation, `env_type`, `func_name` and `arguments` each.
    """
    store: Store = {}
    for name, file in DATABASES[domain].items():
        tools, shared = _load_database(domain, name, file)
        database = copy.copy(shared)
        for field in type(shared).model_fields:  # what is no table of rows is small
            value = getattr(shared, field)
            own = CopiedWhenUsed(value) if isinstance(value, dict) else copy.deepcopy(value)
            setattr(database, field, own)
        store[tools] = tools(db=database, initialized=True)
    for item in initial:
        call_service(store, item)
    return store


@lru_cache(maxsize=8)
def _load_database(domain: str, name: str, file: str) -> tuple[Any, Any]:
    """Return a class of tools and its database, which all episodes share."""
    tools = getattr(modules()[name], name.partition(".")[2])
    return tools, tools.model_fields["db"].annotation.model_validate(read_file(domain, file))


class CopiedWhenUsed(dict[str, Any]):
    """A table that shares its rows with all episodes until they are looked up.

    Tools change rows that they looked up, and only read those that they go through.
    """

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self.own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self.own:
            self[key] = copy.deepcopy(super().__getitem__(key))
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.own.add(key)
        super().__setitem__(key, value)


def call_service(store: Store, call: Mapping[str, Any]) -> Any:
    """Call a method of the agent's or the user's services, each seeing the other's state."""
    with _using(store):
        services = list(store.values())
        _synchronize(services)
        service = services[-1 if call["env_type"] == "user" else 0]
        result = getattr(service, call["func_name"])(**call["arguments"])
        _synchronize(services)
        return result


@contextmanager
def _using(store: Store) -> Iterator[None]:
    """Have upstream's functions work on an episode's services."""
    token = current_store.set(store)
    try:
        yield
    finally:
        current_store.reset(token)


def _synchronize(services: list[Any]) -> None:
    if len(services) > 1:  # making one lets the user's phone see what the agent changed
        modules()["telecom.environment"].get_environment()


@lru_cache(maxsize=8)
def tools_of(module: str, name: str) -> dict[str, katgym.Tool]:
    """Return a list's tools by name; a call works on `self.store` of the env that plays."""
    makers = getattr(modules()[module], name)
    return katgym.tools_by_name(_tool(make.__name__, make()) for make in makers)


def _tool(name: str, execute: Callable[..., Any]) -> katgym.Tool:
    hints = get_type_hints(execute)
    fields: dict[str, Any] = {
        key: (hints[key], ... if item.default is item.empty else item.default)
        for key, item in inspect.signature(execute).parameters.items()
    }
    spec = {
        "name": name,
        "description": inspect.getdoc(execute) or "",
        "parameters": pydantic.create_model("Arguments", **fields).model_json_schema(),
    }

    async def call(self: Any, /, **arguments: Any) -> str:
        if name == "cancel_reservation":
            _refuse_second_cancellation(self.store, arguments.get("reservation_id"))
        try:
            with _using(self.store):
                return str(await execute(**arguments))
        except (*TOOL_ERRORS, ValueError) as e:
            raise katgym.ToolError(str(e) or type(e).__name__) from e

    return katgym.Tool.from_schema(spec, call)


def _refuse_second_cancellation(store: Store, reservation_id: object) -> None:
    """Raise `ToolError` where upstream would double a reservation's payments with every call."""
    (service,) = store.values()
    reservation = service.db.reservations.get(reservation_id)
    if reservation is not None and reservation.status == "cancelled":
        raise katgym.ToolError(f"Reservation {reservation_id} is cancelled already")
