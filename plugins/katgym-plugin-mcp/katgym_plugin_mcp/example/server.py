"""A calculator as an MCP server, to try `mcp/Questions-v0` with.

It is written with the standard library alone and starts at once; a server of your own is shorter
with the SDK (`mcp.server.MCPServer`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

_NUMBER = {"type": "integer"}
SCHEMA = {
    "type": "object",
    "properties": {"a": _NUMBER, "b": _NUMBER},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS: dict[str, tuple[str, Callable[..., int]]] = {
    "math.add": ("Add two numbers.", lambda a, b: a + b),
    "math.multiply": ("Multiply two numbers.", lambda a, b: a * b),
}
"""Name -> what it does, and how."""


def answer(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request; `KeyError` for one that this server does not know."""
    if method == "initialize":
        return {
            "protocolVersion": parameters["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "calculator", "version": "1"},
            "instructions": "A calculator for whole numbers.",
        }
    if method == "tools/list":
        listed = [
            {"name": name, "description": text, "inputSchema": SCHEMA}
            for name, (text, _) in TOOLS.items()
        ]
        return {"tools": listed}
    if method == "tools/call":
        result = TOOLS[parameters["name"]][1](**parameters["arguments"])
        return {"content": [{"type": "text", "text": str(result)}]}
    return {"ping": {}}[method]


def main() -> None:
    """Answer requests, a line of JSON each, until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:  # a notification
            continue
        response: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            response["result"] = answer(request["method"], request.get("params") or {})
        except KeyError as e:
            response["error"] = {"code": -32601, "message": f"unknown: {e}"}
        sys.stdout.write(f"{json.dumps(response)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
