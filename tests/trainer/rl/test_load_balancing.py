"""Which of several servers a request goes to, and who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from in_loop import in_loop

from katgym.errors import PolicyError
from katgym.policies.base import Sampling
from katgym.policies.endpoints.vllm_client import AbortedError
from katgym.policies.token_policy import Generated, TokenPolicy
from katgym.policies.version_span import one_span
from katgym_trainer.rl.servers.failover import LostError
from katgym_trainer.rl.servers.load_balancing import BalancedPolicy, Signal


class HeldPolicy(TokenPolicy):
    """Answers with its number when it is let, or with an error."""

    renderer: Any = None
    tokenizer = None
    vocab_size = 100

    def __init__(self, number: int) -> None:
        self.name, self.number = f"policy {number}", number
        self.max_context_tokens = 100 - number
        self.asked: list[str] = []
        self.answer: asyncio.Future[None] | None = None
        """What the calls wait for; None: they do not."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        session_id: str,
    ) -> Generated:
        self.asked.append(session_id)
        if self.answer is not None:
            await asyncio.shield(self.answer)
        return Generated(token_ids=[self.number], policy_logprobs=[0.0])


@dataclass(eq=False)
class Seat:
    policy: HeldPolicy
    is_open: bool = True
    max_running: int = 256
    error: Exception | None = None


@dataclass
class Routes:
    """A policy over so many servers."""

    num: int
    changed: Signal = field(default_factory=Signal)

    def __post_init__(self) -> None:
        self.seats = [Seat(HeldPolicy(number)) for number in range(self.num)]
        self.policy = BalancedPolicy("vllm", self.seats, self.changed)

    async def ask(self, session_id: str) -> int:
        """Return the number of the server that answers."""
        generated = await self.policy.generate(
            [1], sampling=Sampling(), max_tokens=1, seed=None, session_id=session_id
        )
        return generated.token_ids[0]


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@in_loop
async def test_a_session_stays_where_its_prefix_is_until_it_is_released() -> None:
    routes = Routes(2)
    routes.seats[0].is_open = False
    assert await routes.ask("a") == 1
    routes.seats[0].is_open = True
    assert [await routes.ask("a") for _ in range(3)] == [1, 1, 1]
    routes.policy.release("a")
    assert await routes.ask("a") == 0  # the first of those with equally many
    routes.seats[0].is_open = False  # it moves from one that sleeps, and stays there
    assert await routes.ask("a") == 1
    routes.seats[0].is_open = True
    assert await routes.ask("a") == 1


@in_loop
async def test_new_sessions_go_where_the_fewest_run() -> None:
    routes = Routes(3)
    hold = asyncio.get_running_loop().create_future()
    for seat in routes.seats:
        seat.policy.answer = hold
    calls = [asyncio.create_task(routes.ask(f"s{i}")) for i in range(7)]
    await settled()
    assert [len(seat.policy.asked) for seat in routes.seats] == [3, 2, 2]
    hold.set_result(None)
    assert sorted(await asyncio.gather(*calls)) == [0, 0, 0, 1, 1, 2, 2]
    assert await routes.ask("new") == 0


@in_loop
async def test_what_a_full_server_has_no_room_for_overflows_to_others_and_comes_back() -> None:
    routes = Routes(2)
    apart, shared = routes.seats
    apart.max_running, shared.is_open = 2, False
    assert [await routes.ask(name) for name in "abcd"] == [0, 0, 0, 0]
    hold = asyncio.get_running_loop().create_future()
    apart.policy.answer = shared.policy.answer = hold
    shared.is_open = True
    calls = [asyncio.create_task(routes.ask(name)) for name in "abcd"]
    await settled()
    assert (apart.policy.asked[4:], shared.policy.asked) == (["a", "b"], ["c", "d"])
    # Nobody else is awake: what there is no room for waits.
    shared.is_open = False
    calls += [asyncio.create_task(routes.ask("e"))]
    await settled()
    assert apart.policy.asked[6:] == ["e"]
    hold.set_result(None)
    assert await asyncio.gather(*calls) == [0, 0, 1, 1, 0]
    assert [await routes.ask(name) for name in "abcd"] == [0, 0, 0, 0]


@in_loop
async def test_requests_wait_while_all_sleep() -> None:
    routes = Routes(2)
    for seat in routes.seats:
        seat.is_open = False
    call = asyncio.create_task(routes.ask("a"))
    await settled()
    routes.changed.give()
    await settled()
    assert not call.done()
    routes.seats[1].is_open = True
    routes.changed.give()
    assert await call == 1


@in_loop
async def test_a_lost_request_is_asked_of_another_server() -> None:
    routes = Routes(2)
    lost = asyncio.get_running_loop().create_future()
    routes.seats[0].policy.answer = lost
    call = asyncio.create_task(routes.ask("a"))
    await settled()
    routes.seats[0].is_open = False
    lost.set_exception(LostError("it ended"))
    assert await call == 1
    assert (routes.seats[0].policy.asked, routes.seats[1].policy.asked) == (["a"], ["a"])


@in_loop
async def test_who_waits_learns_that_nobody_comes_back() -> None:
    routes = Routes(2)
    for seat in routes.seats:
        seat.is_open = False
    call = asyncio.create_task(routes.ask("a"))
    await settled()
    routes.seats[1].error = ZeroDivisionError("in the watch")
    routes.changed.give()
    with pytest.raises(ZeroDivisionError, match="in the watch"):
        await call
    routes.seats[0].is_open = True
    assert await routes.ask("a") == 0  # the others go on


@in_loop
async def test_other_errors_are_the_callers() -> None:
    routes = Routes(1)
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(PolicyError("refused"))
    routes.seats[0].policy.answer = failed
    with pytest.raises(PolicyError, match="refused"):
        await routes.ask("a")


def test_it_says_what_all_servers_can_do() -> None:
    policy = Routes(3).policy
    assert policy.max_context_tokens == 98
    assert [server["name"] for server in policy.describe()["servers"]] == [
        "policy 0", "policy 1", "policy 2",
    ]  # fmt: skip


@in_loop
async def test_what_a_server_gives_up_to_sleep_goes_on_elsewhere_after_its_tokens() -> None:
    routes = Routes(2)
    prompts: list[tuple[int, list[int], int]] = []

    def answers(number: int, generated: Generated, *, is_abort: bool) -> None:
        async def generate(prompt_ids: Sequence[int], **asked: Any) -> Generated:
            prompts.append((number, list(prompt_ids), asked["max_tokens"]))
            if is_abort:
                raise AbortedError("given up", generated=generated)
            return generated

        routes.seats[number].policy.generate = generate  # type: ignore[assignment,method-assign]

    part = Generated(
        token_ids=[7, 8], policy_logprobs=[-1.0, -2.0], finish_reason="abort",
        version_spans=one_span(3, 2),
    )  # fmt: skip
    rest = Generated(
        token_ids=[9], policy_logprobs=[-3.0], version_spans=one_span(4, 1), routes=b"x"
    )
    answers(0, part, is_abort=True)
    answers(1, rest, is_abort=False)
    joined = await routes.policy.generate(
        [1], sampling=Sampling(), max_tokens=5, seed=None, session_id="a"
    )
    assert prompts == [(0, [1], 5), (1, [1, 7, 8], 3)]
    assert (joined.token_ids, joined.policy_logprobs) == ([7, 8, 9], [-1.0, -2.0, -3.0])
    assert [(s.version, s.start, s.end) for s in joined.version_spans] == [(3, 0, 2), (4, 2, 3)]
    assert (joined.finish_reason, joined.routes, joined.policy_version) == ("stop", b"", 3)
    # Its server may be asleep before a worker was told so.
    prompts.clear()
    answers(1, part, is_abort=True)
    answers(0, rest, is_abort=False)
    joined = await routes.policy.generate(
        [1], sampling=Sampling(), max_tokens=5, seed=None, session_id="a"
    )
    assert prompts == [(1, [1], 5), (0, [1, 7, 8], 3)]
