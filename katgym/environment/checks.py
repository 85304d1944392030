"""Checks that every env has to pass: contract, solvability, no free reward, determinism, hygiene.

`katgym check ENV_ID` prints the report. Not here: that a scorer cannot be fooled by an answer
nobody thought of, and that tasks are any good; both need the env author's own tests.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jsonschema
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from katgym.environment.env import Env
from katgym.environment.messages import Action, Message, assistant
from katgym.environment.reward import Reward
from katgym.errors import EpisodeStateError, KatgymError, UsageError
from katgym.plugins import registry
from katgym.system.sync import run_sync

GARBAGE = "zzzz 0x7f \u2603 I am not sure, maybe."
MAX_STEPS = 1000
"""Steps after which a check gives up on an episode that neither ends nor truncates."""
NUM_THREADS = 8
EPSILON = 1e-9


class CheckStatus(StrEnum):
    """Outcome of one check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One named check; `detail` says what was measured, or what is wrong."""

    name: str
    status: CheckStatus
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All checks of one env."""

    env_id: str
    checks: Sequence[Check]

    @property
    def ok(self) -> bool:
        """Whether nothing failed; a skipped check is no failure."""
        return not self.failures

    @property
    def failures(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status is CheckStatus.FAILED]

    def raise_for_failures(self) -> None:
        """Raise `AssertionError` that lists every failed check, for use in tests."""
        if not self.ok:
            lines = "\n".join(f"  {check.name}: {check.detail}" for check in self.failures)
            raise AssertionError(f"{self.env_id} fails {len(self.failures)} check(s):\n{lines}")


class _Failed(Exception):
    """A check's finding."""


class _Skipped(Exception):
    """Why a check does not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """The env under test: where fresh instances come from, and how much to try."""

    name: str
    fresh: Callable[[], Env]
    registered_id: str | None
    num_tasks: int


def check_env(env_or_id: Env | str, *, num_tasks: int = 20, **kwargs: Any) -> CheckReport:
    """Check an env and return the report; nothing is raised for a finding.

    env_or_id: an id (made with `kwargs`) or an env, also one wrapped by `gymnasium.make`. The env
        itself is not played: clones of it are.
    num_tasks: seeds, and tasks of each split, that the checks look at.
    """
    if num_tasks < 1:
        raise UsageError(f"num_tasks is >= 1, got {num_tasks!r}")
    if isinstance(env_or_id, str):
        env = registry.make(env_or_id, **kwargs)
    elif kwargs:
        raise UsageError(f"arguments {sorted(kwargs)} apply to an env id, got an env")
    else:
        inner = env_or_id.unwrapped
        if not isinstance(inner, Env):
            raise UsageError(f"check_env takes a katgym.Env or an env id, got {inner!r}")
        env = inner
    subject = _Subject(
        name=env.spec.id if env.spec else type(env).__name__,
        fresh=env.clone,
        registered_id=env_or_id if isinstance(env_or_id, str) else None,
        num_tasks=num_tasks,
    )
    checks = []
    for name, check in CHECKS.items():
        try:
            status, detail = CheckStatus.PASSED, run_sync(check(subject))
        except _Skipped as e:
            status, detail = CheckStatus.SKIPPED, str(e)
        except _Failed as e:
            status, detail = CheckStatus.FAILED, str(e)
        except Exception as e:  # whatever the env raises is this check's finding
            status, detail = CheckStatus.FAILED, f"{type(e).__name__}: {e}"
        checks.append(Check(name=name, status=status, detail=detail))
    return CheckReport(env_id=subject.name, checks=checks)


async def _check_gymnasium(subject: _Subject) -> str:
    """Gymnasium's own checker accepts the env."""

    def run() -> list[str]:
        env = subject.fresh()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gymnasium_check_env(env, skip_render_check=True)
        env.close()
        return [str(w.message) for w in caught if "gymnasium" in w.filename]

    # Gymnasium's checker is synchronous, so it gets a thread without a running event loop.
    found = await asyncio.to_thread(run)
    return f"{len(found)} warning(s): {'; '.join(found)}" if found else "no warnings"


async def _check_opening(subject: _Subject) -> str:
    """Every episode opens with at least one message that says something."""
    env = subject.fresh()
    for seed in range(subject.num_tasks):
        observation, _ = await env.areset(seed=seed)
        if observation not in env.observation_space:
            raise _Failed(f"seed {seed}: the opening is not a list of messages: {observation!r}")
        if not any(message["content"].strip() for message in observation):
            raise _Failed(f"seed {seed}: the opening is empty: {observation!r}")
    await env.aclose()
    return f"{subject.num_tasks} openings"


async def _check_oracle(subject: _Subject) -> str:
    """The gold solution earns the maximum of the rubric, or what the env promises."""
    env = subject.fresh()
    least, name = env.oracle_minimum(), "the env's oracle_minimum()"
    if least is None:
        least, name = _max_value(env), "the rubric's maximum"
    for seed in range(subject.num_tasks):
        value = await _play(env, seed, _oracle)
        if len(env.seats) == 1 and value < least - EPSILON:
            raise _Failed(
                f"seed {seed}, task {env.task.task_id!r}: the oracle earns {value:g}, {name} is"
                f" {least:g}"
            )
    if len(env.seats) > 1:
        return (
            f"{subject.num_tasks} episodes played to their end; {len(env.seats)} seats share them"
        )
    return f"at least {least:g} on each of {subject.num_tasks} seeds"


async def _check_floor(subject: _Subject) -> str:
    """Saying nothing, nonsense or something random is not paid."""
    env = subject.fresh()
    if len(env.seats) > 1:
        raise _Skipped(f"{len(env.seats)} seats: what one earns depends on the others")
    highest = _max_value(env)
    floors = [await _play(env, seed, lambda _: "") for seed in range(subject.num_tasks)]
    if max(floors) - min(floors) > EPSILON:
        raise _Failed(f"an empty message earns {min(floors):g} to {max(floors):g}, not always same")
    if floors[0] > highest - EPSILON:
        raise _Failed(f"an empty message earns {floors[0]:g}, as much as the solution")
    for seed in range(subject.num_tasks):
        value = await _play(env, seed, lambda _: GARBAGE)
        if value > floors[0] + EPSILON:
            raise _Failed(
                f"seed {seed}: {GARBAGE!r} earns {value:g}, an empty message {floors[0]:g}"
            )
        rng = random.Random(seed)
        value = await _play(env, seed, lambda env, rng=rng: env.random_action(rng))  # type: ignore[misc]  # bound per seed
        if value > highest + EPSILON:
            raise _Failed(
                f"seed {seed}: random play earns {value:g}, above the maximum {highest:g}"
            )
    return f"{floors[0]:g} for an empty message and for nonsense"


async def _check_determinism(subject: _Subject) -> str:
    """A seed gives the same episode in another instance and under many threads."""
    env = subject.fresh()
    seeds = range(min(subject.num_tasks, NUM_THREADS))
    expected = [await _transcript(env, seed) for seed in seeds]
    for seed, first in zip(seeds, expected, strict=True):
        _compare(seed, first, await _transcript(subject.fresh(), seed), "a second instance")
    results: dict[int, Any] = {}

    def work(seed: int) -> None:
        try:
            results[seed] = asyncio.run(_transcript(subject.fresh(), seed))
        except Exception as e:  # compared below: it is not what the first instance did
            results[seed] = f"{type(e).__name__}: {e}"

    threads = [threading.Thread(target=work, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    for seed, first in zip(seeds, expected, strict=True):
        _compare(seed, first, results[seed], f"one of {len(threads)} threads")
    tasks = {transcript[0] for transcript in expected}
    if len(tasks) == 1 and len(seeds) > 4 and len(env.tasks()) > 4:
        raise _Failed(f"{len(seeds)} seeds all give task {tasks.pop()!r}: is the seed used?")
    return f"{len(seeds)} seeds, {len(tasks)} tasks"


async def _check_tasks(subject: _Subject) -> str:
    """Task ids are unique over all splits, and contents are the same in every instance."""
    first, second = subject.fresh(), subject.fresh()
    second._task_sets = {}  # shared with the clones: here they are loaded again
    owners: dict[str, str] = {}
    contents: dict[str, str] = {}
    num_shared = 0
    for split in first.splits:
        tasks, again = first.tasks(split), second.tasks(split)
        if len(tasks) != len(again):
            raise _Failed(f"split {split!r} has {len(tasks)} tasks, in another env {len(again)}")
        for index in range(min(len(tasks), subject.num_tasks)):
            task = tasks[index]
            if task.task_id in owners:
                raise _Failed(
                    f"task id {task.task_id!r} is in split {owners[task.task_id]!r} and {split!r}"
                )
            if task.task_id != again[index].task_id or task.sha256 != again[index].sha256:
                raise _Failed(f"task {task.task_id!r} differs between two instances of the env")
            if tasks.get(task.task_id).sha256 != task.sha256:
                raise _Failed(f"task {task.task_id!r} found by its id is another than by its index")
            owners[task.task_id] = split
            num_shared += contents.setdefault(task.sha256, split) != split
    detail = f"{len(owners)} tasks in {len(first.splits)} splits"
    return f"{detail}; {num_shared} have the content of another split" if num_shared else detail


async def _check_options(subject: _Subject) -> str:
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
    raise _Failed("make(..., no_such_argument=1) raises no UsageError")


async def _check_tools(subject: _Subject) -> str:
    """Tools have a valid JSON Schema and a description; an unknown one is an error result."""
    env = subject.fresh()
    await env.areset(seed=0)
    for tool in env.tools.values():
        function = tool.to_openai()["function"]
        jsonschema.Draft202012Validator.check_schema(function["parameters"])
        if not function["description"]:
            raise _Failed(f"tool {tool.name!r} has no description: give its function a docstring")
    observation, *_ = await env.astep(assistant("", [("no_such_tool", {})]))
    answers = [m for m in observation if m.get("tool_call_id") == "call_0"]
    if len(answers) != 1:
        raise _Failed(f"a call of an unknown tool got {len(answers)} results instead of 1")
    await env.aclose()
    return f"{len(env.tools)} tool(s)"


async def _check_invalid_action(subject: _Subject) -> str:
    """What is no assistant message raises `UsageError`, and the episode goes on."""
    env = subject.fresh()
    await env.areset(seed=0)
    user_message: Message = {"role": "user", "content": "hello"}
    for action in (3, None, user_message):
        await _expect(UsageError, f"step({action!r})", env.astep(action))  # type: ignore[arg-type]  # on purpose
    await env.astep("")
    await env.aclose()
    return "3 invalid actions"


async def _check_reset(subject: _Subject) -> str:
    """Reset works in the middle of an episode; step before reset and after the end is an error."""
    env = subject.fresh()
    await _expect(EpisodeStateError, "step() before reset()", env.astep(""))
    before, _ = await env.areset(seed=3)
    await env.astep(assistant("", [("no_such_tool", {})]))
    after, _ = await env.areset(seed=3)
    if before != after:
        raise _Failed(
            f"reset(seed=3) in mid-episode opens with {after!r}, at first with {before!r}"
        )
    await _play(env, 3, lambda _: "")
    await _expect(EpisodeStateError, "step() after the episode's end", env.astep(""))
    await env.aclose()
    await env.aclose()
    return "mid-episode reset, no step outside an episode, close twice"


CHECKS: Mapping[str, Callable[[_Subject], Coroutine[Any, Any, str]]] = {
    "gymnasium": _check_gymnasium,
    "opening": _check_opening,
    "oracle": _check_oracle,
    "floor": _check_floor,
    "determinism": _check_determinism,
    "tasks": _check_tasks,
    "options": _check_options,
    "tools": _check_tools,
    "invalid_action": _check_invalid_action,
    "reset": _check_reset,
}


async def _play(env: Env, seed: int, act: Callable[[Env], Any]) -> float:
    """Play an episode and return its reward, which has to be valid."""
    await env.areset(seed=seed)
    for _ in range(MAX_STEPS):
        action = act(env)
        *_, terminated, truncated, _ = await env.astep(
            await action if inspect.isawaitable(action) else action
        )
        if terminated or truncated:
            break
    else:
        await env.aclose()
        raise _Failed(f"seed {seed}: the episode has not ended after {MAX_STEPS} steps")
    reward: Reward | None = env.last_reward
    if reward is None or reward.value is None:
        reason = reward.reason if reward is not None else "none was given"
        raise _Failed(f"seed {seed}, task {env.task.task_id!r}: no valid reward: {reason}")
    return reward.value


def _oracle(env: Env) -> Action:
    try:
        return env.oracle_action()
    except NotImplementedError as e:
        raise _Skipped(str(e)) from e


async def _transcript(env: Env, seed: int) -> tuple[str, list[Message], float]:
    """Play by the oracle, else at random, and return task id, messages and reward."""
    rng = random.Random(seed)
    try:
        reward = await _play(env, seed, _oracle)
    except _Skipped:
        reward = await _play(env, seed, lambda env: env.random_action(rng))
    return env.task.task_id, list(env.messages), reward


def _compare(seed: int, expected: tuple[str, list[Message], float], got: Any, where: str) -> None:
    if got != expected:
        raise _Failed(f"seed {seed} gives another episode in {where}: {got!r:.300}")


async def _expect(kind: type[KatgymError], what: str, call: Awaitable[Any]) -> None:
    try:
        await call
    except kind:
        return
    except Exception as e:
        raise _Failed(f"{what} raises {type(e).__name__} ({e}) instead of {kind.__name__}") from e
    raise _Failed(f"{what} raises no {kind.__name__}")


def _max_value(env: Env) -> float:
    """Return what the rubric adds up to when every scorer says 1; 1.0 without a rubric."""
    weights = [s.weight for s in env.rubric.scorers if not s.is_gate and s.weight > 0]
    return sum(weights) if weights else 1.0
