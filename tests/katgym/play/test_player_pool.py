"""Groups over workers that die: each answered once, none forgotten."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest
from waiting import wait_until_async

import katgym
from katgym.errors import InfrastructureError, PolicyError, UsageError
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout
from katgym.play.workers.player_pool import MAX_LOSSES, PlayerPool, WorkerLostError
from katgym.play.workers.worker_calls import (
    Answerer,
    EngineRef,
    check_policy,
    pack_answer,
    pack_call,
    pack_error,
    unpack_answer,
)
from katgym.policies.base import Sampling
from katgym.testing import EchoEnv, ScriptedPolicy

HUNT = katgym.make("katgym/TreasureHunt-v1")


def group(seed: int, size: int = 2) -> list[RolloutRequest]:
    return [RolloutRequest(env=HUNT, seed=seed, attempt=attempt) for attempt in range(size)]


class Flaky:
    """A worker in this process that can be killed, before or after it has played a call."""

    def __init__(self, number: int = 0, *, errors: tuple[Exception, ...] = ()) -> None:
        self.name = f"flaky {number}"
        self.player = RolloutEngine(katgym.policy("random"), config=EngineConfig(max_retries=0))
        self.answerer = Answerer(self.player)
        self.engine = EngineRef(
            policy="random", limits=Limits(), sampling=Sampling(), config=EngineConfig()
        )
        self.errors = list(errors)
        """Raised by the starts after the first, one each."""
        self.num_starts = self.num_played = 0
        self.delay_s = 0.0
        self.calls: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        self.num_starts += 1
        if self.num_starts > 1 and self.errors:
            raise self.errors.pop(0)

    async def play(self, call: bytes) -> bytes:
        killed = asyncio.get_running_loop().create_future()
        self.calls.add(killed)
        try:
            work = asyncio.create_task(self.answerer.answer(call))
            await asyncio.wait([work, killed], return_when=asyncio.FIRST_COMPLETED)
            self.num_played += work.done()
            await asyncio.wait([killed], timeout=self.delay_s)
            if killed.done():
                work.cancel()
                raise WorkerLostError(f"{self.name} was killed")
            return await work
        finally:
            self.calls.discard(killed)

    def kill(self) -> None:
        for killed in self.calls:
            if not killed.done():
                killed.set_result(None)

    async def aclose(self) -> None:
        self.kill()


@pytest.mark.slow
def test_every_group_comes_back_once_whatever_is_killed() -> None:
    rng = random.Random(4)

    async def play() -> None:
        workers = [Flaky(n) for n in range(3)]
        for worker in workers:
            worker.delay_s = 0.02  # some are killed between finishing and answering
        async with asyncio.timeout(600), PlayerPool(workers) as pool:

            async def kill() -> None:
                while True:
                    await asyncio.sleep(rng.uniform(0, 0.02))
                    rng.choice(workers).kill()

            killing = asyncio.create_task(kill())
            tasks = [asyncio.create_task(pool.play_group(group(seed))) for seed in range(63)]
            found = await asyncio.gather(*tasks, return_exceptions=True)
            killing.cancel()
            whole = [rollouts for rollouts in found if not isinstance(rollouts, BaseException)]
            given_up = [e for e in found if isinstance(e, BaseException)]
            assert all("workers ended, one after the other" in str(e) for e in given_up)
            again = [await pool.play_group(group(seed)) for seed in range(63)]
        counts = Counter(r.seed for rollouts in [*whole, *again] for r in rollouts)
        assert set(counts) == set(range(63)) and max(counts.values()) <= 4
        assert [[(r.seed, r.attempt) for r in rollouts] for rollouts in again] == [
            [(seed, 0), (seed, 1)] for seed in range(63)
        ]
        assert sum(state.num_restarts for state in pool.states) > 3
        assert sum(state.num_calls for state in pool.states) == len(whole) + 63
        assert all(state.num_running == 0 for state in pool.states)

    asyncio.run(play())


class Named(EngineRef):
    """Changes the name of the policy of the engine that it renews."""

    async def renew(self, engine: RolloutEngine) -> None:
        engine.policy.name = self.policy


def test_a_renewed_engine_reaches_all_workers_also_those_that_start_meanwhile() -> None:
    async def play() -> None:
        workers = [Flaky(n) for n in range(3)]
        async with asyncio.timeout(300), PlayerPool(workers) as pool:
            newer = Named(
                policy="newer", limits=Limits(), sampling=Sampling(), config=EngineConfig()
            )
            workers[0].delay_s = 3600
            playing = asyncio.create_task(pool.play_group(group(1)))
            await wait_until_async(lambda: workers[0].calls, "the first worker to play")
            workers[0].delay_s = 0
            workers[0].kill()
            await asyncio.sleep(0)
            await pool.renew(newer)
            assert [worker.player.policy.name for worker in workers[1:]] == ["newer"] * 2
            assert all(worker.engine is newer for worker in workers)
            assert {rollout.policy for rollout in await playing} <= {"newer", "random"}
            refused = EngineRef(
                policy="x", limits=Limits(), sampling=Sampling(), config=EngineConfig()
            )
            with pytest.raises(NotImplementedError, match="does not change while it plays"):
                await pool.renew(refused)

    asyncio.run(play())


def test_a_worker_that_is_lost_once_starts_again_once_however_many_calls_it_had() -> None:
    async def play() -> None:
        worker = Flaky()
        worker.delay_s = 3600
        async with asyncio.timeout(300), PlayerPool([worker]) as pool:
            playing = [asyncio.create_task(pool.play_group(group(seed))) for seed in range(5)]
            await wait_until_async(lambda: len(worker.calls) == 5, "the worker to have all calls")
            worker.delay_s = 0
            worker.kill()
            found = await asyncio.gather(*playing)
        assert [rollouts[0].seed for rollouts in found] == [0, 1, 2, 3, 4]
        assert worker.num_starts == 2
        assert pool.states[0].to_json() == {
            "name": "flaky 0", "is_up": True, "num_running": 0, "num_calls": 5,
            "num_restarts": 1, "error": "",
        }  # fmt: skip

    asyncio.run(play())


@pytest.mark.slow
def test_a_worker_that_does_not_start_again_leaves_its_work_to_the_others() -> None:
    async def play() -> None:
        broken = Flaky(errors=tuple(PolicyError("no server") for _ in range(9)))
        broken.delay_s = 3600
        async with asyncio.timeout(300), PlayerPool([broken, Flaky(1)]) as pool:
            playing = asyncio.create_task(pool.play_group(group(1)))
            await wait_until_async(lambda: broken.calls, "the worker to play")
            broken.kill()
            assert len(await playing) == 2
            await wait_until_async(lambda: pool.states[0].error, "the worker to be given up")
            pool.states[1].worker.delay_s = 3600  # type: ignore[attr-defined]  # it is a Flaky
            pool.states[1].worker.errors = [PolicyError("nor this")] * 9  # type: ignore[attr-defined]
            playing = asyncio.create_task(pool.play_group(group(2)))
            await wait_until_async(lambda: pool.states[1].num_running, "the other one to play")
            await pool.states[1].worker.aclose()
            with pytest.raises(PolicyError, match="no server"):
                await playing

    asyncio.run(play())


def test_what_ends_every_worker_is_given_up_by_name() -> None:
    class Deadly(Flaky):
        async def play(self, call: bytes) -> bytes:
            raise WorkerLostError("it ended")

    async def play() -> None:
        async with PlayerPool([Deadly(n) for n in range(2)]) as pool:
            text = rf"{MAX_LOSSES} workers ended, one after the other, .*'train-000001' with seed 3"
            with pytest.raises(InfrastructureError, match=text):
                await pool.play(RolloutRequest(env=HUNT, seed=3, task_id="train-000001"))

    asyncio.run(play())


def test_a_mistake_of_the_caller_is_raised_where_it_was_made() -> None:
    async def play() -> None:
        async with PlayerPool([Flaky()]) as pool:
            with pytest.raises(UsageError, match="unknown task id 'nope'"):
                await pool.play(RolloutRequest(env=HUNT, seed=3, task_id="nope"))
            with pytest.raises(UsageError, match="EchoEnv was made by hand"):
                await pool.play(RolloutRequest(env=EchoEnv(), seed=3))

    asyncio.run(play())


def test_an_error_that_cannot_be_sent_is_sent_as_its_words() -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("odd words")

    with pytest.raises(RuntimeError, match="Odd: odd words"):
        unpack_answer(pack_error(Odd(1, 2)))
    assert unpack_answer(pack_answer()).rollouts == {}


def test_a_policy_with_a_model_is_refused_for_workers() -> None:
    policy = ScriptedPolicy([])
    check_policy(policy, 4)
    policy.holds_model = True
    with pytest.raises(UsageError, match="4 workers would hold 4 of them: serve the model"):
        check_policy(policy, 4)


def test_requests_of_references_and_of_envs_are_the_same_call() -> None:
    async def play() -> None:
        async with PlayerPool([Flaky()]) as pool:
            (first,) = await pool.play_group(group(5, 1))
            ref = katgym.plugins.env_ref.EnvRef.of(HUNT)
            (second,) = await pool.play_group([replace(group(5, 1)[0], env=ref)])
            assert first.messages == second.messages

    asyncio.run(play())


class Counting(RolloutEngine):
    """Counts what it begins; attempts from 2 on take `slow_s`."""

    def __init__(self, slow_s: float) -> None:
        super().__init__(katgym.policy("random"), config=EngineConfig(max_retries=0))
        self.slow_s = slow_s
        self.began: list[int] = []
        self.num_cancelled = 0

    async def play(self, request: RolloutRequest) -> Rollout:
        self.began.append(request.attempt)
        try:
            await asyncio.sleep(self.slow_s if request.attempt >= 2 else 0.0)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return await super().play(request)


def test_what_has_ended_is_not_played_again_when_its_worker_is_killed() -> None:
    async def play() -> None:
        slow, other = Flaky(0), Flaky(1)
        engines = Counting(3600.0), Counting(0.0)
        slow.answerer, other.answerer = (Answerer(engine) for engine in engines)
        async with asyncio.timeout(300), PlayerPool([slow, other], max_wait_s=0.2) as pool:
            playing = asyncio.create_task(pool.play_group(group(3, 4)))
            await wait_until_async(
                lambda: pool.states[0].num_running == 2 and slow.calls, "two to come back"
            )
            slow.kill()
            rollouts = await playing
        assert [r.attempt for r in rollouts] == [0, 1, 2, 3]
        assert [engine.began for engine in engines] == [[0, 1, 2, 3], [2, 3]]
        assert all(state.num_running == 0 for state in pool.states)

    asyncio.run(play())


def test_the_rest_of_a_call_is_given_up_with_its_caller_and_with_its_worker() -> None:
    async def play() -> None:
        engine = Counting(3600.0)
        answerer = Answerer(engine)
        first = unpack_answer(await answerer.answer(pack_call(group(3, 4), 0.2)))
        found = set(first.rollouts)
        while len(found) < 2:  # a busy machine plays one alone
            first = unpack_answer(await answerer.answer(first.rest))
            found |= set(first.rollouts)
        assert found == {0, 1} and first.rest
        waiting = asyncio.create_task(answerer.answer(first.rest))
        await asyncio.sleep(0)  # it waits
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert engine.num_cancelled == 2
        nobodys = unpack_answer(await answerer.answer(first.rest))
        assert not nobodys.rollouts and not nobodys.rest
        assert unpack_answer(await answerer.answer(pack_call(group(3, 4), 0.2))).rest
        await answerer.aclose()
        assert engine.num_cancelled == 4

    asyncio.run(play())
