"""Which tasks a run plays next."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from played_groups import group_of

from katgym.errors import UnknownNameError, UsageError
from katgym_trainer.config.rl_config import EnvConfig, RolloutsConfig, TaskChoice
from katgym_trainer.rl.curriculum import Curriculum, GroupDraw

ARITHMETIC = EnvConfig(id="katgym/Arithmetic-v1?level=1", num_tasks=20)
HUNT = EnvConfig(id="katgym/TreasureHunt-v1", num_tasks=20, weight=3.0)


def source(*envs: EnvConfig, seed: int = 0, **config: Any) -> Curriculum:
    return Curriculum(envs, RolloutsConfig(**{"num_groups": 8, **config}), seed=seed)


def draws(source: Curriculum, num: int) -> list[GroupDraw]:
    return [source.draw() for _ in range(num)]


def test_envs_get_their_share_of_every_wave_by_turns() -> None:
    found = draws(source(ARITHMETIC, HUNT), 16)
    assert [draw.env for draw in found] == [1, 0, 1, 1, 1, 0, 1, 1] * 2
    assert [draw.number for draw in found] == list(range(16))


def test_tasks_of_a_wave_differ_and_come_from_the_pool_of_the_split() -> None:
    for choice in TaskChoice:
        found = draws(source(ARITHMETIC, choice=choice), 24)
        for start in (0, 8, 16):
            assert len({draw.task_id for draw in found[start : start + 8]}) == 8
        assert all(draw.task_id.startswith("L01-train-") for draw in found)
        assert len({draw.task_id for draw in found}) <= 20
        assert len({draw.seed for draw in found}) == 24


def test_uniform_choice_plays_every_task_before_any_again() -> None:
    found = draws(source(ARITHMETIC, choice=TaskChoice.UNIFORM, num_groups=5), 40)
    counts = Counter(draw.task_id for draw in found[:20])
    assert len(counts) == 20
    assert Counter(draw.task_id for draw in found) == dict.fromkeys(counts, 2)


def test_a_pool_smaller_than_a_wave_is_played_again_within_it() -> None:
    small = EnvConfig(id="katgym/Arithmetic-v1?level=1", num_tasks=3)
    counts = Counter(draw.task_id for draw in draws(source(small), 8))
    assert sorted(counts.values()) == [2, 3, 3]


def test_tasks_that_are_always_solved_come_less_often() -> None:
    one = source(ARITHMETIC, num_groups=2, floor=0.01)
    for _ in range(200):
        for draw in draws(one, 2):
            is_easy = int(draw.task_id[-1]) % 2 == 0
            one.update(draw, group_of([1.0] * 8 if is_easy else [1.0] * 4 + [0.0] * 4))
    counts = Counter(int(draw.task_id[-1]) % 2 for draw in draws(one, 100))
    assert counts[1] > 3 * counts[0]


def test_the_same_seed_and_outcomes_draw_the_same_and_another_seed_does_not() -> None:
    assert draws(source(ARITHMETIC, HUNT), 20) == draws(source(ARITHMETIC, HUNT), 20)
    assert draws(source(ARITHMETIC), 8) != draws(source(ARITHMETIC, seed=1), 8)


def test_a_state_goes_on_with_the_draws_that_would_have_come() -> None:
    course = EnvConfig(
        id="katgym/TreasureHunt-v1", num_tasks=9, curriculum=({"level": 1}, {"level": 2}), window=2
    )
    for choice in TaskChoice:
        one, other = (source(ARITHMETIC, course, choice=choice) for _ in range(2))
        for draw in draws(one, 13):
            one.update(draw, group_of([1.0, 1.0, 0.0, 1.0, 1.0, 1.0]))
        state = json.loads(json.dumps(one.state_dict()))
        other.load_state_dict(state)
        assert other.lesson_names() == {"katgym/TreasureHunt-v1": 1}
        assert draws(other, 20) == draws(one, 20)
        with pytest.raises(ValueError, match="the state is of 2 envs"):
            source(ARITHMETIC).load_state_dict(state)


def test_a_lesson_ends_when_enough_of_its_last_groups_succeeded() -> None:
    course = EnvConfig(
        id="katgym/TreasureHunt-v1",
        num_tasks=9,
        curriculum=({"level": 1}, {"level": 2}, {"level": 3}),
        advance_at=0.75,
        window=2,
        review=0.25,
    )
    one = source(course, num_groups=1)
    name = "katgym/TreasureHunt-v1"

    def play(*rewards: float | None) -> GroupDraw:
        draw = one.draw()
        one.update(draw, group_of(list(rewards)))
        return draw

    assert play(1.0, 1.0).lesson == 0  # one group is not a window of two
    assert one.lesson_names() == {name: 0}
    play(None, None)  # nothing that is valid says nothing
    assert one.lesson_names() == {name: 0}
    play(1.0, 0.0)  # 0.75 over both
    assert one.lesson_names() == {name: 1}
    lessons = Counter(play(0.0, 0.0).lesson for _ in range(400))
    assert set(lessons) == {0, 1}
    assert 70 < lessons[0] < 130
    assert one.lesson_names() == {name: 1}
    for _ in range(40):
        play(1.0, 1.0)
    assert one.lesson_names() == {name: 2}  # the last one stays


def test_what_cannot_be_played_is_told_before_anything_is() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'katgym/Arithmetic-v1'"):
        source(EnvConfig(id="katgym/Arithmetc-v0"))
    with pytest.raises(UnknownNameError, match=r"unknown split 'tran'. Did you mean 'train'"):
        source(EnvConfig(id="katgym/Arithmetic-v1", split="tran"))
    with pytest.raises(UsageError, match="level is an int from 1 to 10"):
        source(EnvConfig(id="katgym/TreasureHunt-v1", curriculum=({"level": 11},)))
    with pytest.raises(UsageError, match=r"'level' is in `id` .* and in the curriculum"):
        EnvConfig(id="katgym/TreasureHunt-v1?level=2", curriculum=({"level": 1},))
    with pytest.raises(UsageError, match=r"window changes nothing for .* without a curriculum"):
        EnvConfig(id="katgym/TreasureHunt-v1", window=3)
