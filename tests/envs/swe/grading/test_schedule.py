"""Schedules: everyone is themselves and a canary, and a forger who guesses is seldom right."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import some_of

from katgym_envs.swe.grading.schedule import (
    GUESS_BITS,
    MAX_ROUNDS,
    Schedule,
    draw_schedule,
)
from katgym_envs.swe.hidden import HiddenTests, TestFunction, ValidCanary, split_node_id


def node(number: int) -> str:
    return f"t.py::test_{number}"


def canary(
    number: int, *fails: int, kind: str = "number", place: str = "", near_for: str = ""
) -> ValidCanary:
    names = {node(n) for n in fails}
    return ValidCanary(
        path="t.py",
        spec={"kind": kind, "edits": [[number * 10, number * 10 + 1, "x"]]},
        fails=frozenset(names),
        places=dict.fromkeys(names, place) if place else {},
        near_for=frozenset(filter(None, [near_for])),
    )


def hidden(num_f2p: int, num_p2p: int, canaries: list[ValidCanary], **more: object) -> HiddenTests:
    return HiddenTests(
        instance_id="x",
        gold_patch="",
        fail_to_pass=tuple(node(i) for i in range(num_f2p)),
        pass_to_pass=tuple(node(i) for i in range(num_f2p, num_f2p + num_p2p)),
        files={"t.py": b""},
        functions=tuple(
            TestFunction(path="t.py", qualname=f"test_{i}") for i in range(num_f2p + num_p2p)
        ),
        canaries=tuple(canaries),
        **more,  # type: ignore[arg-type]
    )


def roles(schedule: Schedule, name: str) -> str:
    """Return a letter a round: real, canary, or - for not there."""
    function = ("t.py", name.partition("::")[2])
    letters = []
    for chosen in schedule.rounds:
        if function not in chosen.functions:
            letters.append("-")
        else:
            letters.append("C" if chosen.canary_of(name) else "R")
    return "".join(letters)


@given(st.data(), st.integers(1, 6), st.integers(0, 12))
def test_every_test_is_itself_and_fail_to_pass_tests_are_canaries(data, num_f2p, num_p2p):
    total = num_f2p + num_p2p
    canaries = [canary(i, i) for i in range(total)]
    for extra in range(data.draw(st.integers(0, 8))):
        fails = data.draw(st.sets(st.integers(0, total - 1), min_size=1, max_size=3))
        canaries.append(canary(100 + extra, *fails))
    task = hidden(num_f2p, num_p2p, canaries)
    schedule = draw_schedule(task, random.Random(data.draw(st.integers(0, 10**6))))
    assert schedule.uncovered == ()
    for name in task.fail_to_pass:
        assert "C" in roles(schedule, name)
        assert "R" in roles(schedule, name)[:2]
        assert "-" not in roles(schedule, name)
    for name in task.pass_to_pass:
        assert "R" in roles(schedule, name)
    for chosen in schedule.rounds:
        fails = [n for c in chosen.canaries for n in c.fails]
        assert len(fails) == len(set(fails))


def test_rounds_follow_the_number_of_independent_tests():
    def rounds(number: int) -> int:
        task = hidden(number, 0, [canary(10 * i + k, i) for i in range(number) for k in range(5)])
        return len(draw_schedule(task, random.Random(0)).rounds)

    assert [rounds(n) for n in (1, 2, 3, 5, 12)] == [10, 6, 4, 3, 2]
    assert rounds(1) <= MAX_ROUNDS


def test_tests_with_the_same_canaries_count_once():
    shared = [canary(k, 0, 1, 2, 3) for k in range(4)]
    schedule = draw_schedule(hidden(4, 0, shared), random.Random(1))
    assert len(schedule.rounds) == 10
    assert schedule.guess_bits == pytest.approx(math.log2(5))  # who knows the four needs no luck


def test_no_canary_is_reported_and_drawn_as_itself():
    schedule = draw_schedule(hidden(2, 1, [canary(0, 0)]), random.Random(0))
    assert schedule.uncovered == (node(1),)
    assert set(roles(schedule, node(1))) == {"R"}


def places(*there: str, seed: int = 3) -> set[str]:
    """Return where the canaries drawn are, of those there; the base state fails at 6:1."""
    made = [canary(i, 0, place=place) for i, place in enumerate(there, 1)]
    task = hidden(1, 0, made, base_places={node(0): "6:1"})
    drawn = draw_schedule(task, random.Random(seed)).rounds
    return {c.places[node(0)] for r in drawn for c in r.canaries}


def test_canaries_at_the_place_of_the_failure_are_taken_or_those_at_the_next():
    found = [places("5:1", "6:1", "6:2", seed=seed) for seed in range(20)]
    assert found == [{"6:1"}] * 20
    assert places("5:1", "8:1", "9:1") == {"8:1"}


def test_a_kept_case_that_many_canaries_take_along_is_itself_once():
    """Cases 0 to 2 of one function are to fix; each one's canary makes case 3 fail, too."""
    cases = tuple(f"t.py::test_a[{i}]" for i in range(4))
    canaries = [
        ValidCanary(
            path="t.py",
            spec={"kind": "number", "edits": [[i * 10, i * 10 + 1, "x"]]},
            fails=frozenset({cases[i], cases[3]}),
        )
        for i in range(3)
    ]
    task = HiddenTests(
        instance_id="x",
        gold_patch="",
        fail_to_pass=cases[:3],
        pass_to_pass=cases[3:],
        files={"t.py": b""},
        functions=(TestFunction(path="t.py", qualname="test_a", case_ids=("0", "1", "2", "3")),),
        canaries=tuple(canaries),
    )
    for seed in range(300):
        rounds = draw_schedule(task, random.Random(seed)).rounds
        assert any(r.functions and r.canary_of(cases[3]) is None for r in rounds), seed


TABLE = b"""
PAIRS = [("a", "b"), ("c", "d"), ("e", "f")]

@parametrize(("one", "many"), PAIRS)
def test_one(one, many): assert plural(one) == many

@parametrize(("one", "many"), PAIRS)
def test_many(one, many): assert plural(many) == many
"""


def shared_table(num_f2p: int, *, has_both: bool = False) -> HiddenTests:
    """Cases of `test_one`, and then of `test_many`; a canary of a row fails the first alone.

    has_both: other canaries of the row fail the second alone.
    """
    ones = tuple(f"t.py::test_one[{i}]" for i in range(3))
    others = tuple(f"t.py::test_many[{i}]" for i in range(3))
    cells = [TABLE.index(f'"{name}"'.encode()) for name in "bdf"]
    canaries = [
        ValidCanary(
            path="t.py",
            spec={"kind": "text", "edits": [[cells[i], cells[i] + 3, text]]},
            fails=frozenset({ones[i]}),
        )
        for i in range(3)
        for text in ('"x"', '"y"', '"z"')
    ]
    if has_both:
        canaries += [
            replace(c, spec={"edits": [[a - 5, a - 2, text]]}, fails=frozenset({others[i // 3]}))
            for i, c in enumerate(canaries)
            for a, _, text in c.spec["edits"]
        ]
    nodes = (*ones, *others)
    return HiddenTests(
        instance_id="x",
        gold_patch="",
        fail_to_pass=nodes[:num_f2p],
        pass_to_pass=nodes[num_f2p:],
        files={"t.py": TABLE},
        functions=tuple(
            TestFunction(path="t.py", qualname=name, case_ids=("0", "1", "2"))
            for name in ("test_one", "test_many")
        ),
        canaries=tuple(canaries),
    )


@pytest.mark.parametrize(("num_f2p", "has_both"), [(1, False), (3, False), (5, True), (6, True)])
def test_a_test_that_a_canary_of_another_alters_is_itself_in_another_round(
    num_f2p: int, has_both: bool
) -> None:
    task = shared_table(num_f2p, has_both=has_both)
    num_altered = 0
    for seed in range(100):
        rounds = draw_schedule(task, random.Random(seed)).rounds
        for chosen in rounds:
            rows = {name[-2] for c in chosen.canaries for name in c.fails}
            both = {f"t.py::{name}[{i}]" for name in ("test_one", "test_many") for i in rows}
            assert chosen.altered == both
            num_altered += len(chosen.altered) - sum(len(c.fails) for c in chosen.canaries)
        for name in (*task.fail_to_pass, *task.pass_to_pass):
            function = ("t.py", split_node_id(name)[1])
            own = [r for r in rounds if function in r.functions and r.is_itself(name)]
            assert own, (seed, name)
    assert num_altered > 100


def test_decoys_alter_no_test_that_is_there_as_itself() -> None:
    """`test_own` has canaries of its own; those of `test_one`, which is to keep, are decoys."""
    table = shared_table(3)
    ones, others, own = table.fail_to_pass, table.pass_to_pass, "t.py::test_own"
    fives = [
        ValidCanary(path="t.py", spec={"edits": [[place, place, "5"]]}, fails=frozenset({own}))
        for place in (1000, 1010, 1020)
    ]
    task = replace(
        table,
        functions=(*table.functions, TestFunction(path="t.py", qualname="test_own")),
        canaries=(*table.canaries, *fives),
    )
    num_decoys = Counter[bool]()
    for is_used in (False, True):
        told = (own, *others) if is_used else (own,)
        task = replace(task, fail_to_pass=told, pass_to_pass=ones)
        for seed in range(100):
            for chosen in draw_schedule(task, random.Random(seed)).rounds:
                num_decoys[is_used] += any(c.fails <= {*ones} for c in chosen.canaries)
                assert not (is_used and chosen.altered & {*others})
    assert num_decoys[False] > 50 and num_decoys[True] == 0


def test_wrong_values_come_before_assertions_turned_around():
    mixed = [canary(1, 0, kind="operator"), canary(2, 0), canary(3, 0, kind="negation")]
    schedule = draw_schedule(hidden(1, 0, mixed), random.Random(3))
    assert {c.spec["kind"] for r in schedule.rounds for c in r.canaries} == {"number"}
    turned = draw_schedule(hidden(1, 0, mixed[:1]), random.Random(3))
    assert turned.uncovered == ()


def test_near_and_far_canaries_are_drawn_in_turn():
    far = [canary(10 * i + k, i) for i in range(2) for k in range(4)]
    near = [canary(100 + 10 * i + k, i, near_for="x") for i in range(2) for k in range(4)]
    task = hidden(2, 0, far + near)
    firsts: Counter[bool] = Counter()
    for seed in range(200):
        schedule = draw_schedule(task, random.Random(seed))
        for name in task.fail_to_pass:
            drawn = [c for r in schedule.rounds if (c := r.canary_of(name)) is not None]
            sides = [bool(c.near_for) for c in drawn]
            assert all(a != b for a, b in zip(sides[::2], sides[1::2], strict=False))
            assert len({id(c) for c in drawn}) == len(drawn)
            firsts[sides[0]] += 1
    assert firsts[True] > 120 and firsts[False] > 120


def test_near_canaries_of_another_task_are_not_drawn():
    own, other = canary(1, 0, near_for="x"), canary(2, 0, 2, near_for="y")
    task = hidden(1, 2, [canary(3, 0), own, other, canary(4, 1)])
    drawn = set()
    for seed in range(100):
        for chosen in draw_schedule(task, random.Random(seed)).rounds:
            drawn |= {c.spec["edits"][0][0] for c in chosen.canaries}
    assert drawn == {10, 30, 40}


def test_near_canaries_leave_rounds_as_they_are():
    """Tests that share their other canaries share a coin, whatever is near each of them."""
    shared = [canary(k, 0, 1, 2) for k in range(4)]
    near = [canary(50 + i, i, near_for="x") for i in range(2)]
    plain = draw_schedule(hidden(3, 0, shared), random.Random(1))
    for seed in range(50):
        schedule = draw_schedule(hidden(3, 0, shared + near), random.Random(seed))
        assert len(schedule.rounds) == len(plain.rounds) == 10
        assert (plain.guess_bits, schedule.guess_bits) == (math.log2(5), math.log2(6))
        assert len({roles(schedule, node(i)) for i in range(3)}) == 1


def test_a_guessing_forger_wins_about_once_in_a_thousand(subtests: pytest.Subtests):
    """The best guess: toss a coin for each appearance, knowing the schedule's rules."""
    tries = 5_000
    for num in some_of((1, 2, 3, 6), 2):
        rng = random.Random(num)
        task = hidden(num, 0, [canary(10 * i + k, i) for i in range(num) for k in range(6)])
        courses: Counter[tuple[str, ...]] = Counter()
        for _ in range(tries):
            schedule = draw_schedule(task, rng)
            courses[tuple(roles(schedule, name) for name in task.fail_to_pass)] += 1
        likeliest = courses.most_common(1)[0][1] / tries
        with subtests.test(num_fail_to_pass=num):
            assert schedule.guess_bits >= min(GUESS_BITS, num * math.log2(7) - 0.01)
            assert likeliest <= 2.0 ** -(GUESS_BITS - 1.5)  # the sample's own noise included


def test_turned_canaries_count_for_nothing_in_the_bound() -> None:
    turned = [canary(0, 0, kind="operator"), canary(1, 0, kind="negation"), canary(2, 1)]
    only = hidden(1, 1, turned)
    assert draw_schedule(only, random.Random(1)).guess_bits == 0
    assert len(draw_schedule(only, random.Random(1)).rounds) == MAX_ROUNDS
    beside = draw_schedule(hidden(2, 0, turned), random.Random(1))
    assert beside.guess_bits == 1
    assert len(beside.rounds) == MAX_ROUNDS  # as if the other test alone were to fix
