"""The simulated loop beside times worked out by hand, and beside the rules of the real one.

Not here: what a user is told of it (`test_prediction.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from katgym_trainer.cluster_plan.assumptions import Assumptions
from katgym_trainer.cluster_plan.events import Line, Places, Process, Timeline
from katgym_trainer.cluster_plan.model_server import ModelServer, ServerRates, SimulatedCall
from katgym_trainer.cluster_plan.prediction import Prediction
from katgym_trainer.cluster_plan.scenario import Scenario
from katgym_trainer.cluster_plan.simulation import Simulation
from katgym_trainer.config.rl_config import PolicyConfig, RolloutsConfig, StaleGroups

RATES = ServerRates(
    gpus=1, is_shared=False, round_s=0.1, sequence_s=0.02, prefill=100.0, max_running=8
)
"""A sequence alone gets a token each 0.12 s, two get one each 0.14 s."""
EXACT = Assumptions(
    turns=1, turns_sigma=0, prompt_tokens=100, answer_tokens=10, answer_sigma=0,
    observation_tokens=0, env_s=5, env_sigma=0, grade_s=2, shared_prefix=0, step_s=3, probe_s=1,
    sleep_s=1, loop_turn_s=0, store_turn_s=0, rows_token_s=0, pack_token_s=0, steps=6,
)  # fmt: skip
"""Nothing is drawn: a rollout alone takes 1 s of prompt, 1.2 s of tokens, 5 s, 2 s."""


def scenario(*servers: ServerRates, **given: Any) -> Scenario:
    sizes = {"num_groups": 1, "group_size": 2, "max_concurrency": 64}
    for name in ("num_groups", "max_staleness", "stale", "max_concurrency", "max_turns"):
        if name in given:
            sizes[name] = given.pop(name)
    return Scenario(
        rollouts=RolloutsConfig(**sizes),  # type: ignore[arg-type]
        policy=PolicyConfig(),
        servers=servers or (RATES,),
        train_gpus=1,
        train_rate=110.0,
        sync_bytes=2e9,
        assumed=dataclasses.replace(EXACT, **given),
    )


def seconds(run: Process, timeline: Timeline) -> float:
    """Return when a process is through."""
    ended: list[float] = []

    def process() -> Process:
        yield from run
        ended.append(timeline.now)

    timeline.begin(process())
    timeline.run(lambda: bool(ended))
    return ended[0]


def call(context: float, tokens: float, cached: float = 0.0) -> SimulatedCall:
    return SimulatedCall(num_context=context, num_cached=cached, num_left=tokens)


def ask(server: ModelServer, *calls: SimulatedCall) -> Process:
    for each in calls:
        server.submit(each)
    for each in calls:
        yield each.done


def test_a_server_computes_prompts_in_turn_and_shares_its_rounds() -> None:
    timeline = Timeline()
    server = ModelServer(timeline, RATES)
    # 1 s + 2 s of prompts; ten tokens of both; ten more of the second alone.
    took = seconds(ask(server, call(100, 10), call(200, 20)), timeline)
    assert took == pytest.approx(3 + 10 * 0.14 + 10 * 0.12)
    assert server.observe() == pytest.approx((took, 30))
    assert seconds(ask(server, call(100, 5, cached=40)), timeline) - took == pytest.approx(1.2)
    assert seconds(ask(ModelServer(Timeline(), RATES, 2.0)), timeline) == timeline.now


def test_a_server_twice_as_fast_takes_half_the_time_and_a_full_one_lets_wait() -> None:
    timeline = Timeline()
    took = seconds(ask(ModelServer(timeline, RATES, 2.0), call(100, 10)), timeline)
    assert took == pytest.approx(2.2 / 2)
    timeline = Timeline()
    server = ModelServer(timeline, dataclasses.replace(RATES, max_running=1))
    took = seconds(ask(server, call(100, 10), call(100, 10)), timeline)
    assert took == pytest.approx(2 * 2.2)


def test_what_freezes_is_computed_again_from_its_first_token() -> None:
    timeline = Timeline()
    server = ModelServer(timeline, RATES)
    timeline.call(1.6, server.freeze)  # five tokens are there
    timeline.call(10.0, server.go_on)
    took = seconds(ask(server, call(100, 10)), timeline)
    assert took == pytest.approx(10 + 1.05 + 5 * 0.12)
    assert server.observe()[0] == pytest.approx(1.6 + 1.05 + 0.6)


def test_a_request_that_is_handed_over_keeps_what_was_sampled() -> None:
    timeline = Timeline()
    one, other = ModelServer(timeline, RATES), ModelServer(timeline, RATES)

    def hand_over() -> None:
        for each in one.hand_over():
            each.num_cached = 0.0
            other.submit(each)

    timeline.call(1.6, hand_over)
    took = seconds(ask(one, call(100, 10)), timeline)
    assert took == pytest.approx(1.6 + 1.05 + 5 * 0.12)
    assert (one.num_calls, other.observe()[1]) == (0, pytest.approx(5))


def test_calls_of_a_process_queue_and_places_are_given_in_turn() -> None:
    timeline = Timeline()
    line, places = Line(timeline, 2), Places(1)
    assert [line.call(1.0) for _ in range(3)] == [1.0, 1.0, 2.0]
    assert line.busy_s == 3.0
    first, second = places.enter(), places.enter()
    assert (first.is_set, second.is_set) == (True, False)
    places.leave()
    assert second.is_set


def test_taking_turns_costs_the_sum_of_all_parts() -> None:
    # Both prompts 2 s, ten tokens of both 1.4 s, env 5 s, grading 2 s; the step 2 x 110 tokens at
    # 110/s and 3 s; weights written 1 s, read 1 s, checked 1 s.
    found = Prediction.of(scenario())
    assert found.placement == "disaggregated"
    assert found.step_s == pytest.approx(10.4 + 5 + 3)
    assert found.trainers_busy == pytest.approx(5 / 18.4)
    assert found.samplers_busy == pytest.approx(3.4 / 18.4)
    assert (found.wait, found.sync) == pytest.approx((10.4 / 18.4, 3 / 18.4))
    assert found.gpus_busy == pytest.approx(8.4 / 2 / 18.4)
    assert (found.staleness, found.dropped, found.gpus) == (0, 0, 2)
    # On one GPU, and a second until the server sleeps.
    shared = Prediction.of(scenario(dataclasses.replace(RATES, is_shared=True)))
    assert (shared.placement, shared.gpus) == ("colocated", 1)
    assert shared.step_s == pytest.approx(19.4)


def test_sampling_ahead_hides_the_shorter_of_both() -> None:
    # A step takes 8 s of the trainer, a group 10.4 s. Groups begin with a step's beginning and its
    # end in turn, so that every other one has 8 s of the 10.4 s behind it when it is waited for.
    found = Prediction.of(scenario(max_staleness=1))
    assert found.step_s == pytest.approx((10.4 + 8) / 2)
    assert found.staleness == 1


def test_a_trainer_goes_on_while_servers_read_and_are_checked() -> None:
    # A step takes 25 s of the trainer, longer than its groups; weights are written in 1 s, read in
    # 1 s, checked in 1 s.
    slow = scenario(max_staleness=1, trainer_speed=0.2)
    waits = Prediction.of(slow)
    goes_on = Prediction.of(dataclasses.replace(slow, is_overlapped=True))
    assert (waits.step_s, waits.sync) == pytest.approx((25 + 3, 3 / 28))
    assert (goes_on.step_s, goes_on.sync) == pytest.approx((25 + 1, 1 / 26))


def test_multiplexing_is_not_worse_than_disaggregating(subtests: pytest.Subtests) -> None:
    tail: dict[str, Any] = {"turns": 6.0, "turns_sigma": 0.8, "env_sigma": 1.2, "num_groups": 3}
    for staleness, speed in itertools.product([1, 2, 4], [0.1, 0.3, 1.0, 3.0]):
        with subtests.test(staleness=staleness, trainer_speed=speed):
            apart = scenario(
                RATES, RATES, max_staleness=staleness, trainer_speed=speed, steps=24, **tail
            )
            apart = dataclasses.replace(apart, is_overlapped=True)
            shared = dataclasses.replace(RATES, is_shared=True)
            both = dataclasses.replace(apart, servers=[*apart.servers, shared])
            alone, more = Prediction.of(apart), Prediction.of(both)
            assert (alone.gpus, more.gpus) == (3, 3)
            assert more.steps_per_hour > 0.99 * alone.steps_per_hour
            assert more.gpus_busy > 0.99 * alone.gpus_busy


def test_what_a_full_server_has_no_room_for_goes_to_others() -> None:
    run = Simulation(scenario(*[dataclasses.replace(RATES, max_running=1)] * 2))
    first, second = run.servers
    assert run._choose(first) is first
    first.submit(call(100, 10))
    assert run._choose(first) is second
    second.submit(call(100, 10))
    assert run._choose(first) is first  # it waits where its prefix is


def test_no_step_trains_on_older_weights_than_it_may(subtests: pytest.Subtests) -> None:
    several = itertools.product([1, 2, 5], StaleGroups)
    for staleness, stale in ((0, StaleGroups.WAIT), *several):
        with subtests.test(staleness=staleness, stale=stale):
            check_staleness(staleness, stale)


def check_staleness(staleness: int, stale: StaleGroups) -> None:
    run = Simulation(
        scenario(
            RATES, dataclasses.replace(RATES, is_shared=True), num_groups=3, stale=stale,
            max_staleness=staleness, turns=6.0, turns_sigma=1.0, env_sigma=1.5, steps=12,
        )
    )  # fmt: skip
    ages: list[int] = []
    count = run._count

    def watch(taken: Any, totals: Any) -> Any:
        ages.extend(run._version - min(group.turns)[0] for group in taken)
        assert len(run._running) + len(run._finished) <= max(1, staleness) * 3
        return count(taken, totals)

    run._count = watch  # type: ignore[method-assign]
    totals = run.run()
    assert (max(ages) <= staleness) or (stale is StaleGroups.PARTIAL and totals.too_old > 0)
    assert (totals.num_dropped > 0) <= (stale is StaleGroups.DROP)
    assert totals.num_steps == 8


def test_tokens_that_are_too_old_are_left_out_where_nobody_waits() -> None:
    tail: dict[str, Any] = {"turns": 6.0, "turns_sigma": 1.2, "env_sigma": 1.5, "steps": 18}
    waits = Prediction.of(scenario(num_groups=3, max_staleness=1, **tail))
    partial = Prediction.of(
        scenario(num_groups=3, max_staleness=1, stale=StaleGroups.PARTIAL, **tail)
    )
    assert partial.steps_per_hour > waits.steps_per_hour
    assert partial.too_old > 0 == waits.too_old
    assert partial.staleness <= 1


def test_a_seed_decides_everything() -> None:
    drawn: dict[str, Any] = {"turns": 4.0, "turns_sigma": 1.0, "env_sigma": 1.0, "num_groups": 3}
    several = (RATES, RATES, dataclasses.replace(RATES, is_shared=True))
    given = scenario(*several, max_staleness=2, hand_over=True, **drawn)
    assert Prediction.of(given) == Prediction.of(given)
    other = dataclasses.replace(given, assumed=dataclasses.replace(given.assumed, seed=1))
    assert Prediction.of(other) != Prediction.of(given)


def test_what_one_process_does_for_all_parts_costs_all_of_them() -> None:
    whole = scenario(num_groups=4, rows_token_s=0.01, store_turn_s=0.5)
    part = dataclasses.replace(
        whole, num_parts=4, rollouts=dataclasses.replace(whole.rollouts, num_groups=1)
    )
    found = Simulation(part).run()
    # 8 rollouts of 110 tokens and one turn, in 4 steps.
    assert found.prepare_s == pytest.approx(4 * 880 * 0.01)
    assert found.store_s == pytest.approx(4 * 8 * 0.5)
    assert found.train_s == pytest.approx(4 * (220 / 110 + 3))
