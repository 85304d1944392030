"""Many rollouts: bounded concurrency, retries by the table, groups, clean stops."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any, Self

import pytest
from idle_loop import run_idle

from katgym.environment.env import Env
from katgym.environment.failure import FAILURE_TABLE, FailureKind, RolloutStatus
from katgym.environment.messages import Message
from katgym.errors import InfrastructureError, PolicyError, UsageError
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest, run_group
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout
from katgym.policies.base import Completion, EpisodeContext, Policy, Sampling, Session
from katgym.testing import EchoEnv, ScriptedPolicy

NO_DELAY = EngineConfig(retry_delay_s=0.001)


class Gauge(Policy):
    """Answers with the task's word; counts sessions. `errors` are raised first, one a session."""

    def __init__(self, *, latency_s: float = 0.0, errors: Sequence[Exception] = ()) -> None:
        self.name = "gauge"
        self.latency_s = latency_s
        self.errors = list(errors)
        self.num_open = 0
        self.most_open = 0
        self.num_started = 0
        self.num_closed = 0

    def start(self, context: EpisodeContext) -> Session:
        self.num_started += 1
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        return GaugeSession(self, context.env)


class GaugeSession(Session):
    def __init__(self, policy: Gauge, env: Env) -> None:
        self.policy = policy
        self.env = env
        self.error = policy.errors.pop(0) if policy.errors else None

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        await asyncio.sleep(self.policy.latency_s)
        if self.error is not None:
            raise self.error
        return Completion(message={"role": "assistant", "content": str(self.env.task.answer)})

    async def aclose(self) -> None:
        self.policy.num_open -= 1
        self.policy.num_closed += 1


class Counted(EchoEnv):
    """Counts what is alive."""

    num_alive = 0
    setup_delay_s = 0.0

    async def setup(self) -> None:
        type(self).num_alive += 1
        await asyncio.sleep(self.setup_delay_s)

    async def teardown(self) -> None:
        type(self).num_alive -= 1


@pytest.fixture(autouse=True)
def _nothing_stays_alive() -> Iterator[None]:
    Counted.num_alive = 0
    yield
    assert Counted.num_alive == 0


def requests(count: int | None) -> Iterator[RolloutRequest]:
    numbers = itertools.count() if count is None else range(count)
    template = Counted()
    return (RolloutRequest(env=template, seed=n, key=str(n)) for n in numbers)


def run_all(engine: RolloutEngine, wanted: Any) -> list[tuple[RolloutRequest, Rollout]]:
    async def go() -> list[tuple[RolloutRequest, Rollout]]:
        found = [pair async for pair in engine.run(wanted)]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return run_idle(go())


def test_never_more_than_max_concurrency_and_never_fewer_for_long() -> None:
    for max_concurrency in (1, 3, 7):
        policy = Gauge(latency_s=0.005)
        engine = RolloutEngine(policy, config=EngineConfig(max_concurrency=max_concurrency))
        found = run_all(engine, requests(21))
        assert policy.most_open == max_concurrency
        assert sorted(int(request.key) for request, _ in found) == list(range(21))
        assert all(rollout.reward.value == 1.0 for _, rollout in found)
        assert all(rollout.seed == int(request.key) for request, rollout in found)
        assert (policy.num_started, policy.num_closed) == (21, 21)


def test_results_come_in_the_order_they_finish() -> None:
    class Slow(Counted):
        def __init__(self, delay_s: float) -> None:
            super().__init__()
            self.setup_delay_s = delay_s

        async def setup(self) -> None:
            await asyncio.sleep(self.setup_delay_s)

        async def teardown(self) -> None:
            pass

    delays = [0.06, 0.0, 0.03]
    wanted = [RolloutRequest(env=Slow(d), key=str(d)) for d in delays]
    found = run_all(RolloutEngine(Gauge()), wanted)
    assert [request.key for request, _ in found] == ["0.0", "0.03", "0.06"]


def test_those_that_finish_together_come_in_request_order() -> None:
    found = run_all(RolloutEngine(Gauge()), requests(50))
    assert [int(request.key) for request, _ in found] == list(range(50))
    assert run_all(RolloutEngine(Gauge()), []) == []


def test_an_endless_iterable_is_drawn_lazily() -> None:
    drawn: list[int] = []

    def endless() -> Iterator[RolloutRequest]:
        for request in requests(None):
            drawn.append(1)
            yield request

    async def go() -> int:
        policy = Gauge(latency_s=0.001)
        engine = RolloutEngine(policy, config=EngineConfig(max_concurrency=4))
        count = 0
        async with aclosing(engine.run(endless())) as results:
            async for _ in results:
                count += 1
                assert len(drawn) <= count + 4
                if count == 20:
                    break
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert policy.num_open == 0
        return count

    assert asyncio.run(go()) == 20


# ---- retries


def test_retries_follow_the_table(subtests: pytest.Subtests) -> None:
    for kind, row in FAILURE_TABLE.items():
        if row.is_counted:
            continue
        with subtests.test(kind=kind):
            policy = Gauge(errors=[PolicyError("down", kind=str(kind))])
            ((_, rollout),) = run_all(RolloutEngine(policy, config=NO_DELAY), requests(1))
            if row.is_retried:
                assert (rollout.status, rollout.num_retries) == (RolloutStatus.TERMINATED, 1)
                assert rollout.reward.value == 1.0
            else:
                assert (rollout.status, rollout.num_retries) == (RolloutStatus.FAILED, 0)
                assert rollout.failure_kind is kind
            assert policy.num_started == policy.num_closed == 1 + rollout.num_retries


def test_retries_end_and_are_counted() -> None:
    for max_retries in (0, 1, 3):
        policy = Gauge(errors=[PolicyError("down")] * 10)
        config = EngineConfig(max_retries=max_retries, retry_delay_s=0.001)
        ((_, rollout),) = run_all(RolloutEngine(policy, config=config), requests(1))
        assert (rollout.status, rollout.num_retries) == (RolloutStatus.FAILED, max_retries)
        assert policy.num_started == max_retries + 1


def test_the_delay_doubles() -> None:
    policy = Gauge(errors=[PolicyError("down")] * 3)
    config = EngineConfig(max_retries=3, retry_delay_s=0.02)

    async def go() -> float:
        found = [pair async for pair in RolloutEngine(policy, config=config).run(requests(1))]
        assert found[0][1].num_retries == 3
        return asyncio.get_running_loop().time()

    assert run_idle(go()) == pytest.approx(0.02 + 0.04 + 0.08)


def test_a_truncated_rollout_is_never_tried_again() -> None:
    engine = RolloutEngine(ScriptedPolicy([]), limits=Limits(max_turns=2), config=NO_DELAY)
    ((_, rollout),) = run_all(engine, requests(1))
    assert (rollout.status, rollout.num_retries) == (RolloutStatus.TRUNCATED, 0)


def test_every_try_gets_an_env_of_its_own() -> None:
    made: list[Env] = []

    class Flaky(Counted):
        async def setup(self) -> None:
            await super().setup()
            made.append(self)
            if len(made) == 1:
                raise InfrastructureError("no sandbox", kind="sandbox_error")

    request = RolloutRequest(env=Flaky(), seed=3, attempt=4, split="test", task_id="test-000007")
    ((_, rollout),) = run_all(RolloutEngine(Gauge(), config=NO_DELAY), [request])
    assert made[0] is not made[1]
    assert (rollout.num_retries, rollout.reward.value) == (1, 1.0)
    assert (rollout.seed, rollout.attempt, rollout.split) == (3, 4, "test")
    assert rollout.task_id == "test-000007"
    Counted.num_alive = 0  # counted on Flaky


def test_an_env_that_hangs_is_replaced_once_by_a_fresh_one() -> None:
    made: list[Env] = []

    class Hanging(EchoEnv):
        num_hangs = 0

        async def setup(self) -> None:
            made.append(self)
            if len(made) <= self.num_hangs:
                await asyncio.Event().wait()

    for num_hangs, expected in (
        (1, (RolloutStatus.TERMINATED, None, 1.0)),
        (2, (RolloutStatus.FAILED, FailureKind.ENV_TIMEOUT, None)),
    ):
        made.clear()
        Hanging.num_hangs = num_hangs
        request = RolloutRequest(env=Hanging(), seed=3, attempt=4, task_id="train-000007")
        engine = RolloutEngine(Gauge(), limits=Limits(timeout_s=1.0), config=NO_DELAY)
        ((_, rollout),) = run_all(engine, [request])
        assert len(made) == len({id(env) for env in made}) == 2
        assert (rollout.seed, rollout.attempt, rollout.task_id) == (3, 4, "train-000007")
        assert rollout.num_retries == 1
        assert (rollout.status, rollout.failure_kind, rollout.reward.value) == expected
        assert not any(env.is_running for env in made)


# ---- stopping


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_stopping_early_cancels_the_rest_and_waits_for_its_clean_up(how: str) -> None:
    policy = Gauge(latency_s=0.01)

    async def consume() -> None:
        engine = RolloutEngine(policy, config=EngineConfig(max_concurrency=8))
        async with aclosing(engine.run(requests(None))) as results:
            async for _ in results:
                policy.latency_s = 60.0
                if how == "close":
                    break

    async def go() -> None:
        task = asyncio.create_task(consume())
        if how == "cancel":
            while policy.latency_s < 60.0 or policy.num_open < 8:
                await asyncio.sleep(0.001)
            task.cancel()
        await asyncio.wait([task])
        assert asyncio.get_running_loop().time() < 60.0  # nobody waited for a rollout
        assert task.cancelled() == (how == "cancel")
        assert policy.num_open == 0
        assert Counted.num_alive == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_idle(go())


def test_a_bare_break_is_cleaned_up_by_the_event_loop() -> None:
    policy = Gauge(latency_s=0.01)

    async def go() -> None:
        async for _ in RolloutEngine(policy).run(requests(20)):
            policy.latency_s = 3600.0
            break

    asyncio.run(go())
    assert policy.num_open == 0


def test_a_mistake_of_the_caller_stops_everything_and_is_raised() -> None:
    policy = Gauge(latency_s=60)
    wanted = [*requests(5), RolloutRequest(env=Counted(), task_id="nope")]

    async def go() -> None:
        with pytest.raises(UsageError, match="unknown task id 'nope'"):
            async for _ in RolloutEngine(policy).run(wanted):
                raise AssertionError("nothing has finished yet")
        assert policy.num_open == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert asyncio.get_running_loop().time() < 60  # nobody waited for a rollout

    run_idle(go())


def test_an_env_that_cannot_be_made_is_a_mistake_of_the_caller() -> None:
    class Broken(EchoEnv):
        def clone(self) -> Self:
            raise RuntimeError("no such file")

    with pytest.raises(RuntimeError, match="no such file"):
        run_all(RolloutEngine(Gauge()), [RolloutRequest(env=Broken())])


def test_config_refuses_what_cannot_work() -> None:
    with pytest.raises(UsageError, match="max_concurrency is >= 1, got 0"):
        EngineConfig(max_concurrency=0)
    with pytest.raises(UsageError, match="max_retries is >= 0, got -1"):
        EngineConfig(max_retries=-1)
    with pytest.raises(UsageError, match="group_size is >= 1, got 0"):
        asyncio.run(run_group(EchoEnv(), Gauge(), group_size=0))


# ---- groups


def test_a_group_is_attempts_at_one_episode() -> None:
    template = EchoEnv(max_turns=2)
    policy = Gauge()
    group = asyncio.run(run_group(template, policy, group_size=5, seed=9, split="test"))
    rollouts = group.rollouts
    assert [r.attempt for r in rollouts] == [0, 1, 2, 3, 4]
    assert {(r.task_id, r.seed, r.split) for r in rollouts} == {(rollouts[0].task_id, 9, "test")}
    assert len({r.sampling_seed for r in rollouts}) == 5
    assert len({r.episode_id for r in rollouts}) == 5
    assert {tuple(m["content"] for m in r.messages) for r in rollouts} == {
        tuple(m["content"] for m in rollouts[0].messages)
    }
    assert group.rewards == [1.0] * 5
    assert not template.is_running


def test_a_group_without_a_seed_draws_one_for_all() -> None:
    groups = [asyncio.run(run_group(EchoEnv(), Gauge(), group_size=3)) for _ in range(2)]
    seeds = [{r.seed for r in group.rollouts} for group in groups]
    assert all(len(s) == 1 and None not in s for s in seeds)
    assert seeds[0] != seeds[1]
    assert all(len({r.task_id for r in group.rollouts}) == 1 for group in groups)


def test_group_options_are_passed_on() -> None:
    group = asyncio.run(
        run_group(
            EchoEnv(),
            ScriptedPolicy([]),
            group_size=2,
            task_id="train-000003",
            limits=Limits(max_turns=2),
            sampling=Sampling(temperature=0.0),
            config=EngineConfig(max_concurrency=1),
        )
    )
    assert {r.task_id for r in group.rollouts} == {"train-000003"}
    assert {(r.num_turns, r.sampling.temperature) for r in group.rollouts} == {(2, 0.0)}
