"""Rounds of the engine, one at a time: who is admitted, who waits, whose memory is bounded."""

from __future__ import annotations

import asyncio
import copy
import threading

import pytest
import torch
from noted_clock import NotedClock
from waiting import wait_until_async

from katgym.errors import UsageError
from katgym.policies.base import Sampling
from katgym.policies.hf import hf_engine
from katgym.policies.hf.hf_engine import BatchEngine, HfEngineConfig
from katgym.policies.hf.hf_request import Request
from katgym.policies.hf.row_batch import compute_threads
from katgym.policies.hf.sampler import uniforms
from katgym.policies.waiting import bounded_by


def make_request(first, length, *, max_tokens=20):
    """Return a request whose prompt shares nothing with one of another `first`."""
    return Request(
        ids=[first] * length,
        max_tokens=max_tokens,
        stop_ids=frozenset(),
        sampling=Sampling(),
        uniforms=uniforms(first),
        session_id=str(first),
    )


@pytest.fixture
def make_engine(model):
    return lambda **config: BatchEngine(model, HfEngineConfig(**config))


def play(engine, *requests, num_rounds=1):
    engine._waiting.extend(requests)
    with torch.inference_mode():
        for _ in range(num_rounds):
            engine._round()


def num_sampled(*requests):
    return [len(request.logprobs) for request in requests]


def test_prompts_beyond_the_budget_wait_while_running_rows_get_their_token(make_engine):
    engine = make_engine(max_prefill_tokens=50)
    running = make_request(1, 30)
    play(engine, running)
    assert num_sampled(running) == [2]  # one by the prompt, one decoded
    others = [make_request(first, 40) for first in range(2, 6)]
    play(engine, *others)
    assert num_sampled(running, *others) == [3, 2, 2, 0, 0]
    play(engine)
    assert num_sampled(running, *others) == [4, 3, 3, 2, 2]


def test_with_nothing_running_all_that_fits_is_admitted_at_once(make_engine):
    engine = make_engine(max_prefill_tokens=50, max_batch_size=5)
    requests = [make_request(first, 40) for first in range(1, 7)]
    play(engine, *requests)
    assert num_sampled(*requests) == [2, 2, 2, 2, 2, 0]


def test_rows_times_the_longest_stay_below_the_limit_of_tokens(make_engine):
    engine = make_engine(max_batch_tokens=200)
    short = [make_request(first, 30) for first in range(1, 4)]  # 50 tokens each in the end
    long = make_request(9, 60)  # 80: four rows of 80 are too many
    late = make_request(10, 30)
    play(engine, *short, long, late)
    assert num_sampled(*short, long, late) == [2, 2, 2, 0, 0]  # in order: `late` waits as well
    play(engine, num_rounds=18)
    assert [request.future.done() for request in short] == [True] * 3
    play(engine)
    assert num_sampled(long, late) == [2, 2]


def test_a_request_above_the_limit_of_tokens_runs_alone(make_engine):
    engine = make_engine(max_batch_tokens=10)
    requests = [make_request(first, 30, max_tokens=3) for first in (1, 2)]
    play(engine, *requests)
    assert num_sampled(*requests) == [2, 0]
    play(engine, num_rounds=4)
    assert num_sampled(*requests) == [3, 3]


def test_limits_below_the_least_are_refused():
    for name, least in {"max_batch_size": 1, "max_batch_tokens": 1, "max_prefill_tokens": 1,
                        "max_cached_tokens": 0}.items():  # fmt: skip
        with pytest.raises(UsageError, match=f"{name} is >= {least}, got -1"):
            HfEngineConfig(**{name: -1})


def test_rows_that_end_out_of_order_leave_the_others_exact(make_engine, model):
    engine = make_engine()
    requests = [
        make_request(first, 10 + 7 * first, max_tokens=max_tokens)
        for first, max_tokens in enumerate((5, 40, 3, 17, 40, 1, 9), start=1)
    ]
    play(engine, *requests, num_rounds=40)
    for request in requests:
        generated = request.future.result(timeout=0)
        assert len(generated.token_ids) == request.max_tokens
        with torch.no_grad():
            logits = model(torch.tensor([request.ids])).logits[0, request.num_prompt - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(
            1, torch.tensor(generated.token_ids)[:, None]
        )[:, 0]
        assert (expected - torch.tensor(generated.policy_logprobs)).abs().max() <= 1e-4
    assert engine.batch.rows == []


def test_requests_that_come_together_begin_with_one_prefill(model, monkeypatch):
    monkeypatch.setattr(hf_engine, "_GAP_S", 300.0)  # the eighth, which fills a batch, ends it

    async def go():
        requests = [make_request(n, 5) for n in range(1, 9)]
        await asyncio.gather(*(engine.generate(request) for request in requests))

    engine = BatchEngine(model, HfEngineConfig(max_batch_size=8))
    shapes = []
    hook = model.register_forward_hook(
        lambda _, args, given, out: shapes.append(tuple(given["input_ids"].shape)),
        with_kwargs=True,
    )
    try:
        for _ in range(3):  # an engine that has been idle begins anew
            shapes.clear()
            asyncio.run(go())
            assert shapes[0] == (8, 5) and set(shapes[1:]) == {(8, 1)}
            engine.batch.forget()
    finally:
        hook.remove()
        engine.close()


def test_one_thread_computes_a_small_models_short_forward_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for num_parameters, num_tokens, expected in (
            (1_000_000, 128, 1), (1_000_000, 2048, 2), (135_000_000, 1, 2),
        ):  # fmt: skip
            with compute_threads(num_parameters, num_tokens, usual=2):
                assert torch.get_num_threads() == expected
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def drawn_requests(num, *, session="s"):
    """Return requests whose prompts of 3 to 150 tokens share a start of 2."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for number in range(num):
        length = (3, 150, 37, 64, 9)[number % 5]
        ids = [5, 6, *torch.randint(0, 280, (length - 2,), generator=generator).tolist()]
        request = make_request(number, length, max_tokens=7)
        request.ids, request.session_id = ids, f"{session}{number}"
        found.append(request)
    return found


@pytest.mark.parametrize("num_threads", [1, 2])
def test_batch_invariant_answers_are_the_same_bits_whatever_runs_beside_and_is_known(
    make_engine, model, num_threads
):
    before = model.config._attn_implementation, torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        together, apart = drawn_requests(7), drawn_requests(7)
        play(make_engine(is_batch_invariant=True), *together, num_rounds=8)
        engine = make_engine(is_batch_invariant=True)
        for request in reversed(apart):
            play(engine, request, num_rounds=7)
        for one, other in zip(together, apart, strict=True):
            assert one.ids == other.ids and one.logprobs == other.logprobs

        # A next turn: its prompt was decoded before, or is computed at once.
        engine.batch.num_reused, ids = 0, [*apart[1].ids, 9, 10, 11]
        for known in (engine, make_engine(is_batch_invariant=True)):
            turn = make_request(1, len(ids), max_tokens=5)
            turn.ids = list(ids)
            apart.append(turn)
            play(known, turn, num_rounds=5)
        assert engine.batch.num_reused >= len(ids) - 4
        assert apart[-1].logprobs == apart[-2].logprobs
    finally:
        model.set_attn_implementation(before[0])
        torch.set_num_threads(before[1])


def test_batch_invariance_is_refused_where_it_is_not_there(model):
    config, other = HfEngineConfig(is_batch_invariant=True), copy.deepcopy(model).bfloat16()
    with pytest.raises(UsageError, match=r"in float32 on a CPU; this one .* torch.bfloat16 on cpu"):
        BatchEngine(other, config)


def test_an_episodes_clock_stands_while_its_request_is_queued(make_engine):
    engine, clocks = make_engine(), [NotedClock(), NotedClock()]
    is_free = threading.Event()

    async def ask(number):
        with bounded_by(clocks[number]):
            await engine.generate(make_request(number, 9, max_tokens=4))

    async def go():
        updating = asyncio.create_task(engine.update(is_free.wait, 1))
        asking = [asyncio.create_task(ask(number)) for number in range(2)]
        await wait_until_async(lambda: all(clock.stands for clock in clocks), "their being queued")
        asking[1].cancel()
        await asyncio.gather(asking[1], return_exceptions=True)
        assert [clock.stands for clock in clocks] == [True, False]
        is_free.set()
        await asyncio.gather(updating, asking[0])

    try:
        asyncio.run(go())
    finally:
        is_free.set()
        engine.close()
    assert [clock.noted for clock in clocks] == [[1, -1], [1, -1]]
