"""How far ahead of the trainer groups are played, and what becomes of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from in_loop import in_loop
from made_rollouts import short_rollout
from played_groups import HeldPolicy

from katgym.errors import PolicyError, UsageError
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest
from katgym.play.rollout import Rollout
from katgym_trainer.advantages.reward_shaping import RewardShaping
from katgym_trainer.config.rl_config import EnvConfig, RolloutsConfig, StaleGroups
from katgym_trainer.rl.curriculum import Curriculum, GroupDraw
from katgym_trainer.rl.group_stream import GroupStream, PlayedGroup
from katgym_trainer.rl.kept_rollouts import KeptRollouts

HUNT = EnvConfig(id="katgym/TreasureHunt-v1?max_turns=1", num_tasks=50)


def stream_of(
    policy: HeldPolicy,
    *,
    pending: list[GroupDraw] | None = None,
    known: Mapping[int, PlayedGroup] | None = None,
    **config: Any,
) -> GroupStream:
    told = RolloutsConfig(**{"num_groups": 3, "group_size": 2, **config})
    source = Curriculum([HUNT], told, seed=0)
    places = EngineConfig(max_retries=0, max_concurrency=told.max_concurrency)
    engine = RolloutEngine(policy, config=places)
    stream = GroupStream(source, engine, told, known=known)
    waiting = [draw.to_json() for draw in pending or ()]
    stream.load_state_dict({"source": source.state_dict(), "pending": waiting})
    return stream


async def settled() -> None:
    """Return once all has come to where it waits: in turns of the loop, of which it takes two."""
    for _ in range(50):
        await asyncio.sleep(0)


async def num_asked(policy: HeldPolicy) -> int:
    """Return how many answers were asked for, once there come no more."""
    await settled()
    return policy.num_asked


@in_loop
async def test_without_staleness_nothing_is_played_while_the_trainer_trains() -> None:
    policy = HeldPolicy()
    async with stream_of(policy) as stream:
        taken = await stream.take()
        assert [played.draw.number for played in taken.groups] == [0, 1, 2]
        assert all(len(played.group.rollouts) == 2 for played in taken.groups)
        assert await num_asked(policy) == 6
        policy.version = 1
        stream.advance(1)
        taken = await stream.take()
        assert [played.draw.number for played in taken.groups] == [3, 4, 5]
        assert [played.oldest_version for played in taken.groups] == [1, 1, 1]


@in_loop
async def test_with_staleness_so_many_steps_are_played_ahead_and_no_more() -> None:
    policy = HeldPolicy()
    async with stream_of(policy, max_staleness=2) as stream:
        stream.advance(0)
        assert await num_asked(policy) == 3 * 3 * 2
        assert len((await stream.take()).groups) == 3
        assert await num_asked(policy) == 3 * 3 * 2
        ages = []
        for version in range(1, 8):
            policy.version = version
            stream.advance(version)
            assert await num_asked(policy) == (3 + version) * 3 * 2
            taken = await stream.take()
            ages += [version - played.oldest_version for played in taken.groups]
        assert max(ages) == 2


@in_loop
async def test_weights_on_their_way_count_for_what_is_sampled_by_older_ones() -> None:
    policy = HeldPolicy()
    async with stream_of(policy, max_staleness=2) as stream:
        stream.advance(0)
        ages = []
        for version in range(1, 9):
            taken = await stream.take()
            ages += [version - 1 - played.oldest_version for played in taken.groups]
            stream.advance(version, is_sampled=False)
            num = await num_asked(policy)
            if version % 2:  # delivered before the next step begins, or while it trains
                policy.version = version
                stream.note_sampled(version)
            else:
                taken = await stream.take()
                ages += [version - played.oldest_version for played in taken.groups]
                assert await num_asked(policy) == num  # none that a step would find too old
                policy.version = version
                stream.note_sampled(version)
                stream.advance(version)
        assert max(ages) == 2


@in_loop
async def test_waiting_holds_a_step_up_for_what_would_be_too_old_for_the_next() -> None:
    policy = HeldPolicy(let_go=0)
    async with stream_of(policy, max_staleness=1, max_concurrency=50) as stream:
        stream.advance(0)
        await settled()
        await policy.let_go(8)
        first = await stream.take()  # all of the 6 groups may go into a step after this one
        assert len(first.groups) == 3
        policy.version = 1
        stream.advance(1)
        taking = asyncio.create_task(stream.take())
        await policy.let_go(2)
        await settled()
        assert not taking.done()  # the sixth group of version 0 still plays
        await policy.let_go()
        taken = await taking
        assert {1 - played.oldest_version for played in taken.groups} == {1}
        assert taken.num_dropped == 0


class HeldPlayer:
    """Plays a group once it is let go."""

    def __init__(self) -> None:
        self.let_go = [asyncio.Event() for _ in range(9)]
        self.num_begun = 0

    async def play_group(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        event = self.let_go[self.num_begun]
        self.num_begun += 1
        await event.wait()
        return [short_rollout(str(request.attempt), 1.0, 3) for request in requests]


@in_loop
async def test_a_step_waits_for_slow_groups_that_are_more_than_the_next_steps_could_take() -> None:
    told = RolloutsConfig(num_groups=1, group_size=2, max_staleness=2)
    player = HeldPlayer()
    async with GroupStream(Curriculum([HUNT], told, seed=0), player, told) as stream:
        stream.advance(0)
        player.let_go[0].set()
        assert (await stream.take()).groups[0].draw.number == 0
        stream.advance(1)
        await settled()
        player.let_go[3].set()
        taking = asyncio.create_task(stream.take())
        await settled()
        # Groups 1 and 2 began with version 0: one may be trained on by step 2, none by step 3.
        assert not taking.done()
        player.let_go[1].set()
        assert (await taking).groups[0].draw.number == 1
        stream.advance(2)
        player.let_go[2].set()
        taken = await stream.take()
        assert [(p.draw.number, p.begun_version) for p in taken.groups] == [(2, 0)]


@in_loop
async def test_dropping_gives_up_what_is_too_old_and_plays_others() -> None:
    policy = HeldPolicy(let_go=0)
    async with stream_of(
        policy, max_staleness=1, stale=StaleGroups.DROP, max_concurrency=50
    ) as stream:
        stream.advance(0)
        await settled()
        await policy.let_go(6)
        for version in (1, 2):
            taken = await stream.take()
            assert len(taken.groups) == 3
            policy.version = version
            stream.advance(version)
            if version == 1:
                await policy.let_go(6)
        # What began with version 0 and hangs is given up at version 2.
        await policy.let_go()
        taken = await stream.take()
        assert all(2 - played.oldest_version <= 1 for played in taken.groups)


@in_loop
async def test_it_is_known_whether_the_next_step_will_have_to_wait() -> None:
    for stale in StaleGroups:
        told = RolloutsConfig(num_groups=1, group_size=2, max_staleness=2, stale=stale)
        player = HeldPlayer()
        async with GroupStream(Curriculum([HUNT], told, seed=0), player, told) as stream:
            stream.advance(0)
            await settled()
            player.let_go[0].set()
            await stream.take()
            await settled()
            assert not stream.has_next(1)  # groups 1 and 2 began with version 0, and play
            player.let_go[2].set()
            await settled()
            # Step 2 may train on group 2, and step 3 on group 1, which no step may after that.
            assert stream.has_next(1)
            stream.advance(1)
            assert (await stream.take()).groups[0].draw.number == 2
            player.let_go[3].set()
            await settled()
            assert stream.has_next(2) == (stale is not StaleGroups.WAIT)


@in_loop
async def test_partial_groups_are_neither_waited_for_nor_given_up() -> None:
    told = RolloutsConfig(num_groups=1, group_size=2, max_staleness=1, stale=StaleGroups.PARTIAL)
    player = HeldPlayer()
    async with GroupStream(Curriculum([HUNT], told, seed=0), player, told) as stream:
        stream.advance(0)
        await settled()
        for version in (1, 2, 3):  # group 0 plays on beyond the bound
            player.let_go[version].set()
            assert [p.draw.number for p in (await stream.take()).groups] == [version]
            assert player.num_begun == version + 1  # it counts in how far ahead others play
            stream.advance(version)
            await settled()
        player.let_go[0].set()
        taken = await stream.take()
        assert [(p.draw.number, p.begun_version) for p in taken.groups] == [(0, 0)]
        assert taken.num_dropped == 0


@in_loop
async def test_groups_of_equal_rewards_are_refused_as_long_as_others_may_be_played() -> None:
    async with stream_of(HeldPolicy(), max_offered=5) as stream:  # nobody finds a treasure
        taken = await stream.take()
        numbers = [played.draw.number for played in (*taken.groups, *taken.refused)]
        assert sorted(numbers) == [0, 1, 2, 3, 4]
        assert (len(taken.groups), len(taken.refused)) == (3, 2)


@in_loop
async def test_groups_played_ahead_are_not_counted_among_those_that_a_step_was_offered() -> None:
    async with stream_of(HeldPolicy(), max_offered=5, max_staleness=1) as stream:
        stream.advance(0)
        taken = await stream.take()
        assert (len(taken.groups), len(taken.refused)) == (3, 2)


@in_loop
async def test_what_was_begun_by_another_process_is_played_first() -> None:
    drawn = Curriculum([HUNT], RolloutsConfig(num_groups=3), seed=0)
    ids = [drawn.draw().task_id for _ in range(5)][3:]
    old = [
        GroupDraw(number=7, env=0, lesson=0, task_id=ids[0], seed=5),
        GroupDraw(number=9, env=0, lesson=0, task_id=ids[1], seed=6),
    ]
    async with stream_of(HeldPolicy(), pending=old) as stream:
        assert stream.pending() == old
        taken = await stream.take()
        assert [played.draw for played in taken.groups][1:] == old
        assert taken.groups[0].draw.number == 0
        assert {r.task_id for r in taken.groups[1].group.rollouts} == {ids[0]}
        assert [r.seed for r in taken.groups[2].group.rollouts] == [6, 6]
        assert stream.pending() == []


@in_loop
async def test_what_is_played_ahead_is_pending() -> None:
    policy = HeldPolicy(let_go=0)
    async with stream_of(policy, max_staleness=1, max_concurrency=50) as stream:
        stream.advance(0)
        await settled()
        await policy.let_go(8)
        await stream.take()
        assert [draw.number for draw in stream.pending()] == [3, 4, 5]
        assert [draw["number"] for draw in stream.state_dict()["pending"]] == [3, 4, 5]


@in_loop
async def test_a_continued_run_refuses_what_was_refused_and_plays_none_of_it(
    tmp_path: Path,
) -> None:
    config: dict[str, Any] = {"max_offered": 5, "max_concurrency": 1}
    async with stream_of(HeldPolicy(), **config) as stream:
        first = await stream.take()
    # As if the first two had been slow, and the next two been refused meanwhile.
    by_number = {p.draw.number: p for p in (*first.groups, *first.refused)}
    kept = KeptRollouts(tmp_path, advantage="grpo", shaping=RewardShaping())
    kept.record(1, [by_number[n] for n in (0, 1, 4)], [by_number[n] for n in (2, 3)])
    known = kept.after(0)
    kept.close()
    policy = HeldPolicy(let_go=0)  # whoever asks it waits for ever
    async with stream_of(policy, known=known, **config) as again:
        taken = await again.take()
    assert [played.draw.number for played in taken.groups] == [0, 1, 4]
    assert sorted(played.draw.number for played in taken.refused) == [2, 3]


@in_loop
async def test_what_was_refused_before_a_stop_is_pending() -> None:
    policy = HeldPolicy(let_go=2)  # one group, whose rewards are equal
    async with stream_of(policy, max_offered=5, max_concurrency=2) as stream:
        taken = await stream.take(lambda: policy.num_asked > 2)
        assert (list(taken.groups), list(taken.refused)) == ([], [])
        assert 0 in [draw.number for draw in stream.pending()]


@in_loop
async def test_a_stop_ends_the_wait_and_what_plays_is_cancelled() -> None:
    policy, asked = HeldPolicy(let_go=0), itertools.count()
    async with stream_of(policy) as stream:
        taken = await stream.take(lambda: next(asked) == 2)
        assert list(taken.groups) == []
        assert len(stream.pending()) == 3


@in_loop
async def test_the_time_in_which_nothing_is_played_is_measured() -> None:
    async with stream_of(HeldPolicy()) as stream:
        await stream.take()
        began = time.perf_counter()
        stream.idle_s()
        await asyncio.sleep(0.4)
        told = [stream.idle_s()]
        assert told[0] >= 0.4
        await asyncio.sleep(0.2)
        stream.advance(1)
        await stream.take()
        told += [stream.idle_s(), stream.idle_s()]
        assert told[1] >= 0.2
        assert sum(told) <= time.perf_counter() - began  # no time is told twice


@in_loop
async def test_a_policy_that_only_fails_ends_the_run_with_its_reason() -> None:
    failing = PolicyError("the server is down", kind="policy_unavailable")
    async with stream_of(HeldPolicy(failing=failing)) as stream:
        with pytest.raises(PolicyError, match=r"3 groups in a row .* the server is down") as e:
            await stream.take()
        assert e.value.kind == "policy_unavailable"


@in_loop
async def test_mistakes_of_the_caller_come_out_as_they_are() -> None:
    old = [GroupDraw(number=70, env=0, lesson=0, task_id="no-such-task", seed=5)]
    async with stream_of(HeldPolicy(), pending=old) as stream:
        with pytest.raises(UsageError, match="unknown task id 'no-such-task'"):
            await stream.take()
