"""Plans made ahead in a thread are those made on demand; what goes wrong there is raised here."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading

import pytest
import torch
from nightly import some_of
from tiny_families import gradients, make, sample_rows
from torch import Tensor

from katgym_kernels import TreePlan
from katgym_trainer import PackedForest, forward_backward, loss, pack
from katgym_trainer.gradients import forest_runner
from katgym_trainer.losses.scope import Scope
from katgym_trainer.models.segments import Layout
from katgym_trainer.plans.plans_ahead import PlansAhead, plans_of

CPU = torch.device("cpu")


def forests_of(family: str, *, is_in_parts: bool) -> list[PackedForest]:
    rows = [row for seed in range(4) for row in sample_rows(seed)]
    forests = pack(rows, max_tokens=40)
    assert len(forests) > 3
    return [forest.in_parts(15) for forest in forests] if is_in_parts else forests


EVERY = list(
    itertools.product(
        [("Qwen3", "cascade"), ("Gemma2", "auto"), ("Qwen3_5Text", "auto"), ("Lfm2", "auto"),
         ("Qwen3", "reference"), ("Qwen3", "sdpa"), ("Qwen3", "auto"), ("Llama4Text", "reference")],
        [False, True],
    )
)  # fmt: skip


@pytest.mark.parametrize(("model", "is_in_parts"), some_of(EVERY, 4))
def test_gradients_are_the_same_bit_for_bit(
    model: tuple[str, str], is_in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, backend = model
    forced = functools.partial(PlansAhead, is_forced=True)
    monkeypatch.setattr(forest_runner, "PlansAhead", forced)
    forests = forests_of(family, is_in_parts=is_in_parts)
    made = make(family)
    forward_backward(made, forests, loss("grpo"), backend=backend)
    found = gradients(made)
    for forest in forests:  # of one alone, nothing is made ahead
        scope = Scope.of(forests)
        forward_backward(made, [forest], loss("grpo"), backend=backend, scope=scope)
    wanted = gradients(made)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_what_was_asked_of_one_is_there_for_the_next() -> None:
    forests = forests_of("Qwen3", is_in_parts=False)
    threads: list[str] = []

    def note(plan: TreePlan) -> int:
        threads.append(threading.current_thread().name)
        return len(plan)

    with PlansAhead(forests, device=CPU, is_forced=True) as ahead:
        first = ahead.take(forests[0])
        first.attention(None).tiles(16, 16)
        first.windows(3)
        ahead.start()
        first.attention(7).once("noted", note)  # in the backward, say
        second = ahead.take(forests[1])
        assert second.asked().keys() == {("attention", None), ("windows", 3)}
        tiles = second.asked()["attention", None]
        assert tiles.keys() == {("tiles", 16, 16)}
        ahead.start()
        third = ahead.take(forests[2])
        assert {key[0] for key in third.asked()} == {"attention", "windows"}
        assert third.attention(7).once("noted", note) == len(forests[2].end)
    assert len(threads) == 2 and threads[0] == "MainThread" and threads[1].startswith("plans")
    wanted = plans_of(forests[2], CPU).attention(None).tiles(16, 16)
    made = third.attention(None).tiles(16, 16)
    for field in dataclasses.fields(wanted):
        one, other = getattr(made, field.name), getattr(wanted, field.name)
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    assert not any(t.name.startswith("plans") for t in threading.enumerate())


def test_a_part_that_runs_twice_has_its_plans_made_once() -> None:
    (forest, *_) = forests_of("Qwen3", is_in_parts=True)
    upper, lower = forest.parts[:2]
    with PlansAhead([upper, lower], device=CPU, is_forced=True) as ahead:
        first = ahead.take(upper, is_last=False)
        first.segments(Layout.PADDED)
        ahead.start()
        assert ahead.take(lower) is not first
        assert ahead.take(upper) is first


def test_what_goes_wrong_ahead_is_raised_where_plans_are_taken() -> None:
    good, bad, *_ = forests_of("Qwen3", is_in_parts=False)
    bad = dataclasses.replace(bad, end=torch.full_like(bad.end, 10**6))
    with PlansAhead([good, bad], device=CPU, is_forced=True) as ahead:
        ahead.take(good).attention(None)
        ahead.start()
        with pytest.raises(ValueError, match=r"end_N\[0\] is 1000000, allowed is 1 to"):
            ahead.take(bad)
    assert not any(t.name.startswith("plans") for t in threading.enumerate())
