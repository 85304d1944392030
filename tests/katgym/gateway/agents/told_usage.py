"""What command-line agents tell of the tokens that they used, read out of their output.

Not here: how each is made to tell it (`shipped_agents.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

Usage = tuple[int, int]
"""Tokens of prompts and of answers."""


def of_claude(out: str) -> Usage:
    """Read the result of `--output-format json`."""
    usage = json.loads(out)["usage"]
    return usage["input_tokens"], usage["output_tokens"]


def of_codex(out: str) -> Usage | None:
    """Read the last event of a turn."""
    usages = [e["usage"] for e in _events(out) if e["type"] == "turn.completed"]
    return (usages[-1]["input_tokens"], usages[-1]["output_tokens"]) if usages else None


def of_opencode(out: str) -> Usage:
    """Add up the steps."""
    tokens = [e["part"]["tokens"] for e in _events(out) if e["type"] == "step_finish"]
    return sum(t["input"] for t in tokens), sum(t["output"] for t in tokens)


def of_qwen(out: str) -> Usage:
    """Read the last answer's."""
    usages = [e["message"]["usage"] for e in json.loads(out) if e["type"] == "assistant"]
    return usages[-1]["input_tokens"], usages[-1]["output_tokens"]


def of_pi(out: str) -> Usage:
    """Add up the answers."""
    ends = [e["message"] for e in _events(out) if e["type"] == "message_end"]
    usages = [m["usage"] for m in ends if m["role"] == "assistant"]
    return sum(u["input"] for u in usages), sum(u["output"] for u in usages)


def of_cline(out: str) -> Usage | None:
    """Read the result of the run."""
    usages = [e["usage"] for e in _events(out) if e["type"] == "run_result"]
    return (usages[-1]["inputTokens"], usages[-1]["outputTokens"]) if usages else None


def of_aider(out: str) -> Usage | None:
    """Read the line behind the answer."""
    found = re.search(r"Tokens: (\d+) sent, (\d+) received", out)
    return None if found is None else (int(found[1]), int(found[2]))


def _events(out: str) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in out.splitlines() if line.startswith("{"))
