"""OpenAPI schemas, in which Google's clients write parameters, as JSON Schema.

Not here: schemas that are JSON Schema already (`parametersJsonSchema`), which stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katgym.gateway.wire import fields

_DROPPED = ("nullable", "propertyOrdering", "property_ordering", "example", "type")
_LISTS = ("anyOf", "any_of", "prefixItems", "prefix_items")
_MAPS = ("properties", "defs", "$defs")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


def json_schema(given: object, name: str) -> dict[str, Any]:
    """Return an OpenAPI schema as JSON Schema; name: as errors tell it.

    Example:
        json_schema({"type": "STRING", "nullable": True}, "x") == {"type": ["string", "null"]}
    """
    schema = fields.as_object(given, name)
    found: dict[str, Any] = {}
    if schema.get("type") is not None:
        kind = fields.as_text(schema["type"], f"{name}.type").lower()
        found["type"] = [kind, "null"] if schema.get("nullable") is True else kind
    for key, value in schema.items():
        at = f"{name}.{key}"
        if key in _DROPPED:
            continue
        own = fields.camel(key)
        if key in _LISTS:
            found[own] = [
                json_schema(v, f"{at}[{i}]") for i, v in enumerate(fields.as_list(value, at))
            ]
        elif key in _MAPS:
            entries = fields.as_object(value, at).items()
            found[own] = {k: json_schema(v, f"{at}.{k}") for k, v in entries}
        elif key == "items" or (own == "additionalProperties" and isinstance(value, Mapping)):
            found[own] = json_schema(value, at)
        else:
            # 64-bit numbers are text in Google's JSON.
            is_count = own in _COUNTS and isinstance(value, str) and value.isdecimal()
            found[own] = int(value) if is_count else value
    return found
