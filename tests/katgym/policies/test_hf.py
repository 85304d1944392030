"""The transformers policy: exact log-probabilities, seeds, batching, reuse, failures."""

from __future__ import annotations

import asyncio

import pytest
import torch
from waiting import wait_until_async

from katgym.errors import PolicyError, UnknownNameError, UsageError
from katgym.policies.base import Sampling
from katgym.policies.hf.hf_policy import HfConfig, HfPolicy, from_uri
from katgym.policies.rendering.chat_format import num_common
from katgym.policies.uri_options import parse_options

PROMPTS = [list(range(10, 10 + n)) for n in (1, 63, 17, 130, 5)]


@pytest.fixture
def make_policy(model, tokenizer):
    made = []

    def make(**config):
        made.append(HfPolicy(model, tokenizer, config=HfConfig(**config)))
        made[-1].stop_ids = frozenset()
        return made[-1]

    yield make
    for policy in made:
        policy.engine.close()


def generate(policy, prompt, *, seed=0, max_tokens=20, session_id="s", **sampling):
    return policy.generate(
        prompt,
        sampling=Sampling(**sampling),
        max_tokens=max_tokens,
        seed=seed,
        session_id=session_id,
    )


def gather(*coroutines, **kwargs):
    async def run():
        return await asyncio.gather(*coroutines, **kwargs)

    return asyncio.run(run())


def full_forward(model, prompt, generated, temperature=1.0):
    """Log-probabilities of the sampled tokens by one forward over the whole sequence."""
    ids = torch.tensor([prompt + list(generated.token_ids)])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / (temperature or 1.0)
    logprobs = torch.log_softmax(logits, -1)
    return logprobs.gather(1, torch.tensor(generated.token_ids)[:, None])[:, 0]


def test_logprobs_match_one_full_forward(make_policy, model):
    for temperature in (0.0, 0.7, 1.0):
        policy = make_policy(max_batch_size=3)
        results = gather(
            *(
                generate(policy, p, seed=i, session_id=str(i), temperature=temperature,
                         max_tokens=5 + 7 * i)
                for i, p in enumerate(PROMPTS)
            )
        )  # fmt: skip
        for index, (prompt, result) in enumerate(zip(PROMPTS, results, strict=True)):
            assert len(result.token_ids) == 5 + 7 * index
            expected = full_forward(model, prompt, result, temperature)
            assert (expected - torch.tensor(result.policy_logprobs)).abs().max() <= 1e-4


def test_greedy_takes_the_most_likely_token(make_policy, model):
    (result,) = gather(generate(make_policy(), PROMPTS[1], temperature=0.0))
    ids = torch.tensor([PROMPTS[1] + result.token_ids])
    with torch.no_grad():
        best = model(ids).logits[0, len(PROMPTS[1]) - 1 : -1].argmax(-1)
    assert best.tolist() == result.token_ids


def test_a_seed_gives_the_same_tokens_whoever_runs_beside_it(make_policy):
    (alone,) = gather(generate(make_policy(), PROMPTS[2], seed=5))
    policy = make_policy(max_batch_size=2)
    crowd = gather(
        *(generate(policy, p, seed=i, session_id=str(i)) for i, p in enumerate(PROMPTS)),
        generate(policy, PROMPTS[2], seed=5, session_id="same"),
    )
    assert crowd[-1].token_ids == alone.token_ids
    assert crowd[2].token_ids != alone.token_ids


def test_without_a_seed_draws_differ(make_policy):
    policy = make_policy()
    a, b = gather(*(generate(policy, PROMPTS[2], seed=None) for _ in range(2)))
    assert a.token_ids != b.token_ids


def test_stop_token_ends_and_is_part_of_the_completion(make_policy):
    policy = make_policy()
    (free,) = gather(generate(policy, PROMPTS[0], seed=3))
    stop = free.token_ids[4]
    policy.stop_ids = frozenset({stop})
    (stopped,) = gather(generate(policy, PROMPTS[0], seed=3))
    end = free.token_ids.index(stop) + 1
    assert stopped.token_ids == free.token_ids[:end]
    assert (free.finish_reason, stopped.finish_reason) == ("length", "stop")


def test_the_next_turn_reuses_its_session_and_siblings_share_a_prompt(make_policy, model):
    policy = make_policy()
    prompt = PROMPTS[3]
    first, *_ = gather(*(generate(policy, prompt, seed=i, session_id=str(i)) for i in range(4)))
    assert policy.engine.batch.num_prefilled == len(prompt) + 3  # siblings compute one token each
    before = policy.engine.batch.num_prefilled
    longer = prompt + first.token_ids + [7, 8, 9]
    (second,) = gather(generate(policy, longer, session_id="0"))
    # the last sampled token was never fed back, so it is computed with the three new ones
    assert policy.engine.batch.num_prefilled - before == 4
    difference = full_forward(model, longer, second) - torch.tensor(second.policy_logprobs)
    assert difference.abs().max() <= 1e-4


def test_released_and_oversized_prefixes_are_not_kept(make_policy):
    policy = make_policy(max_cached_tokens=100)
    gather(generate(policy, PROMPTS[3], session_id="big"))
    assert list(policy.engine.batch.kept) == []
    gather(*(generate(policy, PROMPTS[1], session_id=name, max_tokens=2) for name in "ab"))
    assert list(policy.engine.batch.kept) in (["a"], ["b"])  # 2 x 64 tokens do not fit in 100
    policy.release("a")
    policy.release("b")
    gather(generate(policy, PROMPTS[0], session_id="c", max_tokens=2))
    assert list(policy.engine.batch.kept) == ["c"]


def test_a_cancelled_caller_frees_its_row(make_policy):
    policy = make_policy(max_batch_size=1)

    async def run():
        long = asyncio.create_task(generate(policy, PROMPTS[0], max_tokens=100_000))
        queued = asyncio.create_task(generate(policy, PROMPTS[1], max_tokens=3))
        dropped = asyncio.create_task(generate(policy, PROMPTS[2], max_tokens=3))
        await wait_until_async(lambda: policy.engine.batch.num_decoded, "the first token")
        long.cancel()
        dropped.cancel()
        result = await queued
        return len(result.token_ids), await asyncio.gather(long, dropped, return_exceptions=True)

    count, others = asyncio.run(run())
    assert count == 3
    assert all(isinstance(other, asyncio.CancelledError) for other in others)


def test_an_error_of_the_model_reaches_its_callers_and_the_engine_goes_on(make_policy, caplog):
    policy = make_policy()
    bad, worse = gather(
        generate(policy, [10**6]), generate(policy, [10**6]), return_exceptions=True
    )
    assert isinstance(bad, PolicyError)
    assert "the model failed: IndexError" in str(bad)
    assert isinstance(worse, PolicyError)
    (result,) = gather(generate(policy, PROMPTS[0], max_tokens=2))
    assert len(result.token_ids) == 2


def test_out_of_memory_says_what_to_lower(make_policy, model):
    policy = make_policy()

    def explode(*args, **kwargs):
        raise torch.OutOfMemoryError("no bytes left")

    handle = model.register_forward_pre_hook(explode)
    try:
        (error,) = gather(generate(policy, PROMPTS[0]), return_exceptions=True)
    finally:
        handle.remove()
    assert isinstance(error, PolicyError)
    assert "out of memory with 1 requests running" in str(error)
    assert "Lower max_batch_size" in str(error)


def test_close_fails_what_is_running_and_may_be_called_twice(make_policy):
    policy = make_policy()

    async def run():
        task = asyncio.create_task(generate(policy, PROMPTS[0], max_tokens=100_000))
        await wait_until_async(lambda: policy.engine.batch.num_decoded, "the first token")
        await policy.aclose()
        await policy.aclose()
        return await asyncio.gather(task, generate(policy, [1]), return_exceptions=True)

    running, late = asyncio.run(run())
    assert str(running) == "the policy was closed while the request was running"
    assert str(late) == "the policy is closed"


def test_update_waits_for_running_requests_and_stamps_later_ones(make_policy, model, held_after):
    policy = make_policy()
    weight = model.lm_head.weight
    saved = weight.detach().clone()

    async def run():
        first = asyncio.create_task(generate(policy, PROMPTS[1], max_tokens=30))
        async with held_after(policy, 10):
            halve = policy.update_weights(lambda: weight.data.mul_(0.5), policy_version=4)
            update = asyncio.create_task(halve)
            await wait_until_async(lambda: policy.engine._updates, "the update")
        await update
        return await first, await generate(policy, PROMPTS[1], max_tokens=30)

    try:
        before, after = asyncio.run(run())
        expected = full_forward(model, PROMPTS[1], after)
    finally:
        weight.data.copy_(saved)
    assert (before.policy_version, after.policy_version) == (0, 4)
    assert (expected - torch.tensor(after.policy_logprobs)).abs().max() <= 1e-4
    old = full_forward(model, PROMPTS[1], before)
    assert (old - torch.tensor(before.policy_logprobs)).abs().max() <= 1e-4


def test_a_failing_update_reaches_its_caller(make_policy):
    policy = make_policy()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(policy.update_weights(lambda: 1 // 0, policy_version=1))
    assert policy.engine.version == 0


def test_loads_a_directory_by_uri(model_directory, model):
    policy = from_uri(f"{model_directory}?dtype=float32&max_context_tokens=100000&max_batch_size=2")
    assert policy.max_context_tokens == 2048  # the model's own limit
    assert policy.describe()["renderer"] == "ChatMLRenderer"
    (result,) = gather(generate(policy, PROMPTS[2], max_tokens=4))
    expected = full_forward(model, PROMPTS[2], result)
    assert (expected - torch.tensor(result.policy_logprobs)).abs().max() <= 1e-4
    policy.engine.close()


def test_a_wrong_uri_says_what_is_wrong(subtests):
    for rest, text in {
        "": "its form is hf:MODEL",
        "/no/such/directory": "there is no folder '/no/such/directory'",
        "x?dtyp=float32": "Did you mean 'dtype'?",
        "x?dtype=int8": "dtype is one of float32, bfloat16, float16, got 'int8'",
        "x?max_batch_size=two": "Expected `int`",
        "x?dtype": "cannot read options 'dtype'",
        "x?dtype=": "option 'dtype' has no value",
    }.items():
        with subtests.test(rest):
            with pytest.raises(UsageError) as caught:
                from_uri(rest)
            assert text in str(caught.value)
            assert isinstance(caught.value, UnknownNameError) == ("Did you mean" in text)


def test_a_model_with_sliding_layers_is_refused(model, tokenizer, monkeypatch):
    monkeypatch.setattr(model.config, "layer_types", ["full_attention", "sliding_attention"])
    with pytest.raises(UsageError, match="'full_attention' only"):
        HfPolicy(model, tokenizer)


def test_options_are_split_from_the_model():
    head, config = parse_options("a/b#c?dtype=bfloat16&max_batch_size=2", HfConfig, form="")
    assert (head, config.dtype, config.max_batch_size) == ("a/b#c", "bfloat16", 2)


def test_num_common_counts_what_two_sequences_begin_with():
    lengths = {((), (1,)): 0, ((1, 2, 3), (1, 2, 3, 4)): 3, ((1, 2, 9, 4), (1, 2, 3, 4)): 2,
               ((5,), (6,)): 0}  # fmt: skip
    assert {pair: num_common(*pair) for pair in lengths} == lengths
