"""Upstream's stateful services: a file system, a car, a broker, tickets, posts, travel, messages.

Calls run one at a time in the whole process: some services keep results in module globals and one
sets the precision of all numbers.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import katgym

MAX_NUMBERS = {"precision": 1000, "exponent": 1000}
"""Largest size of arguments that would otherwise compute for hours."""
_lock = threading.Lock()


class Services:
    """The services of one episode, by their class's name."""

    def __init__(self, names: Sequence[str], config: Mapping[str, Any], *, is_long: bool) -> None:
        """Make the services; is_long: whether their answers are padded with long text."""
        from bfcl_eval.constants import executable_backend_config as backend

        self.instances: dict[str, Any] = {}
        with _lock:
            for name in names:
                module = importlib.import_module(backend.CLASS_FILE_PATH_MAPPING[name])
                instance = getattr(module, name)()
                if name not in backend.STATELESS_CLASSES:
                    scenario = copy.deepcopy(config.get(name, {}))
                    instance._load_scenario(scenario, long_context=is_long)
                self.instances[name] = instance

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> str:
        """Call a service's method; what it raises is its answer, as upstream writes it."""
        for key, limit in MAX_NUMBERS.items():
            value = kwargs.get(key)
            if isinstance(value, int | float) and abs(value) > limit:
                raise katgym.ToolError(f"{key} is at most {limit} here, got {value!r}")
        with _lock:
            try:
                return _as_text(self._method(name)(*args, **kwargs))
            except Exception as e:  # whatever a service raises for arguments it does not expect
                return f"Error during execution: {e}"

    def run(self, calls: Sequence[str]) -> list[str]:
        """Run calls written as Python, `cd(folder='a')`, with literal arguments."""
        return [self.call(name, *args, **kwargs) for name, args, kwargs in map(parse_call, calls)]

    def arguments(self, call: str) -> tuple[str, dict[str, Any]]:
        """Return the name and the arguments by name of a call written as Python."""
        name, args, kwargs = parse_call(call)
        return name, inspect.signature(self._method(name)).bind(*args, **kwargs).arguments

    def _method(self, name: str) -> Any:
        owners = [item for item in self.instances.values() if hasattr(item, name)]
        return getattr(owners[-1], name)


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return name, positional and named arguments of a call written as Python."""
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    named = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in node.keywords}
    return node.func.id, [ast.literal_eval(argument) for argument in node.args], named


def is_fulfilled(
    services: Services, gold: Services, results: Sequence[str], wanted: Sequence[str], request: int
) -> bool:
    """Return whether services are in the gold's state, and the wanted answers among the results."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as upstream

    states = upstream.state_checker(services.instances, gold.instances)
    answers = upstream.response_checker(results, wanted, request)
    return bool(states["valid"] and answers["valid"])


def _as_text(result: object) -> str:
    if isinstance(result, dict):
        with suppress(TypeError, ValueError):  # a number of mpmath
            return json.dumps(result)
    return str(result)
