"""Checks of the contract: what any env has to do, whatever its tasks.

Not here: seeds and processes (`reproducibility.py`), rewards (`solvability.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable

import jsonschema
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from katgym.certificate.findings import Failed
from katgym.certificate.subject import Subject, play
from katgym.environment.messages import Message, assistant
from katgym.errors import EpisodeStateError, KatgymError, UsageError
from katgym.plugins import registry


async def check_gymnasium(subject: Subject) -> str:
    """Gymnasium's own checker accepts the env."""

    env = subject.fresh()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gymnasium_check_env(env, skip_render_check=True)
    await env.aclose()
    found = [str(w.message) for w in caught if "gymnasium" in w.filename]
    return f"{len(found)} warning(s): {'; '.join(found)}" if found else "no warnings"


async def check_opening(subject: Subject) -> str:
    """Every episode opens with at least one message that says something."""
    env = subject.fresh()
    for seed in range(subject.num_tasks):
        observation, _ = await env.areset(seed=seed)
        if observation not in env.observation_space:
            raise Failed(f"seed {seed}: the opening is not a list of messages: {observation!r}")
        if not any(message["content"].strip() for message in observation):
            raise Failed(f"seed {seed}: the opening is empty: {observation!r}")
    await env.aclose()
    return f"{subject.num_tasks} openings"


async def check_options(subject: Subject) -> str:
    """Options that do not exist are errors."""
    env = subject.fresh()
    for key, value in (("no_such_option", 1), ("split", "no such"), ("task_id", "no such")):
        options = {key: value}
        await _expect(UsageError, f"reset({options=})", env.areset(seed=0, options=options))
    if subject.registered_id is None:
        return "reset options"
    try:
        registry.make(subject.registered_id, no_such_argument=1)
    except UsageError:
        return "reset options and make arguments"
    raise Failed("make(..., no_such_argument=1) raises no UsageError")


async def check_tools(subject: Subject) -> str:
    """Tools have a valid JSON Schema and a description; an unknown one is an error result."""
    env = subject.fresh()
    await env.areset(seed=0)
    for tool in env.tools.values():
        function = tool.to_openai()["function"]
        jsonschema.Draft202012Validator.check_schema(function["parameters"])
        if not function["description"]:
            raise Failed(f"tool {tool.name!r} has no description: give its function a docstring")
    observation, *_ = await env.astep(assistant("", [("no_such_tool", {})]))
    answers = [m for m in observation if m.get("tool_call_id") == "call_0"]
    if len(answers) != 1:
        raise Failed(f"a call of an unknown tool got {len(answers)} results instead of 1")
    await env.aclose()
    return f"{len(env.tools)} tool(s)"


async def check_invalid_action(subject: Subject) -> str:
    """What is no assistant message raises `UsageError`, and the episode goes on."""
    env = subject.fresh()
    await env.areset(seed=0)
    user_message: Message = {"role": "user", "content": "hello"}
    for action in (3, None, user_message):
        await _expect(UsageError, f"step({action!r})", env.astep(action))  # type: ignore[arg-type]  # on purpose
    await env.astep("")
    await env.aclose()
    return "3 invalid actions"


async def check_reset(subject: Subject) -> str:
    """Reset works in the middle of an episode; step before reset and after the end is an error."""
    env = subject.fresh()
    await _expect(EpisodeStateError, "step() before reset()", env.astep(""))
    before, _ = await env.areset(seed=3)
    await env.astep(assistant("", [("no_such_tool", {})]))
    after, _ = await env.areset(seed=3)
    if before != after:
        raise Failed(f"reset(seed=3) in mid-episode opens with {after!r}, at first with {before!r}")
    await play(env, lambda *_: "", seed=3)
    await _expect(EpisodeStateError, "step() after the episode's end", env.astep(""))
    await env.aclose()
    await env.aclose()
    return "mid-episode reset, no step outside an episode, close twice"


async def _expect(kind: type[KatgymError], what: str, call: Awaitable[object]) -> None:
    try:
        await call
    except kind:
        return
    except Exception as e:
        raise Failed(f"{what} raises {type(e).__name__} ({e}) instead of {kind.__name__}") from e
    raise Failed(f"{what} raises no {kind.__name__}")
