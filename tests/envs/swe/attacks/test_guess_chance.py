"""No belief about how right values look wins more than one grading in a hundred."""

from __future__ import annotations

import asyncio

import pytest

from attacks import guess_chance
from katgym_envs.swe.hidden import HiddenTests

BOUND = 0.01
NUM_SCHEDULES = 2_000


@pytest.fixture(scope="module")
def studied() -> tuple[HiddenTests, HiddenTests]:
    return asyncio.run(guess_chance.studied())


@pytest.mark.slow
def test_beliefs_about_words_seldom_win(studied):
    found = guess_chance.word_chances(studied[0], NUM_SCHEDULES)
    passing = {name: chance for name, chance in found.items() if chance is not None}
    assert {name for name in found if name not in passing} == {
        "hash", "similar-80", "same-letters", "all-canaries",
    }  # fmt: skip
    assert {name for name, chance in passing.items() if chance >= BOUND} == set()


@pytest.mark.slow
def test_beliefs_about_numbers_and_lists_seldom_win(studied):
    found = guess_chance.shop_chances(studied[1], NUM_SCHEDULES)
    assert len(found) >= 8 and None not in found.values()
    assert {name for name, chance in found.items() if chance >= BOUND} == set()


@pytest.mark.slow
def test_without_near_canaries_likeness_wins(studied):
    """What near canaries are for, and that this computation sees a forger who wins."""
    found = guess_chance.word_chances(guess_chance.without_near(studied[0]), 500)
    assert found["similar"] > 0.1
    assert found["few-edits"] == found["two-edits"] == 1.0


@pytest.mark.slow
def test_near_canaries_are_drawn_of_every_test_to_fix(studied):
    for hidden in studied:
        for node in hidden.fail_to_pass:
            near = [c for c in hidden.canaries if c.near_for and node in c.fails]
            assert len(near) >= 3, node
            assert {c.places[node] for c in near} == {hidden.base_places[node]}
