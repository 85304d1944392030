"""Waiting counts for nobody: refusals, pauses and queues, in time that passes while all wait."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest
from episode_play import Site
from idle_loop import run_idle
from noted_clock import NotedClock

from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.environment.messages import Message, assistant
from katgym.play.agent_loop import run_rollout
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout
from katgym.policies.base import Completion, EpisodeContext, Policy, Session
from katgym.policies.endpoints.http_retry import HttpClient
from katgym.policies.endpoints.openai_chat import OpenAIChatConfig, OpenAIChatPolicy
from katgym.policies.waiting import HeldRequests, TimeLimit, bounded_by, excuse_since, waiting

Part = Callable[[], Awaitable[object]]


async def answer(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def queue(seconds: float) -> None:
    with waiting():
        await asyncio.sleep(seconds)


async def refused(seconds: float) -> None:
    """Many short attempts: one that is under way when the time ends is not known to fail."""
    for _ in range(round(seconds / 0.01)):
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        excuse_since(began_s)


async def queue_within_a_queue(seconds: float) -> None:
    with waiting():
        await asyncio.sleep(seconds / 3)
        await queue(seconds / 3)
        await asyncio.sleep(seconds / 3)


async def queues_side_by_side(seconds: float) -> None:
    await asyncio.gather(queue(seconds), queue(seconds / 2), refused(seconds / 3))


async def held(seconds: float) -> None:
    server = HeldRequests()

    async def ask() -> None:
        with server.asking():
            await asyncio.sleep(seconds)

    server.hold(is_held=True)
    await asyncio.create_task(ask())
    server.hold(is_held=False)


async def held_meanwhile(seconds: float) -> None:
    server = HeldRequests()
    with server.asking():
        server.hold(is_held=True)
        server.hold(is_held=True)
        await asyncio.sleep(seconds)
        server.hold(is_held=False)


WAITS = [queue, refused, queue_within_a_queue, queues_side_by_side, held, held_meanwhile]


class Timed(Policy):
    """Answers after parts that each take some time; `end` last."""

    name = "timed"

    def __init__(self, turns: Sequence[Sequence[tuple[Any, float]]]) -> None:
        self.turns = list(turns)

    def start(self, context: EpisodeContext) -> Session:
        policy = self

        class Answers(Session):
            async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
                for part, seconds in policy.turns.pop(0):
                    await part(seconds)
                return Completion(message=assistant("more" if policy.turns else "end"))

        return Answers()


def play_timed(turns: Sequence[Sequence[tuple[Any, float]]], *, timeout_s: float) -> Rollout:
    env, limits = Site(max_turns=99), Limits(timeout_s=timeout_s, close_timeout_s=0.5)
    return run_idle(run_rollout(env, Timed(turns), seed=0, limits=limits))


@pytest.mark.parametrize("part", WAITS)
def test_time_that_is_waited_does_not_count_and_other_time_does(part: Part) -> None:
    turns = [[(answer, 0.5)], [(part, 70.0), (answer, 1.0), (part, 9.0)], [(answer, 0.4)]]
    assert play_timed(turns, timeout_s=2.0).status is RolloutStatus.TERMINATED
    cut = play_timed(turns, timeout_s=1.8)
    assert (cut.failure_kind, cut.num_turns, cut.reward.value) == (
        FailureKind.EPISODE_TIMEOUT, 2, 0.25,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_both_is_bounded_by_what_was_not_waited(seed: int) -> None:
    luck = random.Random(seed)
    turns = [
        [(luck.choice([answer, *WAITS]), luck.uniform(0.0, 3.0)) for _ in range(luck.randint(1, 5))]
        for _ in range(luck.randint(1, 5))
    ]
    turns[0].append((answer, 0.1))
    took_s = [sum(s for part, s in turn if part is answer) for turn in turns]
    margin = luck.choice([-0.05, 0.05])
    rollout = play_timed([list(turn) for turn in turns], timeout_s=sum(took_s) + margin)
    if margin > 0:
        assert rollout.status is RolloutStatus.TERMINATED
    elif rollout.num_turns:
        assert rollout.failure_kind is FailureKind.EPISODE_TIMEOUT
    else:
        assert rollout.failure_kind is FailureKind.POLICY_TIMEOUT
        assert rollout.reward.value is None


def test_a_policy_that_never_answered_is_not_judged() -> None:
    rollout = play_timed([[(answer, 9.0)]], timeout_s=2.0)
    assert (rollout.status, rollout.failure_kind) == (
        RolloutStatus.FAILED, FailureKind.POLICY_TIMEOUT,
    )  # fmt: skip
    assert (rollout.reward.is_valid, rollout.reward.value) == (False, None)
    assert rollout.reason.startswith("the policy had answered nothing when 2 s were up;")


def test_time_that_ends_as_a_refusal_comes_ends_the_episode() -> None:
    """The refusal is read by a task that learns of the end after it."""

    async def refused_just_then(seconds: float) -> None:
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds - 5e-10)  # the loop takes both for one time
        excuse_since(began_s)

    async def in_a_task(seconds: float) -> None:
        tasks.append(asyncio.create_task(refused_just_then(seconds)))
        await asyncio.shield(tasks[0])

    tasks: list[asyncio.Task[None]] = []
    rollout = play_timed([[(answer, 1.0)], [(in_a_task, 1.0)]], timeout_s=2.0)
    assert (rollout.failure_kind, rollout.num_turns) == (FailureKind.EPISODE_TIMEOUT, 1)
    assert tasks[0].exception() is None


@pytest.mark.parametrize("seconds", [1.0, 9.0])
def test_what_still_waits_when_the_time_is_over_is_left_alone(seconds: float) -> None:
    async def wait_later() -> None:
        await asyncio.sleep(5.0)
        await queue(1.0)
        await refused(1.0)

    async def go() -> None:
        with contextlib.suppress(TimeoutError):
            async with TimeLimit(2.0, excuse=lambda *_: None).running():
                late = asyncio.create_task(wait_later())
                await asyncio.sleep(seconds)
        await late

    run_idle(go())


def test_the_clock_stands_while_a_task_that_is_left_behind_waits() -> None:
    async def leave_behind(seconds: float) -> None:
        left.append(asyncio.create_task(queue(seconds)))

    left: list[asyncio.Task[None]] = []
    rollout = play_timed([[(leave_behind, 9.0), (answer, 3.0)], [(answer, 3.0)]], timeout_s=2.0)
    assert rollout.status is RolloutStatus.TERMINATED


def test_without_an_episode_nothing_is_noted() -> None:
    async def go() -> None:
        for part in WAITS:
            await part(1.0)

    run_idle(go())


def test_a_server_that_holds_its_requests_stops_all_clocks_that_wait_for_it() -> None:
    server, clocks = HeldRequests(), [NotedClock(), NotedClock()]
    with bounded_by(clocks[0]), server.asking():
        server.hold(is_held=True)
        with bounded_by(clocks[1]), server.asking():
            assert [clock.stands for clock in clocks] == [True, True]
        assert [clock.stands for clock in clocks] == [True, False]
        server.hold(is_held=False)
        assert [clock.stands for clock in clocks] == [False, False]


# ---- over HTTP


def served_by(
    http: HttpClient, handler: Callable[[httpx.Request], Awaitable[httpx.Response]]
) -> None:
    """Have a client ask a coroutine of this event loop: time passes while it waits, and only so."""
    opened, known = http._open, set()

    def open_here() -> httpx.AsyncClient:
        client = opened()
        if client not in known:
            client._transport = httpx.MockTransport(handler)
            client._mounts = {}
            known.add(client)
        return client

    http._open = open_here  # type: ignore[method-assign]


def said(text: str) -> httpx.Response:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    choices = [{"message": {"content": text}, "finish_reason": "stop"}]
    return httpx.Response(200, json={"choices": choices, "usage": usage})


Step = httpx.Response | Exception | float
"""An answer, what asking raises, or seconds that pass before the next."""


def play_served(
    script: Sequence[Step], *, timeout_s: float, num: int = 1, **config: Any
) -> list[Rollout]:
    """Play episodes side by side against a server that goes through a script, then answers."""
    left = list(script)

    async def handle(request: httpx.Request) -> httpx.Response:
        while left and isinstance(left[0], float):
            await asyncio.sleep(left.pop(0))  # type: ignore[arg-type]
        step = left.pop(0) if left else said("end")
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, httpx.Response)
        return step

    async def go() -> list[Rollout]:
        options = OpenAIChatConfig(**{"max_retries": 5, **config})
        policy = OpenAIChatPolicy("http://here", "m", config=options)
        served_by(policy.http, handle)
        limits = Limits(timeout_s=timeout_s)
        return await asyncio.gather(
            *(run_rollout(Site(), policy, seed=n, limits=limits) for n in range(num))
        )

    return run_idle(go())


def asks_to_wait(status: int, seconds: float) -> httpx.Response:
    return httpx.Response(status, text="later", headers={"retry-after": str(seconds)})


PASSING: list[list[Step]] = [
    [asks_to_wait(429, 2.0), asks_to_wait(429, 2.0)],
    [asks_to_wait(503, 20.0)] * 2,
    [httpx.Response(408), httpx.Response(409), httpx.Response(502), httpx.Response(504)],
    [asks_to_wait(429, 5.0), httpx.ConnectError("refused")],
    [httpx.RemoteProtocolError("gone"), httpx.ReadError("broken"), asks_to_wait(500, 4.0)],
    [httpx.Response(200, json={"error": {"code": 429, "message": "busy"}})] * 4,
    [httpx.Response(200, json={"choices": []}), httpx.Response(200, text="<html>")] * 2,
    [5 * 0.4, httpx.Response(503), 2.5, httpx.Response(503), 2.9, httpx.Response(503)],
]


@pytest.mark.parametrize("has_answered", [False, True])
@pytest.mark.parametrize("refusals", PASSING)
def test_refusals_and_pauses_do_not_count(refusals: list[Step], has_answered: bool) -> None:
    script = [*([said("more")] if has_answered else []), *refusals]
    (rollout,) = play_served(script, timeout_s=3.0)
    assert rollout.status is RolloutStatus.TERMINATED
    assert rollout.num_turns == 1 + has_answered


@pytest.mark.parametrize("has_answered", [False, True])
@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_refuses_for_good_makes_no_zero(status: int, has_answered: bool) -> None:
    script = [*([said("more")] if has_answered else []), *[asks_to_wait(status, 2.0)] * 6]
    (rollout,) = play_served(script, timeout_s=3.0)
    assert (rollout.status, rollout.failure_kind) == (
        RolloutStatus.FAILED, FailureKind.POLICY_UNAVAILABLE,
    )  # fmt: skip
    assert (rollout.reward.is_valid, rollout.num_turns) == (False, int(has_answered))


def test_a_server_that_hangs_is_judged_by_whether_it_ever_answered() -> None:
    (never,) = play_served([1e6], timeout_s=3.0)
    assert (never.failure_kind, never.reward.value) == (FailureKind.POLICY_TIMEOUT, None)
    (once,) = play_served([said("more"), 1e6], timeout_s=3.0)
    assert (once.failure_kind, once.reward.value) == (FailureKind.EPISODE_TIMEOUT, 0.25)


def test_the_queue_for_a_connection_does_not_count() -> None:
    rollouts = play_served([2.0, said("end")] * 5, timeout_s=3.0, num=5, max_concurrency=1)
    assert [rollout.status for rollout in rollouts] == [RolloutStatus.TERMINATED] * 5
