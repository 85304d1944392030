"""Runs the tool calls of one turn: parallel stages, barriers, one result per call, in call order.

Calls run in declared order; a maximal run of calls to parallel tools is one concurrent stage, any
other call is a stage of its own and thereby a barrier. A tool's error is its result, and its
siblings go on; `InfrastructureError` cancels them and leaves `run_calls`.

A timeout ends the wait, not always the work: a coroutine is cancelled, but one that swallows the
cancellation, and any thread, is abandoned and keeps what it holds until it returns by itself.

Not here: which tools exist (`tool.py`); what an env does with the results (`env.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from katgym.environment.messages import Message, ToolCallMessage, spelled_object
from katgym.environment.tool import Tool
from katgym.environment.tool_output import tell_non_finite, truncate_output
from katgym.errors import InfrastructureError, ToolError, UsageError, unknown_name

logger = logging.getLogger(__name__)


class ToolErrorKind(StrEnum):
    """Why a call has an error result."""

    UNKNOWN_TOOL = "unknown_tool"
    BAD_JSON = "bad_json"
    BAD_ARGUMENTS = "bad_arguments"
    MALFORMED = "malformed"
    TIMEOUT = "timeout"
    TURN_TIMEOUT = "turn_timeout"
    OVER_CAP = "over_cap"
    TOOL_ERROR = "tool_error"
    EXCEPTION = "exception"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one turn's tool calls."""

    max_calls_per_turn: int = 32
    """Calls beyond this are refused with an error result each."""
    tool_timeout_s: float = 30.0
    """Wall seconds for one call of a tool that names no timeout of its own."""
    turn_timeout_s: float = 300.0
    """Wall seconds for all calls of one turn."""
    max_output_bytes: int = 16_384
    """UTF-8 bytes kept of one result, head and tail; the number left out is written between."""
    grace_s: float = 1.0
    """Wall seconds a cancelled coroutine gets to end before it is abandoned."""

    def __post_init__(self) -> None:
        for name in ("tool_timeout_s", "turn_timeout_s", "grace_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is > 0, got {getattr(self, name)!r}")
        if self.max_calls_per_turn < 1:
            raise UsageError(f"max_calls_per_turn is >= 1, got {self.max_calls_per_turn!r}")
        if self.max_output_bytes < 64:
            raise UsageError(f"max_output_bytes is >= 64, got {self.max_output_bytes!r}")


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The one answer to one call.

    Times are `time.perf_counter()` seconds on the machine that ran the call; `stage` counts the
    turn's stages from 0, and calls of equal stage overlapped.
    """

    call_id: str
    name: str
    content: str
    error: ToolErrorKind | None = None
    stage: int = 0
    called_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    num_bytes_omitted: int = 0

    def to_message(self) -> Message:
        """Return the tool message for the policy."""
        return {
            "role": "tool",
            "tool_call_id": self.call_id,
            "name": self.name,
            "content": self.content,
        }


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one turn's calls share: limits, the tools' `self`, when they came and have to end."""

    config: SchedulerConfig
    owner: object
    called_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class _Runnable:
    """A call that passed every check: what to run, and where its result belongs."""

    index: int
    stage: int
    call_id: str
    tool: Tool
    arguments: dict[str, Any]


def check_call(
    tools: Mapping[str, Tool], call: ToolCallMessage
) -> tuple[Tool, dict[str, Any]] | tuple[ToolErrorKind, str]:
    """Return the tool and its converted arguments, or the error kind and its text."""
    if "error" in call:
        return ToolErrorKind.MALFORMED, f"This tool call could not be read: {call['error']}"
    name = call["function"]["name"]
    found = tools.get(name)
    if found is None:
        return ToolErrorKind.UNKNOWN_TOOL, unknown_name("tool", name, tools)
    text = call["function"]["arguments"]
    try:
        arguments = spelled_object(_read_json(text) if text.strip() else {}, _read_json)
    except (ValueError, RecursionError) as e:
        return ToolErrorKind.BAD_JSON, f"The arguments of {name!r} are not valid JSON: {e}"
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        return ToolErrorKind.BAD_JSON, f"The arguments of {name!r} are a JSON object, not {kind}"
    try:
        problem = found.argument_error(arguments)
        if problem is None:
            return found, found.convert(arguments)
    except RecursionError:
        problem = "nested too deep"
    except (msgspec.ValidationError, TypeError, ValueError) as e:
        problem = str(e)
    return ToolErrorKind.BAD_ARGUMENTS, f"The arguments of {name!r} do not fit: {problem}"


def _read_json(text: str) -> Any:
    """Read JSON; `ValueError` also for what only some programs take for JSON."""
    return json.loads(text, parse_constant=_refuse_number, parse_float=_read_float)


def _read_float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text} is no finite number; write one, or null if the tool takes it")


async def run_calls(
    tools: Mapping[str, Tool],
    calls: Sequence[ToolCallMessage],
    config: SchedulerConfig,
    *,
    owner: object = None,
) -> list[ToolResult]:
    """Run one turn's calls and return exactly one result per call, in call order.

    `owner` is passed as `self` to tools that are methods. Call ids have to differ
    (`normalize_action` sees to it). Raises `InfrastructureError` when a tool does; nothing that
    was started keeps running then, apart from what the module header says.
    """
    called = time.perf_counter()
    turn = _Turn(config, owner, called, called + config.turn_timeout_s)
    results: dict[int, ToolResult] = {}

    # 1. Each call gets its stage, in declared order. A call of a parallel tool joins the last stage
    #    if that is open: if it holds nothing but such calls. Any other call begins a stage; one of
    #    a serial tool leaves it closed, so what follows begins another.
    # 2. A call that is refused has its result at once. It still counts for the order of stages (a
    #    serial one is a barrier) but runs nothing, so a stage may be empty.
    stages: list[list[_Runnable]] = []
    is_open = False
    for index, call in enumerate(calls):
        name = call["function"]["name"]
        is_parallel = name in tools and tools[name].parallel
        if not (is_parallel and is_open):
            stages.append([])
            is_open = is_parallel
        stage = len(stages) - 1
        checked: tuple[Any, Any]
        if index >= config.max_calls_per_turn:
            limit = config.max_calls_per_turn
            text = f"Refused: call {index + 1} of a turn that may hold {limit} calls."
            checked = (ToolErrorKind.OVER_CAP, text)
        else:
            checked = check_call(tools, call)
        if not isinstance(checked[0], ToolErrorKind):
            stages[-1].append(_Runnable(index, stage, call["id"], *checked))
            continue
        now = time.perf_counter()
        results[index] = ToolResult(
            call_id=call["id"],
            name=name,
            content=truncate_output(checked[1], config.max_output_bytes)[0],
            error=checked[0],
            stage=stage,
            called_s=called,
            started_s=now,
            ended_s=now,
        )

    # 3. The barrier: a stage starts when every call of the stage before it has its result.
    for runnables in stages:
        if runnables:
            results.update(await _run_stage(runnables, turn))
    return [results[index] for index in range(len(calls))]


async def _run_stage(stage: Sequence[_Runnable], turn: _Turn) -> dict[int, ToolResult]:
    """Run the calls of one stage at the same time; wait for all, or until their limits."""
    config, deadline = turn.config, turn.deadline_s
    results: dict[int, ToolResult] = {}
    start = time.perf_counter()
    if start >= deadline:
        text = f"Not started: the turn's {config.turn_timeout_s:g} s were used up."
        kind = ToolErrorKind.TURN_TIMEOUT
        return {item.index: _make_result(turn, item, text, kind, start) for item in stage}
    loop = asyncio.get_running_loop()
    ended: dict[int, float] = {}  # when each call returned, which may be before it is looked at
    waiting: dict[
        asyncio.Future[Any], tuple[_Runnable, float]
    ] = {}  # the call and its own deadline
    try:
        for item in stage:
            own = item.tool.timeout_s if item.tool.timeout_s is not None else config.tool_timeout_s
            waiting[_start(loop, item, turn.owner, ended)] = (item, min(start + own, deadline))
        while waiting:
            # Wake up when a call has raised, when all have returned, or at the next deadline.
            next_deadline = min(limit for _, limit in waiting.values())
            timeout = max(0.0, next_deadline - time.perf_counter())
            done, _ = await asyncio.wait(
                waiting, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION
            )
            # What has ended has its result; `_outcome` raises what cancels the rollout.
            for future in done:
                item, _ = waiting.pop(future)
                content, error = _outcome(future, item)
                end = ended.get(item.index)
                results[item.index] = _make_result(turn, item, content, error, start, end)
            # What is late is cancelled, and its siblings are waited for further.
            now = time.perf_counter()
            late = {f: call for f, call in waiting.items() if call[1] <= now}
            if late:
                await _cancel(list(late), config.grace_s)
            for future, (item, limit) in late.items():
                del waiting[future]
                is_turn = limit >= deadline
                text = f"Timed out after {limit - start:.3g} s."
                kind = ToolErrorKind.TURN_TIMEOUT if is_turn else ToolErrorKind.TIMEOUT
                results[item.index] = _make_result(turn, item, text, kind, start)
    finally:
        if waiting:
            await _cancel(list(waiting), config.grace_s)
    return results


def _outcome(future: asyncio.Future[Any], item: _Runnable) -> tuple[str, ToolErrorKind | None]:
    """Return a finished call's text and error kind; raises what cancels the rollout."""
    if future.cancelled():
        return "The tool was cancelled.", ToolErrorKind.EXCEPTION
    error = future.exception()
    if error is None:
        value = future.result()  # a `str` as it is, None as empty, anything else as JSON
        if value is None or isinstance(value, str):
            return value or "", None
        try:
            plain = tell_non_finite(msgspec.to_builtins(value))
            return msgspec.json.encode(plain).decode(), None
        except (TypeError, ValueError, RecursionError):
            return str(value), None
    if isinstance(error, InfrastructureError | MemoryError):
        raise error
    if isinstance(error, ToolError):
        return str(error) or type(error).__name__, ToolErrorKind.TOOL_ERROR
    if not isinstance(error, Exception):
        raise error
    logger.warning("tool %r raised", item.tool.name, exc_info=error)
    return f"{type(error).__name__}: {error}", ToolErrorKind.EXCEPTION


def _make_result(
    turn: _Turn,
    item: _Runnable,
    content: str,
    error: ToolErrorKind | None,
    started: float,
    ended: float | None = None,
) -> ToolResult:
    text, omitted = truncate_output(content, turn.config.max_output_bytes)
    return ToolResult(
        call_id=item.call_id,
        name=item.tool.name,
        content=text,
        error=error,
        stage=item.stage,
        called_s=turn.called_s,
        started_s=started,
        ended_s=time.perf_counter() if ended is None else ended,
        num_bytes_omitted=omitted,
    )


async def _cancel(futures: Sequence[asyncio.Future[Any]], grace_s: float) -> None:
    """Cancel and wait `grace_s`; a coroutine that does not end by then is abandoned."""
    for future in futures:
        future.cancel()
    _, stuck = await asyncio.wait(futures, timeout=grace_s)
    for future in stuck:
        logger.warning("a tool ignored its cancellation and was abandoned: %r", future)
    for future in futures:
        if future.done() and not future.cancelled():
            future.exception()  # marks it retrieved


def _start(
    loop: asyncio.AbstractEventLoop, item: _Runnable, owner: object, ended: dict[int, float]
) -> asyncio.Future[Any]:
    """Start one call: a task for a coroutine function, a daemon thread for a plain one."""
    arguments = (owner,) if item.tool.takes_self else ()

    async def run() -> object:
        try:
            return await item.tool.fn(*arguments, **item.arguments)
        except SystemExit as e:  # in a task it would end the whole event loop
            raise RuntimeError(f"SystemExit: {e}") from e

    if item.tool.is_async:
        task = loop.create_task(run())
        task.add_done_callback(lambda _: ended.setdefault(item.index, time.perf_counter()))
        return task
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(value: object, error: BaseException | None) -> None:
        if not future.done():
            future.set_result(value) if error is None else future.set_exception(error)

    def work() -> None:
        value: object = None
        error: BaseException | None = None
        try:
            value = context.run(item.tool.fn, *arguments, **item.arguments)
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError(f"{item.tool.name!r} is a plain function and returned a coroutine")
        except BaseException as e:  # carried to the event loop, where `_outcome` sorts it
            # A future carries no StopIteration; what is no Exception would stop the loop.
            is_special = isinstance(e, StopIteration) or not isinstance(e, Exception)
            error = RuntimeError(f"{type(e).__name__}: {e}") if is_special else e
        ended.setdefault(item.index, time.perf_counter())
        try:
            loop.call_soon_threadsafe(deliver, value, error)
        except RuntimeError:  # the loop is closed: nobody waits for this call any more
            logger.debug("tool %r ended after its event loop", item.tool.name)

    threading.Thread(target=work, name=f"katgym-tool-{item.tool.name}", daemon=True).start()
    return future
