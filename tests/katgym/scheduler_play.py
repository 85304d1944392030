"""Runs tool calls, for the tests of the scheduler.

Not here: fixture `no_tool_thread_stays` (`conftest.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from katgym.environment.messages import assistant, normalize_action
from katgym.environment.scheduler import SchedulerConfig, ToolResult, run_calls
from katgym.environment.tool import Tool, ToolOptions

FAST = SchedulerConfig(tool_timeout_s=600.0, turn_timeout_s=600.0, grace_s=0.2)


def make_tool(
    fn: Callable[..., Any], *, parallel: bool = False, timeout_s: float | None = None
) -> Tool:
    return Tool.from_function(fn, ToolOptions(parallel=parallel, timeout_s=timeout_s))


def tools_of(*fns: Callable[..., Any], parallel: bool = True) -> dict[str, Tool]:
    made = [make_tool(fn, parallel=parallel) for fn in fns]
    return {tool.name: tool for tool in made}


def run(
    tools: Mapping[str, Tool], *calls: tuple[str, dict[str, Any]], config: SchedulerConfig = FAST
) -> list[ToolResult]:
    message = normalize_action(assistant("", calls))
    return asyncio.run(run_calls(tools, message["tool_calls"], config))


def one(fn: Callable[..., Any], *, config: SchedulerConfig = FAST, **arguments: Any) -> ToolResult:
    (result,) = run(tools_of(fn), (fn.__name__, arguments), config=config)
    return result
