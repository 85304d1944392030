"""Program that plays an env on request: JSON on standard input, a line of JSON per answer.

    python -m katgym.certificate.child_process < request.json

Whatever the env prints goes to standard error. Not here: who asks (`child.py`).
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from katgym.certificate.checks.reproducibility import list_tasks
from katgym.certificate.subject import transcript
from katgym.environment.env import Env
from katgym.environment.failure import FailureKind


def make_env(target: dict[str, Any]) -> Env:
    """Make the env that `child.reference` described."""
    try:
        module = importlib.import_module(target["module"])
    except ImportError:
        spec = importlib.util.spec_from_file_location(target["module"], target["file"])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[target["module"]] = module
        spec.loader.exec_module(module)
    kind = functools.reduce(getattr, target["name"].split("."), module)
    env: Env = kind(*target["args"], **target["kwargs"])  # type: ignore[operator]  # an env's class
    return env


def transcripts(env: Env, request: dict[str, Any]) -> Iterator[Any]:
    """Yield all episodes by seed, and the tasks, at once."""
    found: dict[str, Any] = {}
    for seed in request["seeds"]:
        found[str(seed)] = asyncio.run(transcript(env.clone(), seed))
    yield found | {"tasks": list_tasks(env, request["tasks"])}


def answers(env: Env, request: dict[str, Any]) -> Iterator[Any]:
    """Yield, for every action, that it begins, and what became of it."""
    for action in request["actions"]:
        yield "begins"
        start = time.monotonic()
        try:
            value, error = asyncio.run(_answer(env.clone(), request["task_id"], action))
        except Exception as e:
            value, error = None, f"{type(e).__name__}: {e}"
        yield {"value": value, "error": error[:300], "seconds": time.monotonic() - start}


async def _answer(env: Env, task_id: str, action: Any) -> tuple[float | None, str]:
    """Answer a task with one action, then be silent; return the value, or why there is none."""
    await env.areset(seed=0, options={"task_id": task_id})
    await env.astep(action)
    if env.is_running and "tool_calls" in (action if isinstance(action, dict) else {}):
        await env.astep("")
    if env.is_running:
        await env.atruncate(FailureKind.MAX_TURNS)
    reward = env.last_reward
    assert reward is not None
    return reward.value, reward.reason


def main() -> None:
    """Answer the request on standard input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    env = make_env(request["target"])
    job = {"transcripts": transcripts, "answers": answers}[request["job"]]
    for answer in job(env, request):
        out.write(json.dumps(answer) + "\n")
        out.flush()
    out.flush()
    os._exit(0)  # an env's threads and processes have no say in it


if __name__ == "__main__":
    main()
