"""Tool descriptions with JSON Schemas, from upstream's own notation.

Java's and JavaScript's parameters are strings that hold source code, as upstream asks of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LANGUAGES = {"java": "Java", "javascript": "JavaScript", "python": "Python"}


def tool_spec(function: Mapping[str, Any], language: str = "python") -> dict[str, Any]:
    """Return a function's description for `Tool.from_schema`."""
    parameters = function["parameters"]
    properties = {
        name: _source_code(schema, LANGUAGES[language]) if language != "python" else _schema(schema)
        for name, schema in parameters.get("properties", {}).items()
    }
    return {
        "name": function["name"],
        "description": function["description"],
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(parameters.get("required", ())),
        },
    }


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI  # told to be missing before

    made = {key: schema[key] for key in ("description", "default", "enum") if key in schema}
    made["type"] = GORILLA_TO_OPENAPI.get(schema.get("type", ""), "string")
    if "properties" in schema and made["type"] == "object":
        inner = schema["properties"]
        made["properties"] = {name: _schema(value) for name, value in inner.items()}
        if isinstance(schema.get("required"), list):
            made["required"] = schema["required"]
    if "items" in schema and made["type"] == "array":
        made["items"] = _schema(schema["items"])
    return made


def _source_code(schema: Mapping[str, Any], language: str) -> dict[str, Any]:
    words = [schema.get("description", ""), f"{language} source code of type {schema['type']}."]
    words += [
        f"Its {key}: {json.dumps(schema[key])}." for key in ("items", "properties") if key in schema
    ]
    return {"type": "string", "description": " ".join(words).strip()}
