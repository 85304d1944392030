"""Calls that upstream's possible answers describe, and the tasks whose answers fail its checker.

A possible answer lists the values that each parameter may have; "" says that it may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_UNQUOTED = "Java's strings within a collection are right only without their quotes"
_MISSING = "the answer leaves out a parameter that the function requires, or it has one too many"
EXCLUDED: Mapping[str, str] = {
    **dict.fromkeys(
        (f"simple_java_{i}" for i in (35, 36, 65, 78, 83, 85, 86, 89, 90, 91)), _UNQUOTED
    ),
    **dict.fromkeys(
        """
        parallel_multiple_12 parallel_multiple_26 live_simple_106-63-0 live_simple_112-68-0
        live_multiple_507-149-4 live_multiple_862-181-3 live_multiple_964-207-0
        """.split(),  # noqa: SIM905 - a list would be a line each
        _MISSING,
    ),
    "live_multiple_121-46-0": "the answer is written in another form than all others",
    "multi_turn_miss_func_49": "the answer uses a function that is held back until later",
    **dict.fromkeys(
        (f"multi_turn_{name}_173" for name in ("base", "miss_func", "miss_param", "long_context")),
        "the answer's ticket is no number, as the function requires",
    ),
}
"""Tasks whose own answer upstream's checker or functions refuse, and why."""


def gold_arguments(
    function: Mapping[str, Any], options: Mapping[str, Sequence[Any]], language: str
) -> dict[str, Any]:
    """Return one call's arguments, of the first value that each parameter may have."""
    chosen = _choose(options)
    if language == "python":
        return chosen
    write = _java if language == "java" else _javascript
    schemas = function["parameters"]["properties"]
    return {name: write(value, schemas[name]) for name, value in chosen.items()}


def _choose(options: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    values = {name: [v for v in given if v != ""] for name, given in options.items()}
    return {name: _plain(found[0]) for name, found in values.items() if found}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _choose(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _java(value: Any, schema: Mapping[str, Any]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        puts = " ".join(f'put("{k}", {json.dumps(v)});' for k, v in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    kind = schema["type"]
    if isinstance(value, list):
        element = schema.get("items", {})
        words = [json.dumps(v) if isinstance(v, str) else _java(v, element) for v in value]
        text = ", ".join(words)
        if kind == "Array":
            return f"new {element.get('type', 'Object')}[]{{{text}}}"
        return f"new ArrayList<>(Arrays.asList({text}))" if words else "new ArrayList<>()"
    return json.dumps(value) + {"long": "L", "float": "f"}.get(kind, "")


def _javascript(value: Any, schema: Mapping[str, Any]) -> str:
    return value if isinstance(value, str) else json.dumps(value)
